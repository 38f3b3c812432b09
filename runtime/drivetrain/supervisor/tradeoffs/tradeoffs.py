"""`drivetrain tradeoffs`: measures on a job what the usual advice saves in time, and what it costs in quality.

Every variant is trained with the same seed and data, first for a share of its epochs, the better half for more of them
(successive halving, Jamieson & Talwalkar 2016), and with further seeds as far as the time goes. Every training is an ordinary run
in the folder of the command, and the same command goes on where it was stopped. Nothing is changed in the job.
"""

from __future__ import annotations

import math
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic_core import PydanticCustomError

from drivetrain.errors import DeviceError, SpecError
from drivetrain.job import Job
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan.plan import read_plan
from drivetrain.report import tradeoffs_page
from drivetrain.report.formatting import format_duration
from drivetrain.report.record import describe_exit
from drivetrain.supervisor import run_folder, same_conditions, supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.supervisor.sweep.sweep import TRIAL_FAILURES, WITHOUT_SWEEP
from drivetrain.supervisor.tradeoffs.variants import (
    BASELINE,
    Measured,
    Variant,
    choose_survivors,
    compare,
    find_front,
    list_variants,
    measure_other_seconds,
    read_training,
)
from drivetrain.system.console import redirect_output, say
from drivetrain.system.files import make_folder
from drivetrain.system.run_files import PREPROCESSING_FILE, RESULT_FILE, RunFiles
from drivetrain.system.run_records import read_mapping
from drivetrain.tuning import batch_size, run_length

SHARES: tuple[tuple[float, ...], ...] = (
    (1.0,),
    (0.5, 1.0),
    (0.25, 0.5, 1.0),
    (0.125, 0.25, 0.5),
    (0.0625, 0.125, 0.25),
)
"""Shares of the epochs of each round; the first row whose forecast fits into the time is taken."""
FIRST_SHARE = 0.125
"""Of the first training, which tells how long the others take."""
MORE_SEEDS = 2
LOG = "tradeoffs.log"
"""What the trainings print."""


