"""Calibrates the machine once: short probes in a process of their own, kept in the cache folder; without torch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from drivetrain import optimizations
from drivetrain.distributed import world
from drivetrain.errors import DrivetrainError, StorageError
from drivetrain.hardware import calibration_file, gpu_selection
from drivetrain.hardware.calibration import Calibration
from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.hardware.facts import Hardware, from_json_as
from drivetrain.job import Job
from drivetrain.optimizations import Value, allocator, cpu_threads, openmp_runtime
from drivetrain.optimizations.interface import similar_work
from drivetrain.plan import evidence
from drivetrain.system import child_process, file_lock
from drivetrain.system.console import say
from drivetrain.system.files import read_json, write_json
from drivetrain.tracking.event_log import EventLog

LOCK = "lock"
"""Two processes that calibrate at once meet at this file."""


@dataclass(frozen=True)
class TimeLimit:
    """Time limits in seconds; all probes together take about five on one free CPU."""

    probes: float
    """For the probes, with the start of their process."""
    process: float
    """After this the process is ended, and what it has found by then counts."""


AUTOMATIC = TimeLimit(8.0, 9.0)
"""A training must not wait longer, however busy the machine is."""
ON_REQUEST = TimeLimit(30.0, 60.0)


@dataclass(frozen=True)
class CalibrationResult:
    """A calibration, and what the user should know about it."""

    calibration: Calibration | None
    events: tuple[str, ...] = ()
    was_stored: bool = False
    """Whether it was there already."""


def calibrate_for_job(machine: Hardware, job: Job, run: Path) -> Hardware:
    """The machine with its calibration, which the first training on it makes; as it is if the job would not use it.

    Args:
        machine: the hardware that the job may use.
        run: the run folder, for what went wrong.
    """
    if job.optimize.get("measure") == "off" or world.count_local_ranks(job, machine) > 1:
        return machine
    log = EventLog(run)
    return attach_or_measure(machine, similar_work.kind(job, None), say, lambda text: log.add("calibration", text))


def attach_or_measure(
    machine: Hardware, work: str, say: Callable[[str], None], event: Callable[[str], None]
) -> Hardware:
    """The machine with its calibration, which is made now if there is none; without one if that fails.

    Args:
        machine: the hardware that the job may use.
        work: the kind of work of the job, which is compared first.
        say: reports that it is made.
        event: records what went wrong.
    """
    if not calibration_file.is_enabled():
        return machine
    calibration, problem = calibration_file.read_calibration(machine)
    obstacle, storage = None, machine.storage
    if calibration is None and machine.cpu.emulated:
        obstacle = "the processor is emulated"
    elif calibration is None and not storage.cache_writable:
        obstacle = f"{storage.cache} is not writable, so every run would repeat it"
    if problem:
        event(f"{problem}; {'not calibrated again' if obstacle else 'calibrating again'}")
    if obstacle:
        say(f"calibrate: skipped, {obstacle}")
    if calibration or obstacle:
        return replace(machine, calibration=calibration)
    say("calibrate: measuring this machine once, for up to 10 s")
    result = load_or_measure(machine, work)
    for line in result.events:
        event(line)
    if result.calibration:
        say(f"calibrate: {summarize(result.calibration)}")
    return replace(machine, calibration=result.calibration)


def load_or_measure(
    machine: Hardware, first_work: str = "", *, measure_again: bool = False, limit: TimeLimit = AUTOMATIC
) -> CalibrationResult:
    """The calibration that is kept, or a new one; of two processes at once, the second waits and takes the first's.

    Args:
        first_work: the kind of work that is compared first.
        measure_again: make a new one even if one is kept.
        limit: time limits.
    """
    events = list[str]()
    with _lock_folder(machine, events):
        stored, problem = (None, None) if measure_again else calibration_file.read_calibration(machine)
        if stored:
            return CalibrationResult(stored, was_stored=True)
        if problem:
            events.append(f"{problem}; calibrating again")
        calibration = _run_probes(machine, first_work, limit, events)
        if calibration:
            try:
                calibration_file.write_calibration(machine, calibration)
            except (OSError, StorageError) as error:
                events.append(
                    f"the calibration could not be kept, it serves this run only: {' '.join(str(error).split())}"
                )
    return CalibrationResult(calibration, tuple(events))


def _run_probes(machine: Hardware, first_work: str, limit: TimeLimit, events: list[str]) -> Calibration | None:
    """Run the probes; what they found, or None."""
    try:
        with tempfile.TemporaryDirectory(prefix="calibrate-") as scratch:
            folder = Path(scratch)
            write_json(folder / "hardware.json", replace(machine, calibration=None).to_json())
            cgroup = ProcessCgroup()
            throttled_before = cgroup.read_throttled_seconds() or 0.0
            with (folder / "output.txt").open("wb") as output:
                child = child_process.start_child(
                    probe_command(folder, limit.probes, "--first", first_work),
                    child_process.build_environment(probe_environment(machine)),
                    output=output.fileno(),
                )
                code = child_process.wait_or_kill(child, limit.process)
            data = read_json(folder / "calibration.json")
            if data is None and code is None:
                return _make_empty_calibration(
                    machine, limit, (cgroup.read_throttled_seconds() or 0.0) - throttled_before
                )
            if data is None:
                events.append(f"calibration failed: its process ended with exit code {code} before any comparison")
                return None
            if code not in (0, None):
                events.append(f"calibration incomplete: its process ended with exit code {code}")
            calibration = from_json_as(Calibration, data, "calibration")
            if code is None:
                return replace(calibration, missing=(*calibration.missing, f"the rest: {_describe_limit(limit)}"))
            return calibration
    except (OSError, DrivetrainError, subprocess.SubprocessError) as error:
        events.append(f"calibration failed: {' '.join(str(error).split())}")
        return None


def _make_empty_calibration(machine: Hardware, limit: TimeLimit, throttled: float) -> Calibration:
    """An empty calibration, so that not every run waits for one on a machine that is too busy.

    Args:
        limit: the time that did not suffice.
        throttled: seconds of it for which the CPU quota was used up. What others took nobody has measured.
    """
    share = round(min(1.0, max(0.0, throttled / limit.process)), 3)
    reason = f"everything: {_describe_limit(limit)}"
    return Calibration(
        key=calibration_file.compute_key(machine),
        date=evidence.format_date(),
        seconds=limit.process,
        waited=share,
        throttled=share,
        probes=(),
        missing=(reason,),
    )


def _describe_limit(limit: TimeLimit) -> str:
    return f"no comparison ended within {limit.process:.0f} s; `drivetrain calibrate --again` takes longer"


@contextlib.contextmanager
def _lock_folder(machine: Hardware, events: list[str]) -> Iterator[None]:
    """Hold the lock of the folder, or wait for it; without a folder that can be written, there is nothing to share."""
    folder = calibration_file.find_path(machine).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = file_lock.acquire(folder / LOCK, ON_REQUEST.process + 1)
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


def summarize(calibration: Calibration) -> str:
    """In one line: how many comparisons, and what is missing."""
    text = f"{len(calibration.probes)} comparison{'s' * (len(calibration.probes) != 1)} in {calibration.seconds:.0f} s"
    if calibration.is_busy:
        text += f"; {calibration.disturbance}"
    if calibration.missing:
        text += f"; not measured: {len(calibration.missing)}"
    return f"{text}; `drivetrain calibrate` shows them"


def default_settings(hardware: Hardware) -> dict[str, Value]:
    """The settings that a training on this machine starts with, if no job requests others."""
    libraries = hardware.libraries
    preloads = hardware.gpu is None and hardware.system == "Linux"
    x86 = preloads and hardware.cpu.architecture == "x86_64"
    runtime = "iomp5" if libraries.iomp5 else "libomp" if libraries.libomp else openmp_runtime.OFF
    return {
        "cpu_threads": cpu_threads.threads_of(hardware),
        "openmp_runtime": runtime if x86 else openmp_runtime.OFF,
        "allocator": "tcmalloc" if preloads and libraries.tcmalloc else allocator.OFF,
    }


def probe_environment(hardware: Hardware, **other: Value) -> dict[str, str]:
    """The environment of a process of a calibration.

    Args:
        other: values in place of the defaults.
    """
    values = default_settings(hardware) | other
    return gpu_selection.build_environment(hardware) | optimizations.environment(hardware, values)


def probe_command(folder: Path, seconds: float, *options: str) -> list[str]:
    """The command line of a process of a calibration."""
    return [sys.executable, "-m", "drivetrain.tuning.calibration.probe_process", str(folder), str(seconds), *options]
