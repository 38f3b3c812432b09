"""The tuner measures candidate values of the plan on the user's network and batches, before the first step.

Each candidate trains a copy of the network for a few real steps, in turn with the baseline (A B A B) and on the same
batches. The ratio of each pair of blocks is one observation, so noise hits both. Before its speed counts, its numbers
are checked: losses and gradient norms of the first steps, against everything off in fp32 over the same batches and
random numbers. A value outside of the tolerance of its declared effect is rejected, however fast it is. A winner is the
next baseline; a value that lost narrowly is tried again together with a winner that may suit it.

The run itself does not change: every variant has its own copy, and all random numbers depend on (seed, step).
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drivetrain import optimizations
from drivetrain.data.dataset import Dataset
from drivetrain.errors import StorageError
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.models.build import Model
from drivetrain.models.inspection import inspect_workload
from drivetrain.optimizations import Effect, Optimization, Stage, Value
from drivetrain.plan import calibrated, evidence
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import LEARNED, OPEN, Plan, format_value
from drivetrain.system import timeout
from drivetrain.system.signals import Signals
from drivetrain.training.phase_timer import PhaseTimer, process_seconds
from drivetrain.training.run import Run, assemble
from drivetrain.training.user_parts import UserParts
from drivetrain.tuning import process_settings, tuner_state, variants, vetted_plans
from drivetrain.tuning.paired_timing import BLOCK_SECONDS, compare
from drivetrain.tuning.tuner_state import TimeBudget, TunerState
from drivetrain.tuning.variants import Variant, VariantBuilder, Verdict

COMPARED = 0.7
"""Share of the remaining time within which compilation must end, so that there is time to compare."""
FULL = 120.0
"""Seconds that `measure: full` may take at least."""
COMPILING = 60.0
"""Seconds that must be left to start a compilation that cannot be interrupted."""
QUICKEST = 15.0
"""The same if it can be interrupted; in less time hardly any network compiles."""
OWN = 2 / 3
"""Share of the limit for measurements in this process other than compilation, if process settings are measured, too."""
SETTLED = ("job", "file", "measured", *LEARNED)
"""Sources of decisions that are not measured again."""


class Tuner(VariantBuilder):
    """Measures for one job.

    Args:
        made: the run, assembled under the plan so far; it is never changed.
        dataset: its data.
        network: its network, with the initial weights.
        say: reports progress.
        source: the spec, if child processes may measure process settings.
    """

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        network: Model,
        say: Callable[[str], None],
        source: SpecSource | None = None,
    ) -> None:
        super().__init__(run, dataset, network, say)
        self.source = source
        self.compiling = COMPILING
        self.reported = set[str]()
        """Lines about values that are not measured."""
        self.standing = process_seconds() if source else 0.0
        """Seconds that a child needs until it can train, as measured on this process."""

    def tune(self, seconds: float | None) -> dict[str, Measurement]:
        """Measure every candidate, and report what that took.

        Args:
            seconds: time limit; None to derive it from the predicted length of the run.
        """
        run = self.made
        contests = list[TunerState]()

        def begin() -> Variant:
            contests.append(TunerState(run.plan, self.arm(run.plan)))
            return contests[0].incumbent

        limit = tuner_state.plan_budget(begin, run.total_steps, seconds, self.say)
        if limit is None:
            return vetted_plans.short(self)
        (contest,) = contests
        self._all(contest, limit)
        names = ", ".join(contest.measurements) or "nothing"
        self.say(f"tune: finished in {limit.spent():.0f} s of {limit.seconds:.0f} s; measured: {names}")
        return contest.measurements

    def _all(self, contest: TunerState, limit: TimeBudget) -> None:
        """Measure one value after the other within the limit; then what takes a process of its own."""
        run, rivals = self.made, list[process_settings.Rival]()
        if self.source and limit.seconds >= process_settings.MIN_BUDGET_SECONDS:
            rivals = process_settings.list_contested(run.job, run.hardware, run.plan)
        share = OWN if rivals else 1.0
        vetted_plans.defaults(self, contest, time.monotonic() + COMPARED * limit.left())
        out_of_time = set[str]()
        while not timeout.has_timed_out() and (case := self._next(contest)) is not None:
            part = share if case[0].stage is not Stage.COMPILE else 1.0
            self._measure(contest, *case, limit.step_seconds, limit.left(part), out_of_time)
        if rivals and self.source:
            contest.measurements |= process_settings.measure(
                self.source,
                run.hardware,
                contest.plan,
                rivals,
                limit.run_seconds,
                limit.left(),
                self.say,
                self.standing,
            )

    def _measure(
        self,
        contest: TunerState,
        optimization: Optimization,
        value: Value,
        step: float,
        seconds_left: float,
        out_of_time: set[str],
    ) -> None:
        """Compare one value with the baseline, if there is time."""
        challenger = contest.plan.with_values({optimization.name: value})
        compiles = challenger.value("compile") is not False
        compiling = min(QUICKEST, self.compiling) if self.source else self.compiling
        if seconds_left < max(4 * BLOCK_SECONDS, 10 * step, compiling if compiles else 0.0):
            contest.trials.setdefault((optimization.name, value), []).extend([(0.0, contest.plan)] * 2)
            if f"{optimization.name} {value}" not in out_of_time:
                out_of_time.add(f"{optimization.name} {value}")
                self.say(f"tune: {optimization.name} {format_value(value)} not measured: no time left")
            return
        verdict = self._verdict(optimization, contest.incumbent, challenger, step, seconds_left)
        text = contest.record(optimization.name, value, verdict)
        self.say(f"tune: {optimization.name} {text}")
        if verdict.wins:
            contest.incumbent = self.arm(contest.plan)
            contest.incumbent.steps(2)

    def _next(self, contest: TunerState) -> tuple[Optimization, Value] | None:
        """The most promising value that is still to be measured with the present plan."""
        cases = [case for case in self._list_contested(contest.plan) if contest.should_measure(case[0].name, case[1])]
        return min(cases, key=lambda case: contest.rank(case[0].name, case[1]), default=None)

    def _list_contested(self, plan: Plan) -> Iterator[tuple[Optimization, Value]]:
        job, hardware = self.made.job, self.made.hardware
        for optimization in optimizations.every():
            is_decided = plan.row(optimization.name).source in SETTLED
            idle = optimization.needs is not None and plan.value(optimization.needs) is False
            if is_decided or idle or optimization.stage in (Stage.PROCESS, Stage.LOADER):
                continue
            for value in optimization.candidates(job, hardware, self.facts):
                if value == plan.value(optimization.name) or optimization.effect(self.facts) is Effect.TRAINING:
                    continue
                if not self._is_hopeless(optimization, value):
                    yield optimization, value

    def _is_hopeless(self, optimization: Optimization, value: Value) -> bool:
        """Whether the calibration spares measuring a value; that is reported once."""
        run = self.made
        present = run.plan.value(optimization.name)
        if value == present:
            return False
        reason = calibrated.is_hopeless(optimization, run.job, run.hardware, self.facts, value, present)
        if (
            reason
            and (line := f"tune: {optimization.name} {format_value(value)} not measured: {reason}") not in self.reported
        ):
            self.reported.add(line)
            self.say(line)
        return reason is not None

    def _bound_time(self, plan: Plan, seconds: float) -> contextlib.AbstractContextManager[None]:
        """A time limit around steps in which a compiler may run, if another process can take over after an
        interruption.
        """
        compiles = plan.value("compile") is not False
        return timeout.time_limit(seconds) if self.source and compiles else contextlib.nullcontext()

    def _verdict(
        self, optimization: Optimization, incumbent: Variant, plan: Plan, step: float, seconds_left: float
    ) -> Verdict:
        quiet = variants.redraws(optimization, plan, self.facts, self.made.device.type == "cuda")
        begun = time.monotonic()
        try:
            reference, start = self.reference(quiet, plan, begun + COMPARED * seconds_left), time.monotonic()
            seconds_left -= start - begun
            challenger = self.arm(plan)
            challenger.until = start + COMPARED * seconds_left
            with self._bound_time(plan, COMPARED * seconds_left):
                numbers = challenger.numbers(quiet)
        except (variants.TooSlow, timeout.TimedOut) as error:
            return Verdict(False, str(error))
        first = time.monotonic() - start
        wrong = variants.differs(numbers, reference, variants.tolerance(plan))
        if wrong:
            return Verdict(False, f"vetoed: {wrong}")
        cost = max(0.0, first - (variants.COMPARED_STEPS + 1) * step) if optimization.stage is Stage.COMPILE else 0.0
        self.compiling = min(self.compiling, 2 * cost) if cost else self.compiling
        for side in (incumbent, challenger):
            side.batches = self.batches(side.run)
        try:
            with self._bound_time(plan, max(1.0, seconds_left - first)):
                pair = compare(incumbent.steps, challenger.steps, step, (seconds_left - first) / 3)
        except timeout.TimedOut as error:
            return Verdict(False, str(error))
        return variants.judge(pair, cost, self.made.total_steps * step)


def load_or_measure(
    job: Job,
    hardware: Hardware,
    plan: Plan,
    dataset: Dataset,
    network: Model,
    folder: Path,
    signals: Signals,
    say: Callable[[str], None],
    source: SpecSource | None = None,
    parts: UserParts | None = None,
) -> dict[str, Measurement]:
    """Results for all candidates: from the cache, else measured now if the run is long enough.

    `measure: off` uses no measurements, `auto` spends 2 % of a run that is predicted to take five minutes or more,
    `full` measures whatever the length. With a `source`, threads, OpenMP runtime and allocator are measured, too.
    """
    mode = job.optimize.get("measure", "auto")
    open_ = [row.name for row in plan.decisions if row.source in OPEN]
    if mode == "off" or not open_:
        return {}
    name = speed_key(job, hardware, dataset, network, source is not None)
    stored = evidence.load(hardware, name)
    names = name, numbers_key(name, job, dataset, network) if stored else None
    if names[1] and (sure := evidence.load(hardware, names[1])):
        say(f"tune: measured before, on {next(iter(sure.values())).date}; reusing the results")
        return sure
    copied = replace(network, module=copy.deepcopy(network.module))
    run = assemble(job, hardware, plan, folder, dataset, copied, signals, PhaseTimer(), user_parts=parts)
    if run.ends_solved and mode != "full":
        say("tune: skipped, the heads are solved and no step is trained")
        return {}
    tuner = Tuner(run, dataset, network, say, source)
    measurements = vetted_plans.again(tuner, stored) if stored else {}
    if not measurements:
        run_seconds = tuner_state.predict_seconds(tuner.arm(plan), run.total_steps)[1] if mode == "full" else 0.0
        measurements = tuner.tune(max(FULL, tuner_state.MEASURING_SHARE * run_seconds) if mode == "full" else None)
    if measurements:
        names = name, names[1] or numbers_key(name, job, dataset, network)
        store_measurements(job, hardware, names, measurements, say)
    return measurements


HASHED_SAMPLES = 64
"""Samples of the training data whose content enters the key; another scale of the data shows in any of them."""
IGNORED_KEYS = ("name", "checkpoint", "limits", "monitor", "sweep")
"""Parts of a spec that do not affect any step."""


def speed_key(job: Job, hardware: Hardware, dataset: Dataset, network: Model, apart_too: bool) -> str:
    """The cache key for speeds, which hold for every job with the same network and batch size on the same machine."""
    train = job.train
    shapes = {name: list(value.shape) for name, value in network.module.state_dict().items()}
    steps = -(-len(dataset.train) // train.batch) * train.epochs
    fixed = [
        train.optimizer.kind,
        train.is_deterministic(on_gpu=hardware.gpu is not None),
        str(train.loss),
        str(getattr(job.data, "augment", None)),
        sorted((key, str(value)) for key, value in job.optimize.items()),
        # A longer run has a larger budget for measuring, and gains more by it.
        min(steps, train.steps or steps).bit_length(),
        apart_too,
    ]
    return evidence.key(hardware, inspect_workload(dataset, network.module), train.batch, shapes, fixed)


def numbers_key(name: str, job: Job, dataset: Dataset, network: Model) -> str | None:
    """The cache key for numerical checks; None if it cannot be known whether they would be the same.

    A result is stored under this key and that for speeds, and its numbers are checked again if only the latter matches.
    This one covers everything that the first steps depend on: settings, preprocessing, samples, initial weights and user
    code.
    """
    if job.task == "python":  # network and loss come from a Python program, whose code cannot be hashed
        return None
    spec = {key: value for key, value in job.dump().items() if key not in IGNORED_KEYS}
    code = network.code.digests() if network.code else {}
    parts = [
        name,
        spec,
        dataset.preprocessing,
        code,
        _hash_samples(dataset),
        _hash_tensors(network.module.state_dict()),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def store_measurements(
    job: Job,
    hardware: Hardware,
    names: tuple[str, str | None],
    measurements: Mapping[str, Measurement],
    say: Callable[[str], None],
) -> None:
    """Store measurements; process settings also where the supervisor finds them without torch.

    Args:
        job: the spec.
        hardware: its cache is used.
        names: the keys for speeds and for numerical checks.
        measurements: the results.
        say: reports it if they cannot be stored.
    """
    started = {key: row for key, row in measurements.items() if key in process_settings.names()}
    try:
        for name in filter(None, names):
            evidence.store(hardware, name, measurements)
        if started:
            evidence.store(hardware, evidence.early(hardware, job), started)
    except (OSError, StorageError) as error:
        say(f"tune: the measurements could not be stored: {error}")


def _hash_samples(dataset: Dataset) -> str:
    ids = np.arange(min(HASHED_SAMPLES, len(dataset.train)), dtype=np.int64)
    targets = {name: values[torch.from_numpy(ids)] for name, values in dataset.train.targets.items()}
    return _hash_tensors({str(number): x for number, x in enumerate(dataset.train.gather(ids))} | targets)


def _hash_tensors(tensors: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
