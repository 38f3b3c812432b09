"""The supervisor: a light parent process without torch that checks the job, makes the plan and runs the trainer.

Threads, OpenMP runtime and allocator are fixed when a process starts. So the plan is made first, and the trainer is a
child that starts under it.
"""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runtime.distributed import find_placement, local_processes, world
from runtime.distributed.placement import Placement
from runtime.errors import OutOfMemory, Replanned, RestartSmaller, Stopped
from runtime.hardware import cgroup, device_check
from runtime.hardware.cgroup_usage import is_killed_as_one
from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job.environment import check_environment
from runtime.plan import effective_plan, evidence, show_plan
from runtime.plan import plan as plans
from runtime.supervisor import extended_run, follower_folder, hub_revisions, memory_kill, run_folder
from runtime.supervisor.remote_copy import remote_runs
from runtime.supervisor.remote_copy.remote_runs import RemoteRuns
from runtime.supervisor.run_lifecycle import RunLifecycle
from runtime.supervisor.train_request import TrainRequest
from runtime.supervisor.trainer_death import avoidable
from runtime.system import child_process, exit_codes, signals
from runtime.system.console import say, say_aside, say_error
from runtime.system.exit_codes import KILLED
from runtime.system.named_folder import NamedFolder
from runtime.system.run_files import RunFiles
from runtime.tracking import tracker_child
from runtime.tracking.event_log import EventLog
from runtime.tuning import batch_size, kernel_crash
from runtime.tuning.calibration import calibrate

STOPPED_REPORT = 4.0
"""Seconds for the report of a stopped run: container engines wait ten in all before they kill."""


def train(request: TrainRequest) -> int:
    """Train or resume; returns the exit code.

    Raises:
        DrivetrainError: for every problem found before the trainer starts.
    """
    signals.stop_early()
    request = replace(request, content=request.source().read().content)
    job = request.source().load()
    place = find_placement.find(request.place, os.environ, job)
    if place:
        say(f"placement: {place.words()}")
    leads = place is None or place.leads
    with remote_runs.opened(request.runs, job, new=request.new, leads=leads) as copies:
        return _train(request, job, place, copies)


def _train(request: TrainRequest, job: Job, place: Placement | None, copies: RemoteRuns | None) -> int:
    extended = request.extend.run if request.extend else None
    if fixed := hub_revisions.kept(request.runs, job, extended, new=request.new):
        request = replace(request, assignments=[*request.assignments, *fixed])
        job = request.source().load()
    check_environment(job, os.environ)
    if job.sweep:
        say("sweep: `drivetrain sweep` tries its values; this run trains the job's own")
    machine = world.shared(detect(request.runs), place)
    machine = device_check.select_devices(machine, world.own_gpus(job.limits.gpus, machine, place))
    world.check_world_size(job, machine)
    world.check_parts(job, world.trainers(job, machine) * (place.supervisors if place else 1))
    asked = effective_plan.PlanRequest(request.plain, plans.load(request.plan).values() if request.plan else None)
    if place and not place.leads:
        run = follower_folder.opened(request.runs, job, place.index)
    else:
        run = _opened(request, job, asked, copies)
    request = replace(request, copy=request.source().copy_to(run.path, job).copy)
    if place and job.train.batch_size == "auto":
        batch_size.fixed(job, "a run of several processes")
    if job.train.batch_size == "auto":
        code, size = batch_size.measured(request.source(), job, machine, run.path, plain=request.plain)
        if size is None:
            return code
        request = replace(request, batch_size=size)
        job = request.source().load()
    stored = effective_plan.plan_of(run.path) if run.resumes and effective_plan.begun(run.path) else None
    if stored:
        instead = [extended_run.under_another_plan(request.extend)] if request.extend else []
        asked = asked.resumed(run.path, run.state(), stored, *instead)
    if not place and not stored and asked == effective_plan.PlanRequest(plain=False, plan=None):
        machine = calibrate.for_job(machine, job, run.path)
    # A resumed run keeps its plan: other threads or memory formats would change the bits of the result.
    replay = stored.values() if stored else asked.plan
    plan = plans.resolve(
        job, machine, plain=asked.plain, replay=replay, measured=None if place else evidence.started(machine, job)
    )
    if stored:
        plan = plans.carried(plan, stored)
    show_plan.show(plan, job, machine, run.path / "plan.json", stored, request.shown)
    return _run(request, job, machine, plan, run, asked, place, copies)


def _opened(
    request: TrainRequest, job: Job, asked: effective_plan.PlanRequest, copies: RemoteRuns | None
) -> run_folder.RunFolder:
    """The run folder that the command trains in; its copy begins."""
    after = copies.last_number() if copies else 0
    if request.extend:
        run = extended_run.open_extended(request.runs, job, request.extend, asked, new=request.new, after=after)
    else:
        run = run_folder.open_run(request.runs, job, new=request.new, after=after)
    if copies:
        copies.begin(run.path)
    if request.extend:
        return run
    words = [
        "drivetrain",
        "train",
        child_process.path_word(request.spec),
        *(w for each in request.assignments for w in ("--set", each)),
    ]
    if not run.resumes and (line := extended_run.offer(request.runs, job, shlex.join(words))):
        say(line)
    return run


