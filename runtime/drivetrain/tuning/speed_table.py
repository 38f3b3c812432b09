"""Writes and prints the result of `drivetrain bench speed`: one row per comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from drivetrain import optimizations
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.optimizations import Value
from drivetrain.plan import evidence
from drivetrain.plan.plan import Plan, format_value
from drivetrain.plan.plan_table import describe_machine
from drivetrain.report.formatting import format_tick
from drivetrain.system.console import open_console
from drivetrain.system.files import blame_storage, write_json
from drivetrain.system.units import format_bytes
from drivetrain.tuning.paired_timing import PairedTiming

FILE = "speed.json"
MIN_SHOWN_COMPILE_SECONDS = 1.0
"""Smallest extra time of the first step that is shown."""
_LEGEND = """  +     speedup over the row above; `all together` is relative to plain, `with` compares a variant with all
  -     all without this setting; the speed is what the setting contributes to all
  [ ]   interquartile range of the paired measurements
  memory  what the variant adds to data and process
  loss  largest relative difference of the loss from plain fp32 in the first 4 steps"""
_COMPILES = "  first step: extra time of the first step with an empty compile cache"
_TITLES = ("speed", "samples/s", "step ms", "memory", "loss off", "first step")
_PREFIXES = {"added": "+ ", "without": "- ", "against": "with "}


@dataclass(frozen=True)
class AblationStep:
    """One comparison. A failed comparison has a note and no pair."""

    kind: str
    """`plain`; `added`, compared with the step above; `all`, compared with plain; `without`, compared with all; `against`,
    a variant of the job compared with all.
    """
    name: str
    value: Value | None = None
    pair: PairedTiming | None = None
    samples_per_second: float | None = None
    step_seconds: float | None = None
    added_bytes: int | None = None
    """Bytes that the variant adds to the process."""
    loss_off: float | None = None
    """Largest relative difference of the first losses from plain fp32 on the same batches."""
    first_seconds: float | None = None
    """Extra seconds of the first steps, such as for compiling."""
    note: str = ""

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        ratio = None
        if self.pair:
            low, high = self.pair.interquartile_range()
            ratio = {"median": self.pair.median, "low": low, "high": high, "pairs": list(self.pair.ratios)}
        return {**vars(self), "pair": ratio}


def describe_skipped(plan: Plan) -> str:
    """List the optimizations that are not measured because they are off in the plan, or fixed when a process starts."""
    measured = {row.name for row in plan.list_enabled()} | optimizations.list_process_settings()
    off = [f"{row.name} ({format_value(row.value)})" for row in plan.decisions if row.name not in measured]
    return f"not measured because off in this plan: {', '.join(off) or 'nothing'}; --set optimize.NAME=VALUE adds one"


def report(steps: Sequence[AblationStep], plan: Plan, job: Job, machine: Hardware, folder: Path) -> None:
    """Write speed.json, and print the table.

    Raises:
        StorageError: if it cannot be written.
    """
    results = {
        "job": job.name,
        "date": evidence.format_date(),
        "machine": describe_machine(machine),
        "torch": machine.torch.version if machine.torch else None,
        "steps": [step.to_json() for step in steps],
    }
    with blame_storage(folder):
        write_json(folder / FILE, results)
    screen = open_console()
    screen.print(Text(f"bench of {job.name} ({job.task})", style="bold"))
    screen.print(f"  machine  {describe_machine(machine)}")
    screen.print(ablation_table(steps))
    compiled = any(_cells(step)["first step"] for step in steps)
    screen.print(_LEGEND, style="dim")
    if compiled:
        screen.print(_COMPILES, style="dim")
    screen.print(describe_skipped(plan))
    screen.print(f"the numbers are in {folder / FILE}")


def ablation_table(steps: Sequence[AblationStep]) -> Table:
    """Build a table with one row per step and no empty columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), header_style="dim", show_edge=False)
    table.add_column("configuration", overflow="fold")
    cells = [_cells(step) for step in steps]
    titles = [title for title in _TITLES if any(row[title] for row in cells)]
    for title in titles:
        table.add_column(title, no_wrap=True, justify="right")
    for step, row in zip(steps, cells, strict=True):
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
