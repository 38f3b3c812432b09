"""Handles a process that died of a signal inside a kernel: reports where, and retries once with optimizations off."""

from __future__ import annotations

import contextlib
import faulthandler
import re
from dataclasses import replace
from pathlib import Path

from drivetrain import optimizations
from drivetrain.errors import DeviceError
from drivetrain.optimizations import Effect
from drivetrain.plan.plan import Decision, Plan, format_value
from drivetrain.system.signals import CRASH_EXIT_CODES

FILE = "crash.txt"
"""In the run folder: the Python traceback of a process that died."""
LIMITING = frozenset(
    ("cpu_threads", "allocator_segments", "loader_workers", "decode_cache", "micro_batch", "gradient_checkpointing")
)
"""These stay on: they keep a run within its CPUs and memory."""
SUSPECTS = ("compile", "channels_last", "precision", "openmp_runtime", "allocator", "unpadding", "fused_optimizer")
"""Optimizations that use the least tested kernels come first."""


def log_crashes(run: Path) -> None:
    """From now on, write the Python traceback to the run folder if this process dies of a signal."""
    with contextlib.suppress(OSError):
        # Kept open for the life of the process, because a signal handler cannot open files.
        faulthandler.enable((run / FILE).open("w", encoding="utf-8"))


def remove_empty_logs(run: Path) -> None:
    """Remove the empty files of processes that did not die."""
    for path in _list_logs(run):
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()


def describe(run: Path, code: int, who: str = "the trainer") -> str:
    """Such as `the trainer crashed with SIGSEGV inside a kernel, at conv.py:549 in _conv_forward`."""
    line = next(filter(None, map(_find_crashed_line, _list_logs(run))), "")
    return f"{who} crashed with {CRASH_EXIT_CODES[code]} inside a kernel" + (f", at {line}" if line else "")


def turn_optimizations_off(plan: Plan, reason: str) -> Plan | None:
    """The plan without the optimizations whose absence leaves the training the same; None if none of them is on."""
    off_values = optimizations.off_values()
    rows = [
        replace(
            row.learn(off_values[row.name], "crash", f"{reason}, with {format_value(row.value)}"),
            effect=str(Effect.EXACT),
        )
        for row in _list_suspects(plan)
    ]
    return replace(plan.with_rows(rows), seen={}) if rows else None


def describe_repetition(plan: Plan, repetition: str) -> str:
    """What was on, what happens now, and how to find the culprit."""
    names = [row.name for row in _list_suspects(plan)]
    off_values = optimizations.off_values()
    suspect = next((name for name in SUSPECTS if name in names), names[0])
    settings = ", ".join(f"{name} {format_value(plan.value(name))}" for name in names)
    return (
        f"active optimizations: {settings}; {repetition} with all of them off. To turn off only one, run again with "
        f"`--new --set optimize.{suspect}={format_value(off_values[suspect])}`"
    )


def make_final_error(reason: str) -> DeviceError:
    """The error if there is nothing left to turn off."""
    return DeviceError(
        f"{reason}, with every optimization off",
        "torch kernels and your own C code that work on this machine",
        f"see {FILE} in the run folder and run `drivetrain doctor`; try "
        "`--new --set limits.cpus=1`, another image or another machine",
    )


def _list_suspects(plan: Plan) -> list[Decision]:
    """What is on and can be turned off without changing the training."""
    return [row for row in plan.list_enabled() if row.name not in LIMITING and row.effect != str(Effect.TRAINING)]


def _list_logs(run: Path) -> list[Path]:
    return [run / FILE, *sorted(run.glob(f"ranks/*/{FILE}"))]


def _find_crashed_line(path: Path) -> str:
    """Where the dead thread was, from a dump of Python's faulthandler; empty without one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # torch's own threads have no Python lines; then the main thread counts, which waits for them and is listed last.
    thread_dump = text[text.find("Current thread") :] if "Current thread" in text else text[text.rfind("Thread 0x") :]
    match = re.search(r'File "([^"]+)", line (\d+) in (\S+)', thread_dump)
    return f"{Path(match[1]).name}:{match[2]} in {match[3]}" if match else ""
