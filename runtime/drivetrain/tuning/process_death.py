"""Explains why a process died, inside a kernel or at the memory limit, and makes a safer plan for the next one."""

from __future__ import annotations

import contextlib
import faulthandler
import re
from dataclasses import dataclass, replace
from pathlib import Path

from drivetrain import optimizations
from drivetrain.errors import DeviceError, OutOfMemory, PeerError, RestartSmaller
from drivetrain.hardware import cgroup
from drivetrain.hardware.facts import Hardware
from drivetrain.optimizations import Effect
from drivetrain.plan import plan as plans
from drivetrain.plan.plan import Decision, Plan, format_value
from drivetrain.system import signals
from drivetrain.system.signals import CRASH_EXIT_CODES, KILLED_EXIT_CODE
from drivetrain.system.units import format_bytes

FILE = "crash.txt"
"""File in the run folder with the Python traceback of a dead process."""
LIMITING = frozenset(
    ("cpu_threads", "allocator_segments", "loader_workers", "decode_cache", "micro_batch", "gradient_checkpointing")
)
"""Optimizations that stay on, because they keep a run within its CPUs and memory."""
SUSPECTS = ("compile", "channels_last", "precision", "openmp_runtime", "allocator", "unpadding", "fused_optimizer")
"""Most likely culprits first: optimizations with the least tested kernels."""


def log_crashes(run: Path) -> None:
    """From now on, write the Python traceback to the run folder if a signal kills this process."""
    with contextlib.suppress(OSError):
        # The file stays open for the life of the process, because a signal handler cannot open files.
        faulthandler.enable((run / FILE).open("w", encoding="utf-8"))


def remove_empty_logs(run: Path) -> None:
    """Remove the empty log files of processes that did not die."""
    for path in _list_logs(run):
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()


def describe(run: Path, code: int, who: str = "the trainer") -> str:
    """Describe a crash: `the trainer crashed with SIGSEGV inside a kernel, at conv.py:549 in _conv_forward`."""
    line = next(filter(None, map(_find_crashed_line, _list_logs(run))), "")
    return f"{who} crashed with {CRASH_EXIT_CODES[code]} inside a kernel" + (f", at {line}" if line else "")


def turn_optimizations_off(plan: Plan, reason: str) -> Plan | None:
    """Turn off all suspects; returns the new plan, or None if none of them is on."""
    off_values = optimizations.off_values()
    rows = []
    for row in _list_suspects(plan):
        off_row = row.learn(off_values[row.name], "crash", f"{reason}, with {format_value(row.value)}")
        rows.append(replace(off_row, effect=str(Effect.EXACT)))
    return replace(plan.with_rows(rows), seen={}) if rows else None


def describe_repetition(plan: Plan, repetition: str) -> str:
    """Describe the active optimizations, the next attempt `repetition`, and how to find the culprit."""
    settings, options = _describe_active(plan)
    return (
        f"active optimizations: {settings}; {repetition} with all of them off. To turn off only one, run again with "
        f"`--new {options[0]}`"
    )


def make_error(reason: str, plan: Plan, *, is_trainer: bool = False) -> DeviceError:
    """Make the error for a crash after which nothing is tried again; only the trainer has a log and keeps its plan."""
    log, switch = (f"see {FILE} in the run folder and ", "--new ") if is_trainer else ("", "")
    condition = "every optimization off"
    action = f"{log}run `drivetrain doctor`; try `{switch}--set limits.cpus=1`, another image or another machine"
    if _list_suspects(plan):
        condition, options = _describe_active(plan)
        action = f"try `{options[0]}`"
        if len(options) > 1:
            action += f", or all of them off: `{' '.join(options)}`"
    possible = "torch kernels and your own C code that work on this machine"
    return DeviceError(f"{reason}, with {condition}", possible, action)


