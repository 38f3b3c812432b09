"""Calibrates the machine once: short probes in a process of their own, kept in the cache folder; without torch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from runtime.distributed import world
from runtime.errors import DrivetrainError, StorageError
from runtime.hardware import calibration_file
from runtime.hardware.calibration import Calibration
from runtime.hardware.cgroup_usage import ProcessCgroup
from runtime.hardware.facts import Hardware, from_json_as
from runtime.job import Job
from runtime.optimizations.interface import similar_work
from runtime.system import child_process, file_lock
from runtime.system.console import say
from runtime.system.files import read_json, write_json
from runtime.tracking.event_log import EventLog
from runtime.tuning.calibration.process_start import command, environment

LOCK = "lock"
"""Two processes that calibrate at once meet at this file."""


@dataclass(frozen=True)
class Limit:
    """Time limits in seconds; all probes together take about five on one free CPU."""

    probes: float
    """For the probes, with the start of their process."""
    process: float
    """After this the process is ended, and what it has found by then counts."""


BY_ITSELF = Limit(8.0, 9.0)
"""A training must not wait longer, however busy the machine is."""
ASKED = Limit(30.0, 60.0)


@dataclass(frozen=True)
class Outcome:
    """A calibration, and what the user should know about it."""

    found: Calibration | None
    events: tuple[str, ...] = ()
    kept: bool = False
    """Whether it was there already."""


def for_job(machine: Hardware, job: Job, run: Path) -> Hardware:
    """The machine with its calibration, which the first training on it makes; as it is if the job would not use it.

    Args:
        machine: the hardware that the job may use.
        job: the checked spec.
        run: the run folder, for what went wrong.
    """
    if job.optimize.get("measure") == "off" or world.local_ranks(job, machine) > 1:
        return machine
    log = EventLog(run)
    return at_first_use(machine, similar_work.kind(job, None), say, lambda text: log.add("calibration", text))


def at_first_use(machine: Hardware, work: str, say: Callable[[str], None], event: Callable[[str], None]) -> Hardware:
    """The machine with its calibration, which is made now if there is none; without one if that fails.

    Args:
        machine: the hardware that the job may use.
        work: the kind of work of the job, which is compared first.
        say: reports that it is made.
        event: records what went wrong.
    """
    if not calibration_file.is_on():
        return machine
    found, wrong = calibration_file.load(machine)
    obstacle = None if found else _obstacle(machine)
    if wrong:
        event(f"{wrong}; {'not calibrated again' if obstacle else 'calibrating again'}")
    if obstacle:
        say(f"calibrate: skipped, {obstacle}")
    if found or obstacle:
        return replace(machine, calibration=found)
    say("calibrate: measuring this machine once, for up to 10 s")
    outcome = calibrated(machine, work)
    for line in outcome.events:
        event(line)
    if outcome.found:
        say(f"calibrate: {summary(outcome.found)}")
    return replace(machine, calibration=outcome.found)


def _obstacle(machine: Hardware) -> str | None:
    """Why a machine is not calibrated by itself."""
    if machine.cpu.emulated:
        return "the processor is emulated"
    if not machine.storage.cache_writable:
        return f"{machine.storage.cache} is not writable, so every run would repeat it"
    return None


def calibrated(machine: Hardware, first: str = "", *, again: bool = False, limit: Limit = BY_ITSELF) -> Outcome:
    """The calibration that is kept, or a new one; of two processes at once, the second waits and takes the first's.

    Args:
        machine: the hardware.
        first: the kind of work that is compared first.
        again: make a new one even if one is kept.
        limit: time limits.
    """
    events = list[str]()
    with _alone(machine, events):
        kept, wrong = (None, None) if again else calibration_file.load(machine)
        if kept:
            return Outcome(kept, kept=True)
        if wrong:
            events.append(f"{wrong}; calibrating again")
        found = _made(machine, first, limit, events)
        if found:
            try:
                calibration_file.store(machine, found)
            except (OSError, StorageError) as error:
                events.append(
                    f"the calibration could not be kept, it serves this run only: {' '.join(str(error).split())}"
                )
    return Outcome(found, tuple(events))


def _made(machine: Hardware, first: str, limit: Limit, events: list[str]) -> Calibration | None:
    """Run the probes; what they found, or None."""
    try:
        with tempfile.TemporaryDirectory(prefix="calibrate-") as scratch:
            folder = Path(scratch)
            write_json(folder / "hardware.json", replace(machine, calibration=None).to_json())
            group = ProcessCgroup()
            before = group.throttled() or 0.0
            code = _run(machine, folder, first, limit)
            data = read_json(folder / "calibration.json")
            if data is None and code is None:
                return _nothing(machine, limit, (group.throttled() or 0.0) - before)
            if data is None:
                events.append(f"calibration failed: its process ended with exit code {code} before any comparison")
                return None
            if code not in (0, None):
                events.append(f"calibration incomplete: its process ended with exit code {code}")
            return from_json_as(Calibration, data, "calibration")
    except (OSError, DrivetrainError, subprocess.SubprocessError) as error:
        events.append(f"calibration failed: {' '.join(str(error).split())}")
        return None


def _nothing(machine: Hardware, limit: Limit, throttled: float) -> Calibration:
    """An empty calibration, so that not every run waits for one on a machine that is too busy.

    Args:
        machine: the hardware.
        limit: the time that did not suffice.
        throttled: seconds of it for which the CPU quota was used up. What others took nobody has measured.
    """
    share = round(min(1.0, max(0.0, throttled / limit.process)), 3)
    why = f"everything: no comparison ended within {limit.process:.0f} s; `drivetrain calibrate --again` takes longer"
    return Calibration(
        key=calibration_file.key(machine),
        date=datetime.now(UTC).date().isoformat(),
        seconds=limit.process,
        waited=share,
        throttled=share,
        probes=(),
        missing=(why,),
    )


def _run(machine: Hardware, folder: Path, first: str, limit: Limit) -> int | None:
    """The exit code of the process; None if it was ended at the time limit."""
    with (folder / "output.txt").open("wb") as output:
        child = child_process.started(
            command(folder, limit.probes, "--first", first), environment(machine), output=output.fileno()
        )
        try:
            return child.wait(limit.process)
        except subprocess.TimeoutExpired:
            return None
        finally:
            child.kill()
            child.wait()


@contextlib.contextmanager
def _alone(machine: Hardware, events: list[str]) -> Iterator[None]:
    """Hold the lock of the folder, or wait for it; without a folder that can be written, there is nothing to share."""
    folder = calibration_file.path(machine).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = file_lock.acquire(folder / LOCK, ASKED.process + 1)
    except OSError:
        yield
        return
    if handle is None:
        events.append("another calibration does not end; this one runs beside it")
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def summary(found: Calibration) -> str:
    """In one line: how many comparisons, and what is missing."""
    words = f"{len(found.probes)} comparison{'s' * (len(found.probes) != 1)} in {found.seconds:.0f} s"
    if found.is_busy:
        words += f"; {found.disturbance}"
    if found.missing:
        words += f"; not measured: {len(found.missing)}"
    return f"{words}; `drivetrain calibrate` shows them"
