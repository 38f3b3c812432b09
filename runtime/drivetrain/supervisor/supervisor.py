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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from drivetrain.distributed import local_processes, world
from drivetrain.distributed.placement import NO_OPTIONS, Options, Placement, find_placement
from drivetrain.errors import OutOfMemory, Replanned, RestartSmaller, Stopped
from drivetrain.hardware import cgroup, device_check
from drivetrain.hardware.cgroup import is_killed_as_one
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.environment import check_environment
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import effective_plan, evidence, plan_table
from drivetrain.plan import plan as plans
from drivetrain.supervisor import baseline_run, extended_run, run_folder
from drivetrain.supervisor.extended_run import ExtendRequest
from drivetrain.supervisor.remote_copy import remote_runs
from drivetrain.supervisor.remote_copy.remote_runs import RemoteRuns
from drivetrain.supervisor.run_lifecycle import RunLifecycle
from drivetrain.system import child_process, signals
from drivetrain.system.console import say, say_aside, say_error
from drivetrain.system.fault_points import fault_point
from drivetrain.system.named_folder import NamedFolder
from drivetrain.system.run_files import PLAN_FILE, RunFiles
from drivetrain.system.run_records import RunState
from drivetrain.system.signals import KILLED_EXIT_CODE
from drivetrain.tracking import tracker_process
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.phase_timer import process_seconds
from drivetrain.tuning import batch_size, process_death, run_length
from drivetrain.tuning.calibration import calibrate
from drivetrain.tuning.process_death import find_avoidable

TRAINER = "drivetrain.supervisor.trainer_process"
"""The program that trains; tests start one of their own instead."""
SEVERAL_PROCESSES = "a run of several processes"
"""What cannot measure, for messages."""
REPORT_SECONDS = 2.0
"""For the report, within `train.within`."""
STOPPED_REPORT = 4.0
"""Seconds for the report of a stopped run: container engines wait ten in all before they kill."""


@dataclass(frozen=True)
class TrainRequest:
    """The options of `drivetrain train`."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    plain: bool = False
    plan: Path | None = None
    new: bool = False
    extend: ExtendRequest | None = None
    """The finished run that this one continues."""
    trace: bool = False
    """Whether a few steps are profiled."""
    place: Options = NO_OPTIONS
    """The options about several machines."""
    measured: Mapping[str, int] = field(default_factory=dict)
    """Measured numbers by key of `train:`, in place of `batch_size: auto` and for `within`, as far as they are known."""
    folder: Path | None = None
    """Where relative paths of the spec start; its own folder if None."""
    code: Mapping[str, str] | None = None
    """SHA-256 by name of the only files of user code that may run; None allows those in the folder of the spec."""
    report_run: Callable[[Path], None] = lambda run: None
    """Called with the run folder when it is open."""
    shown: Path | None = None
    """The plan of another run, which the same command has printed; then only the differences are."""

    baselines: bool = True
    """Whether simple models are fitted beside the network; the runs of one experiment would all fit the same."""
    copy: Path | None = None
    """Copies of the job file and the user's code, which are read instead."""
    content: bytes | None = None
    """What the job file says; None until it is read."""

    def source(self) -> SpecSource:
        """The spec, for this process and its children."""
        return SpecSource(
            self.spec,
            self.assignments,
            self.measured,
            self.folder,
            self.code,
            copy=self.copy,
            content=self.content,
        )


def train(request: TrainRequest) -> int:
    """Train or resume; returns the exit code.

    Raises:
        DrivetrainError: for every problem found before the trainer starts.
    """
    signals.stop_early()
    request = replace(request, content=request.source().read().content)
    job = request.source().load()
    placement = find_placement(request.place, os.environ, job)
    if placement:
        say(f"placement: {placement.describe()}")
    leads = placement is None or placement.leads
    with remote_runs.open_runs(request.runs, job, new=request.new, is_leader=leads) as copies:
        return _train(request, job, placement, copies)


