"""Forecasts how long a run takes from a few timed steps, and chooses its length for `train.within`; without torch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from drivetrain.distributed import world
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.train import Train
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import Plan
from drivetrain.system.console import say
from drivetrain.system.files import read_json, write_json
from drivetrain.system.run_files import BATCH_SIZE_FILE, RESULT_FILE, RUN_LENGTH_FILE, RunFiles
from drivetrain.system.units import format_bytes
from drivetrain.tracking.event_log import EventLog
from drivetrain.tracking.live.time_left import format_clock_time
from drivetrain.training.forecast import format_moment
from drivetrain.training.time_target import MAX_EPOCHS
from drivetrain.tuning import measuring_child

MIN_STEPS = 20
"""Fewer steps are no training: a schedule has no time to rise and fall."""
ENDING_SECONDS = 7.0
"""For what follows the last evaluation: model, report, and the start of the process of the simple models."""
SIMPLE_MODELS_SHARE, MAX_SIMPLE_MODELS_SECONDS = 0.1, 60.0
"""Time for the simple models, which say what the network's result is worth: a share of the training, at most this."""
RESERVED_SHARE, RESERVED_SECONDS = 0.05, 6.0
"""Share of `train.within` that stays free for them, since they seldom need all of theirs; of short times these seconds, at most a tenth."""
MARGIN = 0.05
"""Share of the time that stays free, since steps never take all the same time."""


