"""Renders a run as a dashboard of 60 to 100 columns, or as a single line."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from drivetrain.job.formatting import format_metric
from drivetrain.system.units import format_bytes
from drivetrain.tracking.live.run_reader import RunView
from drivetrain.tracking.live.sparkline import Sparkline
from drivetrain.tracking.live.time_left import format_clock_time

MAX_COLUMNS = 100
"""Columns; longer lines are hard to read."""
CROWDED_SHARE = 0.1
"""Share of the CPUs used by others from which on it is shown."""
MAX_HEAD_ROWS = 6
"""Largest number of rows for scores of heads."""
_STYLES = {"running": "green", "done": "green", "stopped": "yellow", "failed": "red"}
_Row = tuple[RenderableType, ...]
"""Name, value, shape and remark; those at the end may be missing."""


def render(view: RunView, width: int) -> RenderableType:
    """Draw the dashboard for a terminal of `width` columns."""
    title = Text(view.job, style="bold").append(f"  {view.task}  {view.folder}", style="not bold dim")
    status = Text(f"{view.status} {format_clock_time(view.elapsed)}", style=_STYLES.get(view.status, ""))
    share = 1.0 if view.status == "done" else min(1.0, view.step / view.total) if view.total else 0.0
    end = format_time_left(view.seconds_left, view.at_most) if view.status == "running" else f"{share:.0%}"
    step = f"step {view.step:,}" + (f" of {view.total:,}" if view.total else "")
    epoch = Text(f"{view.epoch} of {view.epochs or '?'}", style="bold")
    rows: tuple[RenderableType, ...] = (
        _make_grid([(title, status)], ratios=(1, 0)),
        _make_grid([("plan", Text(" · ".join(view.plan) or "all optimizations off", style="dim"))], ratios=(0, 1)),
        "",
        _make_grid([("epoch", epoch, step, _draw_meter(share), Text(end, style="bold"))], ratios=(0, 0, 0, 1, 0)),
        _make_grid([*_list_scores(view), *_list_sensors(view)], ratios=(0, 0, 2, 3)),
        *(Text(event, style="yellow", no_wrap=True, overflow="ellipsis") for event in view.events),
    )
    return Constrain(Group(*rows), min(width, MAX_COLUMNS))


def format_line(view: RunView) -> str:
    """Format the state of the run in a single line."""
    remaining = "" if view.status != "running" else f"  {format_time_left(view.seconds_left, view.at_most)}"
    total = f"/{view.total}" if view.total else ""
    loss = "" if view.loss.last is None else f"  loss {format_metric(view.loss.last)}"
    speed = "" if view.speed.last is None else f"  {view.speed.last:.0f} samples/s"
    return f"epoch {view.epoch}/{view.epochs or '?'}  step {view.step}{total}{loss}{speed}{remaining}"


def format_time_left(seconds: float | None, at_most: bool) -> str:
    """Format the time left: `1:20 left`, with `at most` if the training may end earlier."""
    if seconds is None:
        return "estimating time left"
    return f"{'at most ' if at_most else ''}{format_clock_time(seconds)} left"


def _make_grid(rows: list[_Row], ratios: tuple[int, ...]) -> Table:
    """Make a grid; columns with a ratio share the free width, and names have ten characters."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for index, ratio in enumerate(ratios):
        is_name = index == 0 and not ratio
        grid.add_column(
            ratio=ratio or None,
            no_wrap=True,
            overflow="ellipsis",
            style="dim" if is_name else "",
            width=10 * is_name or None,
        )
    for row in rows:
        grid.add_row(*row)
    return grid


def _draw_meter(share: float) -> ProgressBar:
    return ProgressBar(1.0, share, complete_style="cyan", finished_style="cyan")


def _remark(text: str, *, warn: bool = False) -> Text:
    return Text(text, style="yellow" if warn else "dim")


def _list_scores(view: RunView) -> Iterator[_Row]:
    yield "loss", _format(view.loss.last), view.loss, _remark(_format_first(view.loss))
    head, _, kind = view.score_name.partition("/")[2].rpartition("/")
    if view.score.last is not None:
        best = f"best {_format(view.best[0])}, epoch {view.best[1]}" if view.best else ""
        name, start = (head, f"{kind} ") if head else ("validation", "loss ") if kind == "loss" else (kind, "")
        yield Text(name), start + _format(view.score.last), view.score, _remark(best)
    other_heads = [(name, score) for name, score in view.heads.items() if name != head]
    for name, (kind_of_head, curve) in other_heads[:MAX_HEAD_ROWS]:
        yield Text(name), f"{kind_of_head} {_format(curve.last)}", curve, _remark(_format_first(curve))
    if len(other_heads) > MAX_HEAD_ROWS:
        yield "", _remark(f"and {len(other_heads) - MAX_HEAD_ROWS} more heads")


def _list_sensors(view: RunView) -> Iterator[_Row]:
    sample = view.sample
    if view.speed.last is not None:
        wait = sample.get("input_wait")
        remark = "" if wait is None else f"input wait {wait:.0%}"
        yield "speed", f"{view.speed.last:,.0f} samples/s", view.speed, _remark(remark, warn=(wait or 0) > 0.1)
    if sample.get("cpu_percent") is not None:
        busy, allowed = sample["cpu_percent"] / 100, view.cpus
        text = f"{busy:.1f} of {allowed:g} busy" if allowed else f"{busy:.1f} busy"
        crowded = f"others use {view.crowded:.0%}" if view.crowded > CROWDED_SHARE else ""
        warning = f"throttled {view.throttled:.0%}" if view.throttled > 0.005 else crowded
        yield "CPU", text, _draw_meter(busy / allowed if allowed else 0.0), _remark(warning, warn=True)
    used = sample.get("memory_used") or sample.get("process_memory")
    yield from _list_memory("memory", used, sample.get("memory_limit"))
    if sample.get("gpu_percent") is not None:
        heat, busy = sample.get("gpu_temperature"), sample["gpu_percent"] / 100
        remark = "" if heat is None else f"{heat:.0f} °C"
        yield "GPU", f"{busy:.0%} busy", _draw_meter(busy), _remark(remark, warn=(heat or 0) >= 80)
    yield from _list_memory("GPU memory", sample.get("gpu_memory"), sample.get("gpu_memory_limit"))


def _list_memory(label: str, used: float | None, limit: float | None) -> Iterator[_Row]:
    if used is not None and limit:
        share, value = used / limit, f"{format_bytes(int(used))} of {format_bytes(int(limit))}"
        yield label, value, _draw_meter(share), _remark(f"{share:.0%}", warn=share > 0.9)
    elif used is not None:
        yield label, format_bytes(int(used)), "", _remark("no limit")


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.4f}"


def _format_first(curve: Sparkline) -> str:
    has_history = curve.first is not None and curve.stride * len(curve.means) > 1
    return f"from {_format(curve.first)}" if has_history else ""