def _train(request: TrainRequest, job: Job, placement: Placement | None, copies: RemoteRuns | None) -> int:
    extended = request.extend.run if request.extend else None
    if fixed := run_folder.keep_revisions(request.runs, job, extended, new=request.new):
        request = replace(request, assignments=[*request.assignments, *fixed])
        job = request.source().load()
    check_environment(job, os.environ)
    for line in job.document.replaced:
        say(line)
    if job.sweep:
        say("sweep: `drivetrain sweep` tries its values; this run trains the job's own")
    machine = _detect_machine(request, job, placement)
    plan_request = effective_plan.PlanRequest(
        request.plain, plans.load(request.plan).values() if request.plan else None
    )
    if placement and not placement.leads:
        run = run_folder.open_follower(request.runs, job, placement.index)
    else:
        run = _open_folder(request, job, plan_request, copies)
    request.report_run(run.path)
    request = replace(request, copy=request.source().copy_to(run.path, job).copy)
    if placement:
        batch_size.refuse_auto(job, SEVERAL_PROCESSES)
        run_length.refuse_within(job, SEVERAL_PROCESSES)
    # The batch size comes first, since the plan depends on it, and the length last, since it follows from the plan's speed.
    code, size = batch_size.measure_once(request.source(), job, machine, run.path, plain=request.plain)
    request, job = _add_measured(request, job, size)
    if code:
        return code
    machine, plan, stored, plan_request = _choose_plan(request, job, machine, run, plan_request, placement)
    code, length = run_length.choose_once(request.source(), job, machine, plan, run.path, process_seconds())
    request, job = _add_measured(request, job, length)
    if code:
        return code
    plan_table.show(plan, job, machine, run.path / PLAN_FILE, stored, request.shown)
    return _run(request, job, machine, plan, run, plan_request, placement, copies)


def _detect_machine(request: TrainRequest, job: Job, placement: Placement | None) -> Hardware:
    """The hardware that the job may use, which suits the number of its processes."""
    fault_point("detect")
    machine = world.share_hardware(detect(request.runs), placement)
    machine = device_check.select_devices(machine, world.choose_gpus(job.limits.gpus, machine, placement))
    world.check_world_size(job, machine)
    world.check_parts(job, world.count_trainers(job, machine) * (placement.supervisors if placement else 1))
    return machine


def _add_measured(request: TrainRequest, job: Job, measured: Mapping[str, int]) -> tuple[TrainRequest, Job]:
    """The request and the job with measured numbers."""
    if not measured:
        return request, job
    request = replace(request, measured={**request.measured, **measured})
    return request, request.source().load()


def _choose_plan(
    request: TrainRequest,
    job: Job,
    machine: Hardware,
    run: run_folder.RunFolder,
    plan_request: effective_plan.PlanRequest,
    placement: Placement | None,
) -> tuple[Hardware, plans.Plan, plans.Plan | None, effective_plan.PlanRequest]:
    """The machine, calibrated if that is due; the plan; the stored one if the run resumes; and what was requested."""
    stored = effective_plan.load_plan(run.path) if run.resumes and effective_plan.has_trained(run.path) else None
    if stored:
        instead = [extended_run.advise_other_plan(request.extend)] if request.extend else []
        plan_request = plan_request.resume(run.path, RunState.read(run.path), stored, *instead)
    if not placement and not stored and plan_request == effective_plan.PlanRequest(plain=False, plan=None):
        machine = calibrate.calibrate_for_job(machine, job, run.path)
    plan = plans.resolve(
        job,
        machine,
        plain=plan_request.plain,
        # A resumed run keeps its plan: other threads or memory formats would change the bits of the result.
        replay=stored.values() if stored else plan_request.plan,
        measured=None if placement else evidence.load_process_settings(machine, job),
    )
    return machine, plans.keep_reasons(plan, stored) if stored else plan, stored, plan_request


def _open_folder(
    request: TrainRequest, job: Job, plan_request: effective_plan.PlanRequest, copies: RemoteRuns | None
) -> run_folder.RunFolder:
    """The run folder that the command trains in; its copy begins."""
    after = copies.highest_number if copies else 0
    if request.extend:
        run = extended_run.open_extended(request.runs, job, request.extend, plan_request, new=request.new, after=after)
    else:
        run = run_folder.open_run(request.runs, job, new=request.new, after=after)
    if copies:
        copies.start_copying(run.path)
    if request.extend:
        return run
    options = [word for assignment in request.assignments for word in ("--set", assignment)]
    command = shlex.join(["drivetrain", "train", child_process.format_path_argument(request.spec), *options])
    if not run.resumes and (line := extended_run.suggest_extension(request.runs, job, command)):
        say(line)
    return run


