"""The plan as a table: a pleasure on a terminal of 100 columns, plain lines in a log."""

from __future__ import annotations

import os
import sys
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runtime import optimizations
from runtime.hardware import Hardware, size
from runtime.job import Job
from runtime.plan import Plan, written


def console(file: IO[str] | None = None) -> Console:
    """Our console: colours on a terminal only, 100 columns and no control characters elsewhere."""
    stream = file or sys.stdout
    terminal = stream.isatty() and not os.environ.get("NO_COLOR")
    width = None if stream.isatty() else 100
    return Console(file=stream, width=width, force_terminal=terminal, highlight=False, emoji=False, markup=False)


def machine(hardware: Hardware) -> str:
    """One line: what this container may use."""
    memory = hardware.memory
    parts = [
        f"{hardware.cpu.budget} of {hardware.cpu.host} CPUs",
        f"{size(memory.limit)} limit of {size(memory.host)}" if memory.limit else f"{size(memory.host)}, no limit",
    ]
    parts += [f"{gpu.name} {size(gpu.memory)}" for gpu in hardware.gpus]
    return f"{hardware.place}: {', '.join(parts)}"


def render(plan: Plan, job: Job, hardware: Hardware) -> RenderableType:
    """The whole plan: machine, decisions, notes."""
    head = Text(f"plan for {job.name} ({job.task})\n", style="bold")
    head.append(f"  machine  {machine(hardware)}\n", style="not bold")
    head.append(f"  profile  {plan.profile}\n  image    {plan.image or 'none'}: {plan.image_reason}", style="not bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim", show_edge=False)
    for title in ("decision", "value", "source", "effect", "reason"):
        table.add_column(title, no_wrap=title != "reason", overflow="fold")
    off = {o.name: o.off for o in optimizations.every()}
    for row in plan.decisions:
        value = written(row.value) + (" ?" if row.provisional else "")
        reason = f"{row.reason} [{row.evidence}]" if row.evidence else row.reason
        style = "dim" if row.value == off[row.name] else ""
        table.add_row(row.name, value, row.source, row.effect, reason, style=style)
    parts: list[RenderableType] = [head, table]
    if any(row.provisional for row in plan.decisions):
        parts.append(Text("  ? settled when model and data are known", style="dim"))
    parts += [Text(f"  note     {note}", style="yellow") for note in plan.notes]
    return Group(*parts)
