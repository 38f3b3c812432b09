"""Renders the state of a run as a dashboard of 60 to 100 columns, or as a single line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from drivetrain.job.formatting import format_metric
from drivetrain.system.units import format_bytes
from drivetrain.tracking.live.run_reader import RunView
from drivetrain.tracking.live.sparkline import Sparkline
from drivetrain.tracking.live.time_left import format_clock_time
from drivetrain.tracking.rank_record import RankRecord, find_slowest

MAX_COLUMNS = 100
"""Columns; longer lines are hard to read."""
CROWDED_SHARE = 0.1
"""Share of the CPUs used by others from which on it is shown."""
MAX_HEAD_ROWS = 6
"""Largest number of rows for scores of heads."""
MAX_PROCESS_ROWS = 8
"""Largest number of rows for processes."""
_LABEL, _VALUE = 11, 21
_STYLES = {"running": "green", "done": "green", "stopped": "yellow", "failed": "red"}


def render(view: RunView, width: int) -> RenderableType:
    """Render the dashboard.

    Args:
        view: the state of the run.
        width: columns of the terminal.
    """
    width = min(width, MAX_COLUMNS)
    plan = Text(f"{'plan':<{_LABEL}}{' · '.join(view.plan) or 'all optimizations off'}", style="dim")
    rows = [_render_title(view, width), plan, Text(), *_render_rows(view, width)]
    rows += [Text(f"{event}", style="yellow") for event in view.events]
    for row in rows:
        row.no_wrap, row.overflow = True, "ellipsis"
        row.truncate(width, overflow="ellipsis")
    return Group(*rows)


def format_line(view: RunView) -> str:
    """The state of the run in a single line."""
    remaining = "" if view.status != "running" else f"  {format_time_left(view.seconds_left, view.at_most)}"
    total = f"/{view.total}" if view.total else ""
    loss = "" if view.loss.last is None else f"  loss {format_metric(view.loss.last)}"
    speed = "" if view.speed.last is None else f"  {view.speed.last:.0f} samples/s"
    last = find_slowest(view.ranks)
    slow = f"  slowest: rank {last.rank} on {last.node}" if last else ""
    return f"epoch {view.epoch}/{view.epochs or '?'}  step {view.step}{total}{loss}{speed}{remaining}{slow}"


def format_time_left(seconds: float | None, at_most: bool) -> str:
    """`1:20 left`; with `at most` if the training may end earlier."""
    if seconds is None:
        return "estimating time left"
    return f"{'at most ' if at_most else ''}{format_clock_time(seconds)} left"


def _render_title(view: RunView, width: int) -> Text:
    right = f"{view.status} {format_clock_time(view.elapsed)}"
    text = Text(view.job, style="bold")
    text.append(f"  {view.task}  {view.folder}", style="not bold dim")
    text.truncate(max(0, width - len(right) - 2), overflow="ellipsis", pad=True)
    text.append(f"  {right}", style=f"not bold {_STYLES.get(view.status, '')}".strip())
    return text


def _render_rows(view: RunView, width: int) -> list[Text]:
    shape = max(8, min(28, width - _LABEL - _VALUE - 25))
    rows = [
        _render_progress(view, width),
        _row("loss", _format(view.loss.last), view.loss.draw(shape), _format_first(view.loss), shape),
    ]
    head, _, kind = view.metric.partition("/")[2].rpartition("/")
    if view.score.last is not None:
        best = f"best {_format(view.best[0])}, epoch {view.best[1]}" if view.best else ""
        name, start = (head, f"{kind} ") if head else ("validation", "loss ") if kind == "loss" else (kind, "")
        rows.append(_row(name, start + _format(view.score.last), view.score.draw(shape), best, shape))
    other_heads = [(name, score) for name, score in view.heads.items() if name != head]
    rows += [
        _row(name, f"{of} {_format(curve.last)}", curve.draw(shape), _format_first(curve), shape)
        for name, (of, curve) in other_heads[:MAX_HEAD_ROWS]
    ]
    if len(other_heads) > MAX_HEAD_ROWS:
        rows.append(Text(f"{'':<{_LABEL}}and {len(other_heads) - MAX_HEAD_ROWS} more heads", style="dim"))
    return [*rows, *_render_sensors(view, shape), *_render_ranks(view.ranks, shape)]


def _render_progress(view: RunView, width: int) -> Text:
    """Epoch, step, a progress bar that fills the width, and the time left."""
    share = 1.0 if view.status == "done" else min(1.0, view.step / view.total) if view.total else 0.0
    text = Text(f"{'epoch':<{_LABEL}}", style="dim")
    text.append(f"{view.epoch} of {view.epochs or '?'}".ljust(8) + "  ", style="not dim bold")
    text.append(f"step {view.step:,}" + (f" of {view.total:,}  " if view.total else "  "), style="not dim")
    end = format_time_left(view.seconds_left, view.at_most) if view.status == "running" else f"{share:.0%}"
    room = max(4, width - len(text) - len(end) - 2)
    full = int(room * share)
    text.append("━" * full, style="not dim cyan")
    text.append("━" * (room - full), style="dim")
    text.append(f"  {end}", style="not dim bold")
    return text


def _render_sensors(view: RunView, shape: int) -> list[Text]:
    sample, rows = view.sample, []
    if view.speed.last is not None:
        wait = sample.get("input_wait")
        remark = "" if wait is None else f"input wait {wait:.0%}"
        value = f"{view.speed.last:,.0f} samples/s"
        rows.append(_row("speed", value, view.speed.draw(shape), remark, shape, warn=(wait or 0) > 0.1))
    if sample.get("cpu_percent") is not None:
        busy, allowed = sample["cpu_percent"] / 100, view.cpus
        text = f"{busy:.1f} of {allowed:g} busy" if allowed else f"{busy:.1f} busy"
        crowded = f"others use {view.crowded:.0%}" if view.crowded > CROWDED_SHARE else ""
        warning = f"throttled {view.throttled:.0%}" if view.throttled > 0.005 else crowded
        rows.append(
            _row("CPU", text, _meter(busy / allowed if allowed else 0, shape), warning, shape, warn=bool(warning))
        )
    used = sample.get("memory_used") or sample.get("process_memory")
    rows += _render_memory("memory", used, sample.get("memory_limit"), shape)
    if sample.get("gpu_percent") is not None:
        heat = sample.get("gpu_temperature")
        remark = "" if heat is None else f"{heat:.0f} °C"
        busy = sample["gpu_percent"] / 100
        rows.append(_row("GPU", f"{busy:.0%} busy", _meter(busy, shape), remark, shape, warn=(heat or 0) >= 80))
    return rows + _render_memory("GPU memory", sample.get("gpu_memory"), sample.get("gpu_memory_limit"), shape)


def _render_memory(label: str, used: float | None, limit: float | None, shape: int) -> list[Text]:
    if used is None:
        return []
    if not limit:
        return [_row(label, format_bytes(int(used)), "", "no limit", shape)]
    share, value = used / limit, f"{format_bytes(int(used))} of {format_bytes(int(limit))}"
    return [_row(label, value, _meter(share, shape), f"{share:.0%}", shape, warn=share > 0.9)]


def _render_ranks(records: Sequence[RankRecord], shape: int) -> list[Text]:
    """A row for each process, for the slowest ones if there are many: its own speed, and what it waits for."""
    if len(records) < 2:
        return []
    last = find_slowest(records)
    listed = (
        records
        if len(records) <= MAX_PROCESS_ROWS
        else sorted(records, key=lambda record: record.speed)[:MAX_PROCESS_ROWS]
    )
    rows = []
    for record in listed:
        waits = f"waits {record.share(record.data):.0%} data, {record.share(record.others):.0%} others"
        remark = f"{'slowest, ' if record is last else ''}{waits}, {format_bytes(record.memory)}, {record.node}"
        busy = _meter(record.share(record.computing), shape)
        rows.append(
            _row(f"rank {record.rank}", f"{record.speed:,.0f} samples/s", busy, remark, shape, warn=record is last)
        )
    if len(records) > MAX_PROCESS_ROWS:
        rows.append(Text(f"{'':<{_LABEL}}the slowest of {len(records)} processes", style="dim"))
    return rows


def _row(label: str, value: str, shape: str, remark: str, width: int, *, warn: bool = False) -> Text:
    name = label if len(label) < _LABEL else f"{label[: _LABEL - 2]}…"
    text = Text(f"{name:<{_LABEL}}", style="dim")
    text.append(f"{value:<{_VALUE - 1}} ", style="not dim")
    text.append(f"{shape:<{width}}  ", style="not dim cyan")
    text.append(remark, style="not dim yellow" if warn else "dim")
    return text


def _meter(share: float, width: int) -> str:
    full = min(width, round(width * share))
    return "━" * full + "·" * (width - full)


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.4f}"


def _format_first(curve: Sparkline) -> str:
    has_history = curve.first is not None and curve.stride * len(curve.means) > 1
    return f"from {_format(curve.first)}" if has_history else ""