def _run(
    request: TrainRequest,
    job: Job,
    machine: Hardware,
    plan: plans.Plan,
    run: run_folder.RunFolder,
    plan_request: effective_plan.PlanRequest,
    placement: Placement | None,
    copies: RemoteRuns | None,
) -> int:
    measured = [f"train.{key}={value}" for key, value in request.measured.items()]
    spec = request.folder / request.spec.name if request.folder else request.spec
    lifecycle = RunLifecycle(run, str(spec), [*request.assignments, *measured], vars(plan_request))
    lifecycle.begin(machine)
    if is_killed_as_one() and machine.memory.limit and job.optimize.get("micro_batch") != "auto":
        EventLog(run.path).add("memory", process_death.KILLED_AS_ONE_NOTE)
    leads = placement is None or placement.leads
    tracker = tracker_process.start_tracker(run.path, job.track) if leads else None
    code = _attempts(request, job, machine, plan, run, placement)
    process_death.remove_empty_logs(run.path)
    lifecycle.end(code)
    # Nothing was trained in a copy that was refused, so it must not stand in the way of the next --extend.
    if extended_run.is_refused(run, code):
        if tracker:
            tracker.kill()
        extended_run.discard(run)
    elif code in signals.ABORTED_CODES:
        say(f"ended at once by another {signals.describe_signal(code - 128)}: {lifecycle.saved()}")
    elif leads:
        if code == 0 and request.baselines:
            within = parse_duration(job.train.within) if job.train.within else inf
            baseline_run.compare(request.source(), job, run.path, within - process_seconds() - REPORT_SECONDS)
        seconds = STOPPED_REPORT if code == Stopped.exit_code else None
        lifecycle.report(seconds, begin=functools.partial(signals.die_with_parent, os.getpid()))
        if tracker:
            tracker.finish(stopped=code == Stopped.exit_code)
        if code == 0 and request.baselines:
            say(f"next: drivetrain predict {shlex.quote(child_process.format_path_argument(run.path))} FILES")
    # Last, so that the copy has the report, too.
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
    placement: Placement | None = None,
) -> int:
    """Run the trainer, and again from its last checkpoint for as long as another plan may avoid its death."""
    fault_point("first attempt")
    arguments: list[str] = []
    count, folder = world.count_trainers(job, machine), NamedFolder(run.path)
    start = functools.partial(run_trainers, placement=placement) if placement else run_trainers
    with signals.forward_signals() as forward:
        while True:
            RunFiles(run.path).write_json(PLAN_FILE, plan.to_json())
            kills_before = cgroup.read_oom_kills(Path("/"))
            code = start(request, count, plan.environment(machine), forward, run, arguments)
            if other := folder.restore():
                EventLog(run.path).add("storage", NamedFolder.MESSAGE.format(other, run.path))
            # The trainer has finalized the plan since, and may have measured.
            plan = effective_plan.load_plan(run.path)
            # Threads, OpenMP runtime and allocator of the measured plan need a new process.
            if code == Replanned.exit_code:
                arguments = ["--measured"]
                continue
            # One of several supervisors leaves a new start to its starter, which starts all of them again.
            was_signalled = bool(forward.sent)
            death = None if placement else find_avoidable(code, run.path, machine, kills_before, was_signalled)
            if death is None:
                if code == RestartSmaller.exit_code:
                    return OutOfMemory.exit_code  # its message has said what to set
                if code == KILLED_EXIT_CODE:
                    say_aside(signals.explain_kill("the trainer"))
                return code
            # Measuring itself may have needed too much, so first without it, under the same plan.
            if not arguments and not effective_plan.has_trained(run.path) and evidence.may_measure(job):
                EventLog(run.path).add(
                    death.kind, f"{death.reason} before its first step; restarting without measuring"
                )
                arguments = ["--measured"]
                continue
            # Half the micro-batch after a kill at the memory limit, no optimizations after a death inside a kernel.
            reduced_plan = death.plan_next(plan, -(-job.train.batch // count))
            if reduced_plan is None:
                error = death.final_error()
                say_error(error)
                return error.exit_code
            EventLog(run.path).add(death.kind, death.describe_restart(plan, reduced_plan))
            plan = reduced_plan


def run_trainers(
    request: TrainRequest,
    count: int,
    environment: dict[str, str],
    forward: signals.SignalForwarder,
    run: run_folder.RunFolder,
    arguments: Sequence[str] = (),
    placement: Placement | None = None,
) -> int:
    """Run the trainer, and the other ranks if there are any; returns the exit code of the first."""

    def start(folder: Path, variables: dict[str, str], log: int) -> subprocess.Popen[bytes]:
        with signals.block_signals():
            return child_process.start_child(
                [*trainer_command(request, folder), *arguments],
                child_process.build_environment(environment | variables),
                output=log,
            )

    with (
        local_processes.open_meeting(count, placement) as processes,
        local_processes.start_followers(processes, run.path, start) as followers,
    ):
        return child_process.run_child(
            [*trainer_command(request, run.path), *arguments],
            environment | processes.environment(0),
            forward,
            [run.lock, *processes.open_files()],
            followers,
            functools.partial(local_processes.wait_for_end, followers=followers, has_peers=placement is not None),
        )


def trainer_command(request: TrainRequest, folder: Path) -> list[str]:
    paths = map(child_process.format_path_argument, (folder, request.spec))
    command = [sys.executable, "-m", TRAINER, *paths, *request.source().options()]
    return [*command, "--trace"] if request.trace else command
