"""The supervisor: a light parent process without torch that checks the job, makes the plan and runs the trainer.

Threads, OpenMP runtime and allocator are fixed when a process starts. Therefore the plan is made first, and the trainer is
a child process that starts with it.
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drivetrain.distributed import local_processes, world
from drivetrain.distributed.placement import Placement, find_placement
from drivetrain.errors import DrivetrainError, OutOfMemory, Replanned, RestartSmaller, SpecError, Stopped
from drivetrain.hardware import cgroup, device_check
from drivetrain.hardware.cgroup import is_killed_as_one
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.hardware.neighbors import add_neighbors
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import effective_plan, evidence, plan_table
from drivetrain.plan import plan as plans
from drivetrain.supervisor import extended_run, run_folder
from drivetrain.supervisor.remote_copy import remote_runs
from drivetrain.supervisor.remote_copy.remote_runs import RemoteRuns
from drivetrain.supervisor.run_lifecycle import RunLifecycle
from drivetrain.system import child_process, process_tree, signals
from drivetrain.system.console import say, say_aside, say_error
from drivetrain.system.fault_points import fault_point
from drivetrain.system.named_folder import NamedFolder
from drivetrain.system.run_files import PLAN_FILE, RunFiles
from drivetrain.system.run_records import RunResult, RunState
from drivetrain.system.signals import KILLED_EXIT_CODE
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.phase_timer import process_seconds
from drivetrain.training.time_target import COMMAND_BEGAN
from drivetrain.tuning import batch_size, process_death
from drivetrain.tuning.measuring_child import MeasurementEnded
from drivetrain.tuning.process_death import find_avoidable

TRAINER = "drivetrain.supervisor.trainer_process"
"""Program that trains; tests start another program instead."""
SEVERAL_PROCESSES = "a run of several processes"
"""Name of a command that cannot measure, for messages."""
STOPPED_REPORT = 4.0
"""Seconds for the report of a stopped run: container engines wait ten seconds in all before they kill."""


@dataclass(frozen=True)
class TrainRequest:
    """Options of `drivetrain train`."""

    source: SpecSource
    """Job file with its overrides, also for the children of this process."""
    runs: Path = Path("runs")
    plain: bool = False
    plan: Path | None = None
    new: bool = False
    if_unfinished: bool = False
    """Whether to train nothing if the newest run of the same job is done."""
    extend: Path | None = None
    """Finished run that this run continues."""
    trace: bool = False
    """Whether a few steps are profiled."""
    placement: Placement | None = None
    """Rank of this supervisor among several, from the environment; None if it is the only one."""
    report_run: Callable[[Path], None] = lambda run: None
    """Function that is called with the run folder when it is open."""
    shown: Path | None = None
    """Plan of another run that the same command has already printed, so that only differences are printed."""

    @property
    def leads(self) -> bool:
        """Whether this supervisor writes the run folder."""
        return self.placement is None or self.placement.leads


def train(request: TrainRequest) -> int:
    """Train or resume; returns the exit code. Raises DrivetrainError for each problem before the trainer starts."""
    signals.stop_early()
    process_tree.check_threads()
    request = replace(request, source=request.source.read())
    job = request.source.load()
    request = replace(request, placement=find_placement(os.environ, job))
    if request.placement:
        say(f"placement: {request.placement.describe()}")
        if request.if_unfinished:
            raise SpecError(
                "--if-unfinished for a run on several machines",
                "a run on one machine, whose folder tells whether it is done",
                "remove --if-unfinished, and start only the processes again that have failed",
            )
    with remote_runs.open_runs(
        request.runs, job, new=request.new, fetch_done=request.if_unfinished, is_leader=request.leads
    ) as copies:
        done = run_folder.find_finished(request.runs, job) if request.if_unfinished else None
        if done:
            request.report_run(done)
            say(f"{done} is done and was trained with this job, so nothing is trained (--if-unfinished)")
            return 0
        try:
            return _Supervisor(request, job, copies).train()
        except MeasurementEnded as ending:
            return int(ending.args[0])


class _Supervisor:
    """One start of a training: the request and the job, which are updated with measured values."""

    def __init__(self, request: TrainRequest, job: Job, copies: RemoteRuns | None) -> None:
        self.request, self.job, self.copies = request, job, copies

    def train(self) -> int:
        """Open the run folder, measure the open settings of the job, and train; returns the exit code."""
        request = self.request
        continued = run_folder.find_continued(request.runs, self.job.name, request.extend, new=request.new)
        if continued:
            commits = run_folder.keep_revisions(continued, self.job)
            if commits:
                self._load_again(assignments=[*request.source.assignments, *commits])
            self.job = run_folder.keep_defaults(continued, self.job)
        self.job.check_environment(os.environ)
        for line in self.job.document.replaced:
            say(line)
        if self.job.sweep:
            say("sweep: `drivetrain sweep` tries its values; this run uses the values of the job")
        machine = self._detect_machine()
        requested_values = plans.load(request.plan).values() if request.plan else None
        self.plan_request = effective_plan.PlanRequest(request.plain, requested_values)
        if request.placement and not request.leads:
            run = run_folder.open_follower(request.runs, self.job, request.placement.index)
        else:
            run = self._open_folder()
        request.report_run(run.path)
        self.request = replace(self.request, source=self.request.source.copy_to(run.path, self.job))
        if request.placement:
            batch_size.refuse_auto(self.job, SEVERAL_PROCESSES)
        # The batch size is measured first, because the plan depends on it.
        source = self.request.source
        self._add_measured(batch_size.measure_once(source, self.job, machine, run.path, plain=request.plain))
        plan, stored = self._choose_plan(machine, run)
        plan_table.show(plan, self.job, machine, run.path / PLAN_FILE, stored, request.shown)
        return self._run(machine, plan, run)

    def _load_again(self, **changes: Any) -> None:
        """Change the source, and load the job from it again."""
        self.request = replace(self.request, source=replace(self.request.source, **changes))
        self.job = self.request.source.load()

    def _add_measured(self, measured: Mapping[str, int]) -> None:
        if measured:
            self._load_again(measured={**self.request.source.measured, **measured})

    def _detect_machine(self) -> Hardware:
        """Detect the hardware that the job may use, and check it against the number of processes."""
        fault_point("detect")
        job, placement = self.job, self.request.placement
        machine = world.share_hardware(add_neighbors(detect(self.request.runs)), placement)
        machine = device_check.select_devices(machine, world.choose_gpus(job.limits.gpus, machine, placement))
        world.check_world_size(job, machine)
        return machine

    def _open_folder(self) -> run_folder.RunFolder:
        """Open the run folder of the command, and start copying it."""
        request, job, copies = self.request, self.job, self.copies
        after = copies.highest_number if copies else 0
        run = extended_run.open_run(request.runs, job, request.extend, self.plan_request, new=request.new, after=after)
        if copies:
            copies.start_copying(run.path)
        return run

    def _choose_plan(self, machine: Hardware, run: run_folder.RunFolder) -> tuple[plans.Plan, plans.Plan | None]:
        """Choose the plan; also returns the stored plan if the run resumes."""
        request, job = self.request, self.job
        stored = effective_plan.load_plan(run.path) if run.resumes and effective_plan.has_trained(run.path) else None
        if stored:
            instead = [extended_run.advise_other_plan(request.extend)] if request.extend else []
            self.plan_request = self.plan_request.resume(run.path, RunState.read(run.path), stored, *instead)
        plan = plans.resolve(
            job,
            machine,
            plain=self.plan_request.plain,
            # A resumed run keeps its plan: other threads or memory formats would change the bits of the result.
            replay=stored.values() if stored else self.plan_request.plan,
        )
        return plans.keep_reasons(plan, stored) if stored else plan, stored

    def _run(self, machine: Hardware, plan: plans.Plan, run: run_folder.RunFolder) -> int:
        """Train in the run folder, and write its records from beginning to end."""
        request, job, source = self.request, self.job, self.request.source
        measured = [f"train.{key}={value}" for key, value in source.measured.items()]
        spec = source.folder / source.spec.name if source.folder else source.spec
        lifecycle = RunLifecycle(run, str(spec), [*source.assignments, *measured], vars(self.plan_request))
        lifecycle.begin(machine, job.track if request.leads else None)
        if is_killed_as_one() and machine.memory.limit and job.optimize.get("micro_batch") != "auto":
            EventLog(run.path).add("memory", process_death.KILLED_AS_ONE_NOTE)
        code = _run_attempt(request, job, machine, plan, run, lifecycle.state["attempts"])
        process_death.remove_empty_logs(run.path)
        lifecycle.end(code)
        if code in signals.ABORTED_CODES:
            say(f"ended at once by another {signals.describe_signal(code - 128)}: {lifecycle.describe_progress()}")
        elif request.leads:
            lifecycle.report(STOPPED_REPORT if code == Stopped.exit_code else None)
            lifecycle.finish_tracking()
            if code == 0:
                say(f"next: drivetrain predict {shlex.quote(child_process.format_path_argument(run.path))} FILES")
        # Finish the copy last, so that it includes the report.
        copied = self.copies.finish(run.path, code) if self.copies else code
        if copied != code:
            lifecycle.end(copied)
        return copied


def _run_attempt(
    request: TrainRequest, job: Job, machine: Hardware, plan: plans.Plan, run: run_folder.RunFolder, attempt: int
) -> int:
    """Run the trainer, and restart it from its last checkpoint as long as another plan may avoid its death."""
    fault_point("first attempt")
    arguments: list[str] = []
    count, folder = world.count_trainers(job, machine), NamedFolder(run.path)
    command_began = {COMMAND_BEGAN: repr(time.monotonic() - process_seconds())}
    with signals.forward_signals() as forward:
        while True:
            RunFiles(run.path).write_json(PLAN_FILE, plan.to_json())
            kills_before = cgroup.read_oom_kills(Path("/"))
            code = run_trainers(request, count, plan.environment(machine) | command_began, forward, run, arguments)
            other = folder.restore()
            if other:
                EventLog(run.path).add("storage", NamedFolder.MESSAGE.format(other, run.path))
            if code == 0:
                return 0
            # The trainer writes the result when the model is complete; after that it only fits simple models.
            if RunResult.read(run.path).attempt == attempt:
                say(f"baselines: the comparison ended with exit code {code}; the run is complete")
                return 0
            # The trainer has finalized the plan in the meantime, and may have measured.
            plan = effective_plan.load_plan(run.path)
            # After an interrupted compilation, a process cannot be used for training.
            if code == Replanned.exit_code:
                arguments = ["--measured"]
                continue
            # If there are several supervisors, their starter restarts all of them.
            was_signalled = bool(forward.sent)
            death = None if request.placement else find_avoidable(code, run.path, machine, kills_before, was_signalled)
            if death is None:
                if code == RestartSmaller.exit_code:
                    return OutOfMemory.exit_code  # its message has already given advice
                if code == KILLED_EXIT_CODE:
                    say_aside(signals.explain_kill("the trainer"))
                return code
            was_measuring = not arguments and not effective_plan.has_trained(run.path) and evidence.may_measure(job)
            try:
                plan, text = death.plan_restart(plan, -(-job.train.batch // count), was_measuring=was_measuring)
            except DrivetrainError as error:
                say_error(error)
                return error.exit_code
            EventLog(run.path).add(death.kind, text)
            arguments = ["--measured"]


def run_trainers(
    request: TrainRequest,
    count: int,
    environment: dict[str, str],
    forward: signals.SignalForwarder,
    run: run_folder.RunFolder,
    arguments: Sequence[str],
) -> int:
    """Run the trainer and the other ranks, if there are any; returns the exit code of the first rank."""

    def command(folder: Path) -> list[str]:
        return [*trainer_command(request, folder), *arguments]

    with (
        local_processes.open_meeting(count, request.placement) as processes,
        local_processes.start_followers(processes, run.path, command, environment) as followers,
    ):
        return child_process.run_child(
            command(run.path),
            environment | processes.environment(0),
            forward,
            [run.lock, *processes.open_files()],
            followers,
            functools.partial(local_processes.wait_for_end, followers=followers),
        )


def trainer_command(request: TrainRequest, folder: Path) -> list[str]:
    """Return the command that trains in a run folder."""
    paths = map(child_process.format_path_argument, (folder, request.source.spec))
    command = [sys.executable, "-m", TRAINER, *paths, *request.source.options()]
    return [*command, "--trace"] if request.trace else command