def _describe_active(plan: Plan) -> tuple[str, list[str]]:
    """Describe the optimizations that may be the culprit, and the options that turn them off, the first suspect first."""
    names, off_values = [row.name for row in _list_suspects(plan)], optimizations.off_values()
    settings = ", ".join(f"{name} {format_value(plan.value(name))}" for name in names)
    names.sort(key=lambda name: SUSPECTS.index(name) if name in SUSPECTS else len(SUSPECTS))
    return settings, [f"--set optimize.{name}={format_value(off_values[name])}" for name in names]


def _list_suspects(plan: Plan) -> list[Decision]:
    """List the active optimizations that may have crashed and can be turned off without changing the training."""
    return [row for row in plan.list_enabled() if row.name not in LIMITING and row.effect != str(Effect.TRAINING)]


def _list_logs(run: Path) -> list[Path]:
    return [run / FILE, *sorted(run.glob(f"ranks/*/{FILE}"))]


def _find_crashed_line(path: Path) -> str:
    """Find the line of the dead thread in a dump of Python's faulthandler; empty if it has none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # torch's own threads have no Python lines. Then use the main thread, which waits for them and is listed last.
    start = text.find("Current thread") if "Current thread" in text else text.rfind("Thread 0x")
    match = re.search(r'File "([^"]+)", line (\d+) in (\S+)', text[start:])
    return f"{Path(match[1]).name}:{match[2]} in {match[3]}" if match else ""


KILLED_AS_ONE_NOTE = (
    "memory.oom.group is set (Kubernetes does it): at the memory limit the kernel kills the whole container, and no "
    "smaller micro-batch can be tried; optimize.micro_batch: auto measures one that fits"
)


@dataclass(frozen=True)
class TrainerDeath:
    """A trainer's death, after which another trainer continues from the last checkpoint without measuring."""

    kind: str
    """Kind of its events: `crash` inside a kernel, or `memory` if it ran out."""
    reason: str

    def plan_restart(self, plan: plans.Plan, process_batch: int, *, was_measuring: bool) -> tuple[plans.Plan, str]:
        """Plan the next trainer; returns its plan and the text of the event. The plan stays if measuring may be the culprit.

        Raises:
            DrivetrainError: if nothing is left to change.
        """
        if was_measuring:
            return plan, f"{self.reason} before its first step; restarting without measuring"
        restarting = "restarting from its last checkpoint"
        if self.kind == "crash":
            reduced_plan = turn_optimizations_off(plan, self.reason)
            if reduced_plan is None:
                raise make_error(self.reason, plan, is_trainer=True)
            return reduced_plan, f"{self.reason}; {describe_repetition(plan, restarting)}"
        reduced_plan = plans.halve_micro_batch(plan, process_batch, self.reason)
        if reduced_plan is None:
            raise OutOfMemory(
                f"{self.reason} with micro-batch 1",
                "a job that fits the limit",
                "raise limits.memory, or use a smaller network or smaller samples",
            )
        size = reduced_plan.value("micro_batch")
        text = f"{self.reason}; {restarting} with optimize.micro_batch {size} and the same train.batch_size"
        return reduced_plan, text


def find_avoidable(
    exit_code: int, run: Path, machine: Hardware, kills_before: int | None, was_signalled: bool
) -> TrainerDeath | None:
    """Explain an exit code of the trainer as a death that another plan may avoid; None if none would help.

    `kills_before` is the number of processes killed at the memory limit before the trainer started, None if unknown.
    """
    if exit_code == RestartSmaller.exit_code:
        return TrainerDeath("memory", "memory ran out in one of the processes")
    if exit_code in signals.CRASH_EXIT_CODES and not was_signalled:
        return TrainerDeath("crash", describe(run, exit_code))
    kills_now = cgroup.read_oom_kills(Path("/"))
    was_killed = kills_before is not None and kills_now is not None and kills_now > kills_before
    if exit_code in (KILLED_EXIT_CODE, PeerError.exit_code) and was_killed:
        limit, peak = (format_bytes(size) for size in (machine.memory.limit, cgroup.read_peak_memory(Path("/"))))
        return TrainerDeath("memory", f"the trainer was killed at the memory limit of {limit} (peak {peak})")
    return None
