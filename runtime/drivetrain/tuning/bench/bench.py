"""`drivetrain bench speed`: measures the gain of each optimization of a job's plan on the job's network and batches.

The order is plain, each optimization added to the earlier ones, then all without each one. One child trains all variants
in turn. Settings that are fixed when a process starts (threads, OpenMP runtime, allocator) are the same in all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from drivetrain import optimizations
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import evidence
from drivetrain.plan.plan import Plan, format_value
from drivetrain.plan.plan_table import describe_machine
from drivetrain.report.formatting import format_tick
from drivetrain.system.console import open_console
from drivetrain.system.files import blame_storage, write_json
from drivetrain.system.units import format_bytes
from drivetrain.tuning.bench.ablation import Ablation, AblationStep
from drivetrain.tuning.measuring_request import MeasuringRequest

FILE = "speed.json"
MIN_SHOWN_COMPILE_SECONDS = 1.0
"""Smallest extra time of the first step that is shown."""
NOISY_SHARE = 0.1
"""Share of the time without a CPU above which a warning is shown."""
_LEGEND = """  +     speedup over the row above; `all together` is relative to plain, `with` compares a variant with all
  -     all without this setting; the speed is what the setting contributes to all
  [ ]   interquartile range of the paired measurements
  memory  what the variant adds to data and process
  loss  largest relative difference of the loss from plain fp32 in the first 4 steps"""
_COMPILES = "  first step: extra time of the first step with an empty compile cache"
_TITLES = ("speed", "samples/s", "step ms", "memory", "loss off", "first step")
_PREFIXES = {"added": "+ ", "without": "- ", "against": "with "}


@dataclass(frozen=True)
class BenchRequest(MeasuringRequest):
    """Request of `drivetrain bench speed`."""

    against: Sequence[str] = ()
    """Settings of a job variant that is compared at the end."""


def bench_command(request: BenchRequest) -> str:
    """Return the command line that repeats the measurement."""
    arguments = ["drivetrain", "bench", "speed", str(request.spec)]
    for value in request.assignments:
        arguments += ["--set", value]
    for value in request.against:
        arguments += ["--against", value]
    return shlex.join(arguments)


def explain_ratios(ablation: Ablation) -> str:
    """Describe whether the product of the single speedups is the total speedup."""
    if ablation.total is None or ablation.total.pair is None:
        return "all optimizations are off in this plan, so there is nothing to compare"
    ratios = [f"{step.pair.median:.2f}" for step in ablation.list_steps("added") if step.pair]
    product = f"{' x '.join(ratios)} = {ablation.product:.2f}" if len(ratios) > 1 else ratios[0]
    comparison = f"{product}, measured {ablation.total.pair.format_spread()}"
    if ablation.explains_total is None:
        return f"too noisy to tell whether the single speedups explain the total: {comparison}"
    if ablation.explains_total:
        return f"the single speedups explain the total: {comparison}"
    return f"the single speedups do not explain the total, so the optimizations influence each other: {comparison}"


def describe_skipped(plan: Plan) -> str:
    """List the optimizations that are not measured because they are off in the plan, or fixed when a process starts."""
    measured = {row.name for row in plan.list_enabled()} | optimizations.list_process_settings()
    off = [f"{row.name} ({format_value(row.value)})" for row in plan.decisions if row.name not in measured]
    return f"not measured because off in this plan: {', '.join(off) or 'nothing'}; --set optimize.NAME=VALUE adds one"


def describe_noise(ablation: Ablation) -> list[str]:
    """Return a warning if other processes took CPUs away during the measurement."""
    waiting_shares = [step.disturbed for step in ablation.steps if step.disturbed is not None]
    disturbed = [share for share in waiting_shares if share > NOISY_SHARE]
    if not disturbed:
        return []
    return [
        f"warning: {len(disturbed)} of {len(waiting_shares)} comparisons were disturbed by other processes: threads waited for a CPU "
        f"for up to {max(disturbed):.0%} of the time. Rely only on the intervals, and repeat "
        "the measurement on a less busy machine"
    ]


def report(ablation: Ablation, plan: Plan, job: Job, machine: Hardware, command: str, folder: Path) -> None:
    """Write speed.json; print the table and its conclusions.

    Raises:
        StorageError: if it cannot be written.
    """
    with blame_storage(folder):
        write_json(folder / FILE, _list_results(ablation, plan, job, machine, command))
    screen = open_console()
    screen.print(Text(f"bench of {job.name} ({job.task})", style="bold"))
    screen.print(f"  machine  {describe_machine(machine)}")
    screen.print(ablation_table(ablation))
    compiled = any(_cells(step)["first step"] for step in ablation.steps)
    screen.print(_LEGEND, style="dim")
    if compiled:
        screen.print(_COMPILES, style="dim")
    for text in (explain_ratios(ablation), describe_skipped(plan), *describe_noise(ablation)):
        screen.print(text)
    screen.print(f"the numbers are in {folder / FILE}")


def ablation_table(ablation: Ablation) -> Table:
    """Build a table with one row per step and no empty columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), header_style="dim", show_edge=False)
    table.add_column("configuration", overflow="fold")
    cells = [_cells(step) for step in ablation.steps]
    titles = [title for title in _TITLES if any(row[title] for row in cells)]
    for title in titles:
        table.add_column(title, no_wrap=True, justify="right")
    for step, row in zip(ablation.steps, cells, strict=True):
        style = "bold" if step.kind in ("plain", "all") else ""
        table.add_row(_name(step), *(row[title] for title in titles), style=style)
        if step.note:
            table.add_row(Text(f"  {step.note}", style="yellow"))
    return table


