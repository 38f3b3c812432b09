"""Measures candidate values of the plan on the user's network and batches, before the first step.

Each candidate trains a copy of the network for a few steps on the same batches as the baseline, in turn with it (A B A B).
The ratio of each pair of blocks is one observation, so noise hits both. The numbers are checked before the speed: losses
and gradient norms of the first steps are compared with fp32 and everything off, on the same batches and random numbers. A
value beyond the tolerance of its declared effect is rejected, however fast it is. A winner is the next baseline. A value
that lost narrowly is tried again together with a winner.

The run itself does not change: every variant has its own copy, and all random numbers depend on (seed, step).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from drivetrain import optimizations
from drivetrain.data.dataset import Dataset
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.models.build import BuiltModel
from drivetrain.models.inspection import inspect_workload
from drivetrain.optimizations import Effect, Optimization, Stage, Value
from drivetrain.plan import evidence
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import CHOICE, Plan, format_value
from drivetrain.system import timeout
from drivetrain.system.console import Detail
from drivetrain.training.assemble import Assembly
from drivetrain.tuning import numerics_check, tuner_state, variants
from drivetrain.tuning.paired_timing import BLOCK_SECONDS, compare
from drivetrain.tuning.tuner_state import TimeBudget, TunerState
from drivetrain.tuning.variants import Variant, VariantBuilder, Verdict

COMPILE_SHARE = 0.7
"""Share of the remaining time for compilation, so that there is time left to compare."""
MIN_FULL_SECONDS = 120.0
"""Minimum time limit of `measure: full`."""
MIN_COMPILE_SECONDS = 60.0
"""Remaining seconds that are needed to start a compilation that cannot be interrupted."""
MIN_COMPILE_TRY_SECONDS = 15.0
"""Remaining seconds for a compilation that can be interrupted; in less time hardly any network compiles."""


class Tuner(VariantBuilder):
    """Measures the candidates of one job; with `can_restart`, a compilation may be interrupted, as in `measure_plan`."""

    def __init__(self, assembly: Assembly, *, can_restart: bool = False) -> None:
        super().__init__(assembly)
        self.can_restart = can_restart
        self.compile_seconds = MIN_COMPILE_SECONDS

    @property
    def _limit_seconds(self) -> float:
        """Remaining seconds of `train.within`; infinite without it."""
        target = self.run.time_target
        return target.seconds_left() if target else math.inf

    def tune(self, seconds: float | None) -> dict[str, Measurement]:
        """Measure every candidate within `seconds`, None for a share of the run; returns the results by name."""
        run = self.run
        planned = tuner_state.plan_budget(
            lambda: self.build(run.plan), run.total_steps, seconds, self.say, self._limit_seconds
        )
        if planned is None:
            return self._measure_quick(numerics_check.check_short_run(self))
        budget, baseline = planned
        state = TunerState(run.plan, baseline)
        self._measure_all(state, budget)
        names = ", ".join(state.measurements) or "nothing"
        self.say(f"tune: finished in {budget.elapsed_seconds():.0f} s of {budget.seconds:.0f} s; measured: {names}")
        return state.measurements

    def _measure_quick(self, checked: dict[str, Measurement]) -> dict[str, Measurement]:
        """Measure `quick` optimizations in a run that is too short for the others; returns their results and `checked`."""
        plan = self.run.plan.with_values({name: row.value for name, row in checked.items()})
        candidates = list(self._list_candidates(plan, quick_only=True))
        # Without this many steps, no comparison ends within two seconds.
        if not candidates or tuner_state.MEASURING_SHARE * self.run.total_steps < tuner_state.MIN_STEPS:
            return checked
        state = TunerState(plan, self.build(plan), dict(checked))
        step_seconds, run_seconds = tuner_state.predict_seconds(
            state.incumbent, self.run.total_steps, self._limit_seconds
        )
        if run_seconds >= tuner_state.MIN_QUICK_RUN_SECONDS:
            for optimization, value in candidates:
                self._measure_value(state, optimization, value, step_seconds, tuner_state.QUICK_SECONDS, set())
        return state.measurements

    def _measure_all(self, state: TunerState, budget: TimeBudget) -> None:
        """Measure one value after the other within the budget."""
        numerics_check.veto_wrong_defaults(self, state, time.monotonic() + COMPILE_SHARE * budget.remaining_seconds())
        out_of_time = set[str]()
        candidate = self._choose_next(state)
        while candidate is not None and not timeout.has_timed_out():
            self._measure_value(state, *candidate, budget.step_seconds, budget.remaining_seconds(), out_of_time)
            candidate = self._choose_next(state)

    def _measure_value(
        self,
        state: TunerState,
        optimization: Optimization,
        value: Value,
        step_seconds: float,
        seconds_left: float,
        out_of_time: set[str],
    ) -> None:
        """Compare one value with the baseline if there is time; `out_of_time` collects the values without time."""
        name, challenger = optimization.name, state.plan.with_values({optimization.name: value})
        needed_seconds = max(4 * BLOCK_SECONDS, 10 * step_seconds)
        if challenger.value("compile") is not False:
            least_seconds = MIN_COMPILE_TRY_SECONDS if self.can_restart else MIN_COMPILE_SECONDS
            needed_seconds = max(needed_seconds, min(least_seconds, self.compile_seconds))
        if seconds_left < needed_seconds:
            # Store two trials without a gain, so that the value is not chosen again.
            state.trials.setdefault((name, value), []).extend([(0.0, state.plan)] * 2)
            if f"{name} {value}" not in out_of_time:
                out_of_time.add(f"{name} {value}")
                self.say(f"tune: {name} {format_value(value)} not measured: no time left")
            return
        verdict = self._compare(optimization, state.incumbent, challenger, step_seconds, seconds_left)
        self.say(f"tune: {name} {state.record(name, value, verdict)}")
        if verdict.wins:
            state.incumbent = self.build(state.plan)
            state.incumbent.time_steps(2)

    def _choose_next(self, state: TunerState) -> tuple[Optimization, Value] | None:
        """Choose the most promising value that is not measured yet with the current plan."""
        ranks = {}
        for optimization, value in self._list_candidates(state.plan):
            if state.should_measure(optimization.name, value):
                ranks[optimization, value] = state.rank(optimization.name, value)
        return min(ranks, key=lambda candidate: ranks[candidate], default=None)

    def _list_candidates(self, plan: Plan, *, quick_only: bool = False) -> Iterator[tuple[Optimization, Value]]:
        job, hardware = self.run.job, self.run.hardware
        for optimization in optimizations.every():
            is_decided = plan.decision(optimization.name).source != CHOICE
            is_left_out = quick_only and not optimization.quick
            if is_decided or is_left_out or optimization.stage in (Stage.PROCESS, Stage.LOADER):
                continue
            for value in optimization.candidates(job, hardware, self.facts):
                if value == plan.value(optimization.name) or optimization.effect(self.facts) is Effect.TRAINING:
                    continue
                yield optimization, value

    def _bound_time(self, plan: Plan, seconds: float) -> contextlib.AbstractContextManager[None]:
        """Limit the time of steps that may compile, if another process can take over after an interruption."""
        if self.can_restart and plan.value("compile") is not False:
            return timeout.time_limit(seconds)
        return contextlib.nullcontext()

    def _compare(
        self, optimization: Optimization, incumbent: Variant, plan: Plan, step_seconds: float, seconds_left: float
    ) -> Verdict:
        no_dropout = variants.changes_dropout(optimization, plan, self.facts, self.run.device.type == "cuda")
        begin = time.monotonic()
        # The numbers come first, because a value with wrong numbers need not be timed.
        try:
            reference = self.load_reference(no_dropout, plan, begin + COMPILE_SHARE * seconds_left)
            start = time.monotonic()
            seconds_left -= start - begin
            challenger = self.build(plan)
            challenger.deadline = start + COMPILE_SHARE * seconds_left
            with self._bound_time(plan, COMPILE_SHARE * seconds_left):
                numbers = challenger.read_numbers(no_dropout)
        except (variants.TooSlow, timeout.TimedOut) as error:
            return Verdict(False, str(error))
        first_seconds = time.monotonic() - start
        wrong = variants.find_difference(numbers, reference, variants.choose_tolerance(plan))
        if wrong:
            return Verdict(False, f"vetoed: {wrong}")
        # The extra time of the first steps is compilation; the next compilation may take twice as long.
        compile_seconds = 0.0
        if optimization.stage is Stage.COMPILE:
            compile_seconds = max(0.0, first_seconds - (challenger.compared_steps + 1) * step_seconds)
        if compile_seconds:
            self.compile_seconds = min(self.compile_seconds, 2 * compile_seconds)
        for variant in (incumbent, challenger):
            variant.batches = self.batches(variant.run)
        seconds_left -= first_seconds
        try:
            with self._bound_time(plan, max(1.0, seconds_left)):
                pair = compare(incumbent.time_steps, challenger.time_steps, step_seconds, seconds_left / 3)
        except timeout.TimedOut as error:
            return Verdict(False, str(error))
        return variants.judge(pair, compile_seconds, min(self._limit_seconds, self.run.total_steps * step_seconds))


def load_or_measure(assembly: Assembly, *, can_restart: bool = False) -> dict[str, Measurement]:
    """Load the results for all candidates from the cache, or measure them now if the run is long enough.

    Stored speeds are also valid for other data and settings; the numbers are checked in every job. With `measure: off`
    nothing is measured, `auto` spends 2 % of a run that is predicted to take five minutes or more, and `full` measures a
    run of any length.
    """
    job, hardware, plan, dataset, say = assembly.job, assembly.hardware, assembly.plan, assembly.dataset, assembly.say
    mode = job.optimize.get("measure", "auto")
    open_names = [row.name for row in plan.decisions if row.source == CHOICE]
    if mode == "off" or not open_names:
        return {}
    key = make_speed_key(job, hardware, dataset, assembly.built_model, can_restart)
    tuner = Tuner(assembly, can_restart=can_restart)
    if tuner.run.only_solves_heads:
        say(Detail("tune: skipped, the heads are solved and no step is trained"))
        return {}
    stored = evidence.load(hardware, key)
    if stored and numerics_check.recheck_measurements(tuner, stored):
        return stored
    seconds = None
    if mode == "full":
        _, run_seconds = tuner_state.predict_seconds(tuner.build(plan), tuner.run.total_steps)
        seconds = max(MIN_FULL_SECONDS, tuner_state.MEASURING_SHARE * run_seconds)
    measurements = tuner.tune(seconds)
    if measurements:
        evidence.store(hardware, key, measurements, lambda line: say(f"tune: {line}"))
    return measurements


def make_speed_key(job: Job, hardware: Hardware, dataset: Dataset, built_model: BuiltModel, can_restart: bool) -> str:
    """Make the cache key for speeds, which are valid for all jobs with the same network, batch size and machine."""
    train = job.train
    shapes = {name: list(value.shape) for name, value in built_model.module.state_dict().items()}
    steps = -(-len(dataset.train) // train.batch) * train.epochs
    fixed = [
        train.optimizer.kind,
        train.is_deterministic(on_gpu=hardware.gpu is not None),
        str(train.loss),
        str(getattr(job.data, "augment", None)),
        sorted((key, str(value)) for key, value in job.optimize.items()),
        # A longer run has a larger budget for measuring, and gains more from it.
        min(steps, train.steps or steps).bit_length(),
        can_restart,
    ]
    return evidence.make_key(hardware, inspect_workload(dataset, built_model.module), train.batch, shapes, fixed)