def _run(
    request: TrainRequest,
    job: Job,
    machine: Hardware,
    plan: plans.Plan,
    run: run_folder.RunFolder,
    asked: effective_plan.PlanRequest,
    place: Placement | None,
    copies: RemoteRuns | None,
) -> int:
    requested = {"plain": asked.plain, "plan": asked.plan}
    size = [] if request.batch_size is None else [f"train.batch_size={request.batch_size}"]
    spec = request.folder / request.spec.name if request.folder else request.spec
    lifecycle = RunLifecycle(run, str(spec), [*request.assignments, *size], requested)
    lifecycle.begin(machine)
    if is_killed_as_one() and machine.memory.limit and job.optimize.get("micro_batch") != "auto":
        EventLog(run.path).add("memory", memory_kill.KILLED_AS_ONE)
    leads = place is None or place.leads
    tracker = tracker_child.beside(run.path, job.track) if leads else None
    code = _attempts(request, job, machine, plan, run, place)
    kernel_crash.tidy(run.path)
    lifecycle.end(code)
    if extended_run.is_refused(run, code):
        if tracker:
            tracker.cancel()
        extended_run.discard(run)
    elif code in signals.AT_ONCE:
        say(f"ended at once by another {signals.signal_name(code - 128)}: {lifecycle.saved()}")
    elif leads:
        seconds = STOPPED_REPORT if code == Stopped.exit_code else None
        lifecycle.report(seconds, begin=functools.partial(signals.die_with, os.getpid()))
        if tracker:
            tracker.finish(stopped=code == Stopped.exit_code)
    copied = copies.finish(run.path, code) if copies else code
    if copied != code:
        lifecycle.end(copied)
    return copied


def _attempts(
    request: TrainRequest,
    job: Job,
    machine: Hardware,
    plan: plans.Plan,
    run: run_folder.RunFolder,
    place: Placement | None = None,
) -> int:
    """Run the trainer; if the kernel's OOM killer ends it, again from its last checkpoint with half the micro-batch.

    If it dies inside a kernel, once more with optimizations off. One of several supervisors leaves that to its starter,
    which starts all of them again.
    """
    words: list[str] = []
    count, folder = world.trainers(job, machine), NamedFolder(run.path)
    start = functools.partial(_trainers, place=place) if place else _trainers
    with signals.forwarding() as forward:
        while True:
            RunFiles(run.path).write_json("plan.json", plan.to_json())
            before = cgroup.oom_kills(Path("/"))
            code = start(request, count, plan.environment(machine), forward, run, words)
            if other := folder.restore():
                EventLog(run.path).add("storage", NamedFolder.WORDS.format(other, run.path))
            # The trainer has finalized the plan since, and may have measured.
            plan = effective_plan.plan_of(run.path)
            if code == Replanned.exit_code:
                words = ["--measured"]
                continue
            death = None if place else avoidable(code, run.path, machine, before, told=bool(forward.sent))
            if death is None:
                if code == RestartSmaller.exit_code:
                    return OutOfMemory.exit_code  # its message has said what to set
                if code == KILLED:
                    say_aside(exit_codes.explain_kill("the trainer"))
                return code
            if not words and not effective_plan.begun(run.path) and evidence.measures(job):
                EventLog(run.path).add(death.kind, f"{death.why} before its first step; restarting without measuring")
                words = ["--measured"]
                continue
            again = death.avoided(plan, -(-job.train.batch // count))
            if again is None:
                error = death.final()
                say_error(error)
                return error.exit_code
            EventLog(run.path).add(death.kind, death.consequence(plan, again))
            plan = again


def _trainers(
    request: TrainRequest,
    count: int,
    environment: dict[str, str],
    forward: signals.SignalForwarder,
    run: run_folder.RunFolder,
    words: Sequence[str] = (),
    place: Placement | None = None,
) -> int:
    """Run the trainer, and the other ranks if there are any; returns the exit code of the first."""

    def start(folder: Path, more: dict[str, str], log: int) -> subprocess.Popen[bytes]:
        with signals.waiting():
            return child_process.started([*_command(request, folder), *words], environment | more, output=log)

    with local_processes.local(count, place) as here, local_processes.start_others(here, run.path, start) as others:
        return child_process.child(
            [*_command(request, run.path), *words],
            environment | here.environment(0),
            forward,
            [run.lock, *here.open_files()],
            others,
            functools.partial(local_processes.wait, others=others, together=place is not None),
        )


def _command(request: TrainRequest, folder: Path) -> list[str]:
    paths = map(child_process.path_word, (folder, request.spec))
    command = [sys.executable, "-m", "runtime.supervisor.trainer_process", *paths]
    command += request.source().options()
    return [*command, "--trace"] if request.trace else command