def _name(step: AblationStep) -> str:
    shows_value = step.kind == "added" and step.value is not True
    value = f" {format_value(step.value)}" if shows_value and step.value is not None else ""
    return f"{_PREFIXES.get(step.kind, '')}{step.name}{value}"


def _cells(step: AblationStep) -> dict[str, str]:
    """Return the cells of a row, by column."""
    speed = "" if step.kind == "plain" else "not measured"
    compile_seconds = step.first_seconds or 0.0
    texts = [
        step.pair.format_spread() if step.pair else speed,
        "" if step.samples_per_second is None else format_ratio(step.samples_per_second),
        "" if step.step_seconds is None else format_ratio(step.step_seconds * 1000),
        "" if step.added_bytes is None else format_bytes(step.added_bytes),
        "" if step.loss_off is None else format_tick(float(f"{step.loss_off:.1e}")),
        "" if compile_seconds < MIN_SHOWN_COMPILE_SECONDS else f"+{compile_seconds:.0f} s",
    ]
    return dict(zip(_TITLES, texts, strict=True))


def format_ratio(value: float) -> str:
    """Format a value with three significant digits, or as a whole number from 100: 0.0123, 48.3, 1,860."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _list_results(ablation: Ablation, plan: Plan, job: Job, machine: Hardware, command: str) -> object:
    return {
        "job": job.name,
        "command": command,
        "date": evidence.format_date(),
        "machine": describe_machine(machine),
        "cpu": machine.cpu.model,
        "torch": machine.torch.version if machine.torch else None,
        "rungs": [step.to_json() for step in ablation.steps],
        "product": ablation.product,
        "explained": ablation.explains_total,
        "explanation": explain_ratios(ablation),
        "left_out": describe_skipped(plan),
        "warnings": describe_noise(ablation),
    }


def bench(request: BenchRequest) -> int:
    """Measure, write and print the ablation; returns the exit code.

    Raises:
        DrivetrainError: if a problem is found before the measurement starts.
    """
    if request.against:
        SpecSource(request.spec, [*request.assignments, *request.against]).load()
    return request.measure({"against": list(request.against), "command": bench_command(request)})
