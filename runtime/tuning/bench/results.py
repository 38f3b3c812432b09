"""The results of an ablation as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rich.table import Table
from rich.text import Text

from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.plan.plan import Plan, written
from runtime.plan.plan_table import machine as machine_line
from runtime.report.formatting import tick
from runtime.system.console import console, say_json
from runtime.system.files import storage_error, write_json
from runtime.system.units import format_bytes
from runtime.tuning.bench.ablation import Ablation, AblationStep

COMPILED = 1.0
"""Seconds; a longer first step is worth mentioning."""
RESTLESS = 0.1
"""Share of the time without a CPU from which on a warning is shown."""
_LEGEND = """  +     speedup over the row above; `all together` is relative to plain, `with` compares a variant with all
  -     all without this setting; the speed is what the setting contributes to all
  [ ]   interquartile range of the paired measurements
  loss  largest relative difference of the loss from plain fp32 in the first 4 steps"""
_COMPILES = "  first step: extra time of the first step with an empty compile cache"
_TITLES = ("speed", "samples/s", "step ms", "memory", "loss off", "first step")
_KINDS = {"added": "+ ", "without": "- ", "against": "with "}


class BenchOptions(Protocol):
    """The command's options."""

    @property
    def spec(self) -> Path:
        """The job."""
        ...

    @property
    def assignments(self) -> Sequence[str]:
        """Values that override the job."""
        ...

    @property
    def against(self) -> Sequence[str]:
        """Settings of the variant of the job."""
        ...

    @property
    def rounds(self) -> int:
        """Pairs of each comparison."""
        ...


def command(asked: BenchOptions) -> str:
    """The command line that repeats the measurement."""
    words = ["drivetrain", "bench", str(asked.spec)]
    words += [word for value in asked.assignments for word in ("--set", value)]
    words += [word for value in asked.against for word in ("--against", value)]
    return shlex.join([*words, *(["--rounds", str(asked.rounds)] if asked.rounds != 8 else [])])


def explanation(ladder: Ablation) -> str:
    """Whether the single steps explain the total."""
    if ladder.total is None or ladder.total.pair is None:
        return "all optimizations are off in this plan, so there is nothing to compare"
    ratios = [f"{rung.pair.median:.2f}" for rung in ladder.of("added") if rung.pair]
    product = f"{' x '.join(ratios)} = {ladder.product:.2f}" if len(ratios) > 1 else ratios[0]
    both = f"{product}, measured {ladder.total.pair.spread()}"
    if ladder.explained is None:
        return f"too noisy to tell whether the single speedups explain the total: {both}"
    if ladder.explained:
        return f"the single speedups explain the total: {both}"
    return f"the single speedups do not explain the total, so the optimizations influence each other: {both}"


def left_out(plan: Plan) -> str:
    """What is off in the plan, and so not measured."""
    on = {row.name for row in plan.enabled()}
    off = [f"{row.name} ({written(row.value)})" for row in plan.decisions if row.name not in on]
    return f"not measured because off in this plan: {', '.join(off) or 'nothing'}; --set optimize.NAME=VALUE adds one"


def restless(ladder: Ablation) -> list[str]:
    """A warning if other processes took CPUs away during the measurement."""
    waited = [rung.disturbed for rung in ladder.rungs if rung.disturbed is not None]
    busy = [share for share in waited if share > RESTLESS]
    if not busy:
        return []
    return [
        f"warning: {len(busy)} of {len(waited)} comparisons were disturbed by other processes: threads waited for a CPU "
        f"for up to {max(busy):.0%} of the time. Rely only on the intervals, and repeat "
        "the measurement on a less busy machine or with more --rounds"
    ]


def write(ladder: Ablation, plan: Plan, job: Job, machine: Hardware, asked: BenchOptions, folder: Path) -> None:
    """Write bench.json and bench.png.

    Raises:
        StorageError: if they cannot be written.
    """
    from runtime.report.render import png

    try:
        write_json(folder / "bench.json", _data(ladder, plan, job, machine, asked))
        png.ladder(_bars(ladder), f"{job.name}: {machine_line(machine)}", folder / "bench.png")
    except OSError as error:
        raise storage_error(folder, error) from None


def printed(ladder: Ablation, plan: Plan, job: Job, machine: Hardware, folder: Path, *, as_json: bool) -> None:
    """Print the table with its conclusions, or the JSON."""
    if as_json:
        say_json(json.loads((folder / "bench.json").read_text(encoding="utf-8")))
        return
    screen = console()
    screen.print(Text(f"bench of {job.name} ({job.task})", style="bold"))
    screen.print(f"  machine  {machine_line(machine)}")
    screen.print(table(ladder))
    compiled = any(_cells(rung)["first step"] for rung in ladder.rungs)
    for text in (_LEGEND, _COMPILES) if compiled else (_LEGEND,):
        screen.print(text, style="dim")
    for text in (explanation(ladder), left_out(plan), *restless(ladder)):
        screen.print(text)
    screen.print(f"plot and numbers are in {folder}")


def table(ladder: Ablation) -> Table:
    """One row per step, without empty columns."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), header_style="dim", show_edge=False)
    made.add_column("configuration", overflow="fold")
    cells = [_cells(rung) for rung in ladder.rungs]
    used = [title for title in _TITLES if any(row[title] for row in cells)]
    for title in used:
        made.add_column(title, no_wrap=True, justify="right")
    for rung, row in zip(ladder.rungs, cells, strict=True):
        style = "bold" if rung.kind in ("plain", "all") else ""
        made.add_row(_name(rung), *(row[title] for title in used), style=style)
        if rung.note:
            made.add_row(Text(f"  {rung.note}", style="yellow"))
    return made


def _name(rung: AblationStep) -> str:
    tell = rung.kind == "added" and rung.value is not True
    value = f" {written(rung.value)}" if tell and rung.value is not None else ""
    return f"{_KINDS.get(rung.kind, '')}{rung.name}{value}"


def _cells(rung: AblationStep) -> dict[str, str]:
    """The cells of a row, by column."""
    first = rung.first_seconds
    texts = [
        rung.pair.spread() if rung.pair else "" if rung.kind == "plain" else "not measured",
        "" if rung.samples_per_second is None else figure(rung.samples_per_second),
        "" if rung.step_seconds is None else figure(rung.step_seconds * 1000),
        "" if rung.peak is None else format_bytes(rung.peak),
        "" if rung.loss_off is None else tick(float(f"{rung.loss_off:.1e}")),
        "" if first is None or first < COMPILED else f"+{first:.0f} s",
    ]
    return dict(zip(_TITLES, texts, strict=True))


def figure(value: float) -> str:
    """Three significant digits, whole numbers in full: 0.0123, 48.3, 1,860."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bars(ladder: Ablation) -> list[tuple[str, float, float, float, str]]:
    """Rows of the picture: name, median, low, high, kind."""
    return [(_name(rung), rung.pair.median, *rung.pair.middle(), rung.kind) for rung in ladder.rungs if rung.pair]


def _data(ladder: Ablation, plan: Plan, job: Job, machine: Hardware, asked: BenchOptions) -> dict[str, object]:
    return {
        "job": job.name,
        "command": command(asked),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine_line(machine),
        "cpu": machine.cpu.model,
        "torch": machine.torch.version if machine.torch else None,
        "rungs": [rung.to_json() for rung in ladder.rungs],
        "product": ladder.product,
        "explained": ladder.explained,
        "explanation": explanation(ladder),
        "left_out": left_out(plan),
        "warnings": restless(ladder),
    }