@dataclass(frozen=True)
class TradeoffsRequest:
    """The options of `drivetrain tradeoffs`."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    within: str = "30m"
    """Begin no training that would end later."""
    new: bool = False
    """Whether unfinished runs are left, and others begun in their place."""


def measure_tradeoffs(request: TradeoffsRequest) -> int:
    """Train the variants of a job; returns 0, or the exit code of the training that ended the command.

    Raises:
        SpecError: if `within` is no duration, or the job has a batch size or length that is measured, or a number of steps.
        DrivetrainError: for every problem of the job as it is that is found before its trainer starts.
    """
    try:
        seconds = parse_duration(request.within)
    except (ValueError, PydanticCustomError):
        raise SpecError(f"--within {request.within}", "a time with its unit: 30m, 2h", "change it") from None
    source = SpecSource(request.spec, request.assignments).read()
    job = source.load()
    run_length.refuse_within(job, "drivetrain tradeoffs")
    batch_size.refuse_auto(job, "drivetrain tradeoffs")
    if job.train.steps:
        raise job.spec_error(
            ("train", "steps"),
            f"is {job.train.steps:,}, and drivetrain tradeoffs trains variants for shares of the epochs",
            "train.epochs alone",
            "remove it, and set train.epochs",
        )
    folder = request.runs / f"{job.name}-tradeoffs"
    make_folder(folder)
    with tempfile.TemporaryDirectory(prefix="tradeoffs-") as scratch:
        return _Tradeoffs(request, source.copy_to(Path(scratch), job), job, folder, seconds).run()


class _TrainingEnded(Exception):
    """A training has ended with an exit code that ends the command."""

    def __init__(self, code: int) -> None:
        self.code = code


class _Tradeoffs:
    """One command."""

    def __init__(self, request: TradeoffsRequest, source: SpecSource, job: Job, folder: Path, seconds: float) -> None:
        self.request, self.source, self.job, self.folder = request, source, job, folder
        self.metric = job.best()
        self.deadline = time.monotonic() + seconds
        # Layers that are trained later must be so in every training.
        later = [layers.epoch for layers in getattr(getattr(job, "model", None), "unfreeze", ())]
        self.least_epochs = max([2, *later])
        self.baseline = self._start_row(Variant(BASELINE))
        self.rows = [self.baseline]
        self.last_run = folder

    def run(self) -> int:
        """Train round after round; returns the exit code."""
        try:
            if not self._train(self.baseline, FIRST_SHARE):
                say(f"tradeoffs: the job as it is gives no {self.metric}: {self.baseline.failure}")
                return 1
            self._add_variants()
            if not self._train_rounds(self._choose_shares()):
                say(f"tradeoffs: --within {self.request.within} has passed; a longer time goes on with what is there")
        except _TrainingEnded as ending:
            say(f"tradeoffs: {sum(len(row.trainings) for row in self.rows)} runs are done; the same command goes on")
            return ending.code
        return self._finish()

    def _start_row(self, variant: Variant) -> Measured:
        epochs = self.job.train.epochs
        return Measured(variant, epochs, epochs, self.least_epochs)

    def _add_variants(self) -> None:
        first = self.last_run
        preprocessing = read_mapping(RunFiles(first).read_object(PREPROCESSING_FILE), "preprocessing")
        precision = str(read_plan(first).value("precision"))
        is_solved = bool(RunFiles(first).read_object(RESULT_FILE).get("solved"))
        for variant in list_variants(self.job, preprocessing, precision, is_solved=is_solved):
            row = self._start_row(variant)
            try:
                row.epochs = self._load(row, None, self.job.train.seed)[1].train.epochs
            except SpecError as error:
                row.failure = str(error).splitlines()[0]
            self.rows.append(row)

    def _choose_shares(self) -> tuple[float, ...]:
        """The shares of all rounds, by how long they take if every variant takes as long as the job as it is."""
        count, other_seconds = len(self.rows) - 1, measure_other_seconds(self.rows)
        for shares in SHARES:
            counts = [1 + math.ceil(count / 2**index) for index in range(len(shares))]
            seconds = sum(
                runs * self.baseline.forecast_seconds(share, other_seconds)
                for runs, share in zip(counts, shares, strict=True)
            )
            if seconds <= self.deadline - time.monotonic():
                break
        # Of few epochs, several shares can be the same number.
        shares = tuple({self.baseline.count_epochs(share): share for share in shares}.values())
        rounds = ", ".join(f"{share:.3g}" for share in shares)
        say(
            f"tradeoffs: {count} variants; the job as it is takes about "
            f"{format_duration(self.baseline.forecast_seconds(1.0, other_seconds))}. Rounds with {rounds} of the epochs, about "
            f"{format_duration(seconds)} in all"
        )
        return shares

    def _train_rounds(self, shares: Sequence[float]) -> bool:
        """Train all rounds, and further seeds; returns whether the time was enough for the rounds."""
        candidates = [row for row in self.rows[1:] if not row.failure]
        for index, share in enumerate(shares):
            for row in (self.baseline, *candidates):
                if not self._train(row, share) and not row.failure:
                    return False
            if index + 1 < len(shares):
                count = math.ceil(len(candidates) / 2)
                candidates = choose_survivors(candidates, self.baseline, self.metric, count)
        useful = choose_survivors(candidates, self.baseline, self.metric, len(candidates))
        for offset in range(1, MORE_SEEDS + 1):
            for row in (self.baseline, *useful):
                if not self._train(row, shares[-1], self.job.train.seed + offset):
                    break
        return True

    def _load(self, row: Measured, epochs: int | None, seed: int) -> tuple[SpecSource, Job]:
        """The source and the job of a training; without `epochs` that of all of them."""
        changes = [*row.variant.assignments(), f"train.seed={seed}", *WITHOUT_SWEEP]
        if epochs:
            name = row.variant.name.replace(" ", "-")
            changes += [f"name={name}-e{epochs}-s{seed}", f"train.epochs={epochs}"]
        source = replace(self.source, assignments=(*self.request.assignments, *changes))
        return source, source.load()

    def _train(self, row: Measured, share: float, seed: int | None = None) -> bool:
        """Train a variant, unless it is done; returns whether it was trained, else the time is over or it has failed."""
        seed = self.job.train.seed if seed is None else seed
        if any(training.share == share and training.seed == seed for training in row.trainings):
            return True
        epochs = row.count_epochs(share)
        try:
            source, job = self._load(row, epochs, seed)
        except SpecError as error:
            row.failure = str(error).splitlines()[0]
            return False
        run = run_folder.find_finished(self.folder, job)
        if run is None or same_conditions.find_changed_file(run, job):
            if not self._has_time(row, share):
                return False
            say(f"tradeoffs: {row.variant.name}, {epochs} of {row.epochs} epochs, seed {seed}")
            row.failure = self._train_run(source)
            if row.failure:
                return False
            run = run_folder.list_numbered(self.folder, job.name)[-1]
        training = read_training(run, self.metric, share, seed, epochs)
        if training is None:
            row.failure = f"{self.metric} is not a number"
            return False
        row.trainings.append(training)
        self.last_run = run
        return True

    def _has_time(self, row: Measured, share: float) -> bool:
        """Whether a training can be expected to end in time; the first one always begins."""
        measured = row if row.trainings else self.baseline
        if not measured.trainings:
            return True
        seconds = measured.forecast_seconds(share, measure_other_seconds(self.rows))
        return time.monotonic() + seconds <= self.deadline

    def _train_run(self, source: SpecSource) -> str:
        """Train one run; returns why it failed, if its values can be the reason."""
        train_request = TrainRequest(source, self.folder, new=self.request.new, baselines=False)
        log = self.folder / LOG
        try:
            with log.open("ab") as file, redirect_output([1, 2], file.fileno()):
                code = supervisor.train(train_request)
        except (SpecError, DeviceError) as error:
            # What this machine or job cannot do is a result; of the job as it is, it is the user's to know.
            if not self.baseline.trainings:
                raise
            return str(error).splitlines()[0]
        if code:
            say(f"tradeoffs: exit code {code}: {describe_exit(code)}; {log} has what was printed")
        if code and code not in TRIAL_FAILURES:
            raise _TrainingEnded(code)
        return f"exit code {code}: {describe_exit(code)}" if code else ""

    def _finish(self) -> int:
        front = find_front(self.rows, self.baseline, self.metric)
        other_seconds = measure_other_seconds(self.rows)
        lines = [
            tradeoffs_page.Line(
                name=row.variant.name,
                values=row.variant.describe(),
                options=shlex.join(word for a in row.variant.assignments() for word in ("--set", a)),
                epoch_seconds=row.longest.epoch_seconds if row.longest else None,
                seconds=row.forecast_seconds(1.0, other_seconds) if row.longest else None,
                value=row.longest.value if row.longest else None,
                difference=compare(row, self.baseline, self.metric),
                share=row.count_epochs(row.longest.share) / row.epochs if row.longest else 0.0,
                peak_bytes=row.longest.peak_bytes if row.longest else None,
                is_front=row in front,
                failure=row.failure,
            )
            for row in self.rows
        ]
        result = tradeoffs_page.Result(self.job.name, self.metric, tuple(lines))
        tradeoffs_page.write(self.folder, result)
        for line in result.describe():
            say(line)
        say(f"tradeoffs: {self.folder}/tradeoffs.html")
        return 0
