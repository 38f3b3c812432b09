"""Renders the plan for terminals of any width and for logs.

It is shown once; after that, in a resumed run, a notebook, a sweep or a repeat, only the changes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from drivetrain import optimizations
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.plan.plan import Decision, Plan, format_value, load
from drivetrain.system.console import is_verbose, open_console
from drivetrain.system.units import format_bytes

WIDE_COLUMNS = 96
"""Columns from which on the reasons have a column of their own."""


def describe_machine(hardware: Hardware) -> str:
    """Describe the resources of this container in one line."""
    memory = hardware.memory
    resources = [
        f"{hardware.cpu.budget} of {hardware.cpu.host} CPUs",
        f"{format_bytes(memory.limit)} limit of {format_bytes(memory.host)}"
        if memory.limit
        else f"{format_bytes(memory.host)}, no limit",
    ]
    resources += [f"{gpu.name} {format_bytes(gpu.memory)}" for gpu in hardware.gpus]
    return f"{hardware.place}: {', '.join(resources)}"


def render(plan: Plan, job: Job, hardware: Hardware) -> RenderableType:
    """Show machine, notes, and the decisions of a plan that apply to this machine and job."""
    idle = _list_idle(plan, job, hardware)
    lines: list[RenderableType] = [_render_head(plan, job, hardware)]
    rows = [row for row in plan.decisions if row.name not in idle]
    lines.append(_DecisionTable(rows))
    if any(row.provisional for row in rows):
        lines.append(Text("  ? provisional: decided again once the model and data are loaded", style="dim"))
    if idle:
        counts = ", ".join(f"{condition}: {count}" for condition, count in Counter(idle.values()).items())
        # A line of its own: a command that a terminal breaks cannot be copied.
        lines.append(Text(f"  {len(idle)} settings do not apply ({counts})", style="dim"))
        lines.append(Text("  `drivetrain plan JOB --json` lists them", style="dim"))
    return Group(*lines, *_render_notes(plan.notes))


def render_summary(plan: Plan, job: Job, hardware: Hardware) -> RenderableType:
    """Show how many settings apply to this machine and job, their sources, and the notes."""
    idle = _list_idle(plan, job, hardware)
    rows = [row for row in plan.decisions if row.name not in idle]
    sources = ", ".join(f"{count} {source}" for source, count in Counter(row.source for row in rows).items())
    head = Text(f"plan for {job.name} ({job.task}): ", style="bold")
    head.append(f"{describe_machine(hardware)}; image {plan.image or 'none'}\n", style="not bold")
    head.append(f"  {len(rows)} settings ({sources}); -v lists them, the report explains them", style="not bold")
    return Group(head, *_render_notes(plan.notes))


def render_changes(plan: Plan, earlier_plan: Plan, file: Path, job: Job, hardware: Hardware) -> RenderableType:
    """Show the differences from an `earlier_plan` that is stored in `file`; one line if there are none."""
    old_values = earlier_plan.values()
    rows = [row for row in plan.decisions if row.name not in old_values or row.value != old_values[row.name]]
    head = Text(f"plan for {job.name} ({job.task}): ", style="bold")
    count = f"{len(rows)} of {len(plan.decisions)} settings differ from" if rows else "unchanged from"
    head.append(f"{count} {file}\n  machine  {describe_machine(hardware)}", style="not bold")
    new_notes = [note for note in plan.notes if note not in earlier_plan.notes]
    return Group(head, *([_DecisionTable(rows)] if rows else []), *_render_notes(new_notes))


def _list_idle(plan: Plan, job: Job, hardware: Hardware) -> dict[str, str]:
    """List the decisions that do not apply, each with its missing condition."""
    conditions = {o.name: (o.off, o.lacks(job, hardware)) for o in optimizations.every()}
    rows = [(row, *conditions[row.name]) for row in plan.decisions if row.source != "job"]
    return {row.name: lacking for row, off, lacking in rows if lacking and row.value == off}


def _render_head(plan: Plan, job: Job, hardware: Hardware) -> Text:
    head = Text(f"plan for {job.name} ({job.task})\n", style="bold")
    head.append(f"  machine  {describe_machine(hardware)}\n", style="not bold")
    head.append(f"  profile  {plan.profile}\n  image    {plan.image or 'none'}: {plan.image_reason}", style="not bold")
    return head


@dataclass(frozen=True)
class _DecisionTable:
    """The decisions as a table; in a terminal too narrow for it, each reason follows its decision."""

    decisions: Sequence[Decision]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= WIDE_COLUMNS:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim", show_edge=False)
            for title in ("setting", "value", "source", "effect", "reason"):
                table.add_column(title, no_wrap=title != "reason", overflow="fold")
            for row in self.decisions:
                table.add_row(*_list_cells(row), _format_reason(row), style=_choose_style(row))
            yield table
            return
        for row in self.decisions:
            setting, value, source, effect = _list_cells(row)
            yield Text(f"{setting}: {value} ({source}, {effect})", style=_choose_style(row))
            yield Padding(Text(_format_reason(row), style=_choose_style(row)), (0, 0, 0, 4))


def _list_cells(row: Decision) -> tuple[str, str, str, str]:
    value = format_value(row.value) + (" ?" if row.provisional else "")
    return row.name, value, row.source, row.effect


def _format_reason(row: Decision) -> str:
    return f"{row.reason} [{row.evidence}]" if row.evidence else row.reason


def _choose_style(row: Decision) -> str:
    return "dim" if row.value == optimizations.off_values()[row.name] else ""


def _render_notes(notes: Iterable[str]) -> Iterator[Text]:
    return (Text(f"  note     {note}", style="yellow") for note in notes)


SHOWN_PLAN = "DRIVETRAIN_SHOWN_PLAN"
"""Names the plan that a sweep has shown to the processes of its later trials."""

_last: dict[str, tuple[Plan, Path]] = {}
"""The plan last shown in this process and its file, by job name."""


def show(
    plan: Plan, job: Job, machine: Hardware, file: Path, stored: Plan | None, shown_plan: Path | None = None
) -> None:
    """Print a summary of the plan, the whole plan with -v, or only its differences from a plan that was shown earlier.

    Args:
        file: where the plan of this run is stored.
        stored: the plan of the run when it was resumed; None for a new run.
        shown_plan: the plan of another run that the same command has shown.
    """
    earlier = (stored, file) if stored else _last.get(job.name)
    if earlier is None and shown_plan and shown_plan.exists():
        earlier = load(shown_plan), shown_plan
    if earlier:
        open_console().print(render_changes(plan, *earlier, job, machine))
    else:
        open_console().print(render(plan, job, machine) if is_verbose() else render_summary(plan, job, machine))
    _last[job.name] = plan, file