@dataclass(frozen=True)
class RunTimes:
    """Measured seconds and bytes of a job on this machine."""

    start: float
    """Seconds until the first step: libraries, data and network."""
    step: float
    """Seconds of a training step, its batch included."""
    evaluation: float
    """Seconds of an evaluation."""
    steps_per_epoch: int
    peak_bytes: int
    """Memory at the peak, as the run will report it."""
    test: float = 0.0
    """Seconds of the final test."""
    is_solved: bool = False
    """Whether solving the heads is the whole training, so that there are no steps."""

    def train_seconds(self, steps: int) -> float:
        """Seconds of so many steps, and of an evaluation after each epoch that they begin."""
        return steps * self.step + -(-steps // self.steps_per_epoch) * self.evaluation

    def fit_steps(self, seconds: float) -> int:
        """The largest number of steps, with their evaluations, that fit into these seconds; 0 if not even one does."""
        epoch_seconds = self.train_seconds(self.steps_per_epoch)
        epochs = max(0, int(seconds / epoch_seconds))
        more_steps = int((seconds - epochs * epoch_seconds - self.evaluation) / self.step)
        return epochs * self.steps_per_epoch + max(0, more_steps)

    def count_steps(self, train: Train) -> int:
        """The number of steps of a run."""
        steps = train.epochs * self.steps_per_epoch
        return min(steps, train.steps or steps)

    def predict_seconds(self, train: Train) -> float:
        """Seconds of a run from its command to its end."""
        return self.start + self.train_seconds(self.count_steps(train)) + self.test + ENDING_SECONDS

    def describe(self, train: Train) -> str:
        """How long the run takes, in parts."""
        steps = self.count_steps(train)
        total = self.predict_seconds(train)
        evaluations = -(-steps // self.steps_per_epoch)
        return (
            f"about {_format_seconds(total)}: start {_format_seconds(self.start)}, {steps:,} steps "
            f"{_format_seconds(steps * self.step)} ({self.step * 1000:.3g} ms each), {evaluations:,} evaluations "
            f"{_format_seconds(evaluations * self.evaluation)}, end {_format_seconds(self.test + ENDING_SECONDS)}; memory {format_bytes(self.peak_bytes)}"
        )


def measure_times(source: SpecSource, plan: Plan, machine: Hardware) -> RunTimes:
    """Time a few steps and evaluation batches in a child process; raises MeasurementEnded if that failed."""
    return RunTimes(**measuring_child.measure_result("run_times", source, plan, machine))


def choose_once(
    source: SpecSource, job: Job, machine: Hardware, plan: Plan, folder: Path, elapsed_seconds: float
) -> dict[str, int]:
    """Choose the length of a run with `train.within`, once per run.

    Args:
        source: the spec, with the batch size if that was measured.
        job: the same, loaded.
        machine: the hardware.
        plan: of the run.
        folder: of the run, which keeps the result.
        elapsed_seconds: since the command began.

    Returns:
        `epochs` and `steps`; empty if there is no length to choose.

    Raises:
        SpecError: if the run has several processes, or no training fits into the time.
        MeasurementEnded: if a few steps could not be timed.
        Stopped: if a signal came meanwhile.
    """
    if not job.train.within:
        return {}
    if stored := read_measured(folder, job):
        return stored
    if world.count_local_ranks(job, machine) > 1:
        refuse_within(job, "a run of several processes")
    say(f"within: timing a few steps, for train.within: {job.train.within}")
    begin = time.monotonic()
    times = measure_times(source, plan, machine)
    elapsed_seconds += time.monotonic() - begin
    if times.is_solved:
        say("within: the heads are solved in one pass, so there is no length to choose")
        return {}
    length = choose_length(job, times, elapsed_seconds)
    train_seconds = parse_duration(job.train.within) - elapsed_seconds - _reserve_for_ending(job, times)
    train = job.train.model_copy(update=length)
    seconds = times.predict_seconds(train) - ENDING_SECONDS
    forecast = {"seconds": seconds, "end": format_moment(seconds), "steps": 0, "peak_memory": times.peak_bytes}
    record = {**length, "train_seconds": train_seconds, "times": asdict(times), "forecast": forecast}
    write_json(folder / RUN_LENGTH_FILE, record)
    EventLog(folder).add(
        "within",
        f"{length['epochs']:,} epochs, {length['steps']:,} steps in all, for train.within: {job.train.within}: "
        f"{times.describe(train)}",
    )
    return length


def choose_length(job: Job, times: RunTimes, elapsed_seconds: float) -> dict[str, int]:
    """The epochs and steps that end in time; raises SpecError if there is no time for a training."""
    limit = parse_duration(job.train.within or "")
    begun_seconds = elapsed_seconds + times.start + _reserve_for_ending(job, times)
    steps = times.fit_steps(limit * (1 - MARGIN) - begun_seconds)
    if steps < min(MIN_STEPS, times.steps_per_epoch):
        needed = (begun_seconds + times.train_seconds(times.steps_per_epoch)) / (1 - MARGIN)
        raise job.spec_error(
            ("train", "within"),
            f"is {job.train.within}, and one epoch ends after {_format_seconds(needed)}, {_format_seconds(elapsed_seconds)} of "
            f"them until now: {times.describe(job.train.model_copy(update={'epochs': 1, 'steps': None}))}",
            f"{_format_seconds(needed)} or more",
            "raise it, or make an epoch shorter: fewer samples, smaller pictures or shorter texts, a smaller network",
        )
    steps = min(steps, MAX_EPOCHS * times.steps_per_epoch)
    return {"epochs": -(-steps // times.steps_per_epoch), "steps": steps}


def _reserve_for_ending(job: Job, times: RunTimes) -> float:
    """Seconds of `train.within` that are left to what follows the training, simple models included."""
    ending_seconds = times.test + ENDING_SECONDS
    if job.baselines == "off":
        return ending_seconds
    seconds = parse_duration(job.train.within or "")
    reserved = max(RESERVED_SHARE * seconds, min(RESERVED_SECONDS, SIMPLE_MODELS_SHARE * seconds))
    return ending_seconds + min(MAX_SIMPLE_MODELS_SECONDS, reserved)


def _format_seconds(seconds: float) -> str:
    """`4.2 s`, `42 s`, `12:05`."""
    return format_clock_time(seconds) if seconds >= 100 else f"{seconds:.{0 if seconds >= 10 else 1}f} s"


def refuse_within(job: Job, command: str) -> None:
    """Refuse `train.within` where its time is not measured.

    Raises:
        SpecError: with what can be done instead.
    """
    if job.train.within:
        raise job.spec_error(
            ("train", "within"),
            f"is {job.train.within}, which {command} cannot measure",
            "train.epochs; within is measured by `drivetrain train` in one process",
            "remove it, and set train.epochs",
        )


def read_measured(run: Path, job: Job) -> dict[str, int]:
    """What a run has measured by key of `train:`, as far as its job asks for it; empty before."""
    files: dict[str, tuple[str, ...]] = {BATCH_SIZE_FILE: ("batch_size",)} if job.train.batch_size == "auto" else {}
    files |= {RUN_LENGTH_FILE: ("epochs", "steps")} if job.train.within else {}
    stored = {key: RunFiles(run).read_object(name).get(key) for name, keys in files.items() for key in keys}
    return {key: value for key, value in stored.items() if isinstance(value, int)}


def _read_trained(run: Path, job: Job) -> dict[str, int]:
    """As `read_measured`, but with the length that the run has had in the end."""
    measured, changes = read_measured(run, job), RunFiles(run).read_object(RESULT_FILE).get("length_changes")
    if "steps" not in measured or not changes:
        return measured
    steps = int(changes[-1][1])
    steps_per_epoch = int(read_json(run / RUN_LENGTH_FILE)["times"]["steps_per_epoch"])
    return measured | {"epochs": -(-steps // steps_per_epoch), "steps": steps}


def pin_measured(job: Job, runs: Iterable[Path]) -> tuple[str, ...]:
    """The assignments with which a run has what the first of the others has measured; none if nothing was.

    Args:
        job: with which the run would be trained.
        runs: folders of other runs of the same command.
    """
    measured = next(filter(None, (_read_trained(run, job) for run in runs)), {})
    ends_within = ("train.within=null",) if "epochs" in measured else ()
    return (*ends_within, *(f"train.{key}={value}" for key, value in measured.items()))
