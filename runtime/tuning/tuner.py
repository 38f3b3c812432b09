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
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from runtime import optimizations
from runtime.data.dataset import Dataset
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job_spec.spec_source import SpecSource
from runtime.models.build import Model
from runtime.optimizations import Effect, Optimization, Stage, Value
from runtime.plan import calibrated, evidence
from runtime.plan.evidence import Measurement
from runtime.plan.plan import LEARNED, OPEN, Plan, written
from runtime.system import timeout
from runtime.system.signals import Signals
from runtime.training.phase_timer import PhaseTimer, since_start
from runtime.training.run import Run, assemble
from runtime.training.user_parts import UserParts
from runtime.tuning import evidence_keys, process_settings, time_budget, variants, vetted_plans
from runtime.tuning.paired_timing import BLOCK, compare
from runtime.tuning.time_budget import TimeBudget
from runtime.tuning.tuner_state import TunerState
from runtime.tuning.variant_builder import VariantBuilder
from runtime.tuning.variants import Variant, Verdict

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
        made: Run,
        dataset: Dataset,
        network: Model,
        say: Callable[[str], None],
        source: SpecSource | None = None,
    ) -> None:
        super().__init__(made, dataset, network, say)
        self.source = source
        self.compiling = COMPILING
        self.reported = set[str]()
        """Lines about values that are not measured."""
        self.standing = since_start() if source else 0.0
        """Seconds that a child needs until it can train, as measured on this process."""

    def tune(self, seconds: float | None) -> dict[str, Measurement]:
        """Measure every candidate, and report what that took.

        Args:
            seconds: time limit; None to derive it from the predicted length of the run.
        """
        made = self.made
        contests = list[TunerState]()

        def begin() -> Variant:
            contests.append(TunerState(made.plan, self.arm(made.plan)))
            return contests[0].incumbent

        limit = time_budget.planned(begin, made.total_steps, seconds, self.say)
        if limit is None:
            return vetted_plans.short(self)
        (contest,) = contests
        self._all(contest, limit)
        names = ", ".join(contest.found) or "nothing"
        self.say(f"tune: finished in {limit.spent():.0f} s of {limit.seconds:.0f} s; measured: {names}")
        return contest.found

    def _all(self, contest: TunerState, limit: TimeBudget) -> None:
        """Measure one value after the other within the limit; then what takes a process of its own."""
        made, rivals = self.made, list[process_settings.Rival]()
        if self.source and limit.seconds >= process_settings.FROM:
            rivals = process_settings.contested(made.job, made.hardware, made.plan)
        share = OWN if rivals else 1.0
        vetted_plans.defaults(self, contest, time.monotonic() + COMPARED * limit.left())
        late = set[str]()
        while not timeout.has_timed_out() and (case := self._next(contest)) is not None:
            part = share if case[0].stage is not Stage.COMPILE else 1.0
            self._measure(contest, *case, limit.step, limit.left(part), late)
        if rivals and self.source:
            contest.found |= process_settings.measured(
                self.source, made.hardware, contest.plan, rivals, limit.total, limit.left(), self.say, self.standing
            )

    def _measure(
        self, contest: TunerState, optimization: Optimization, value: Value, step: float, left: float, late: set[str]
    ) -> None:
        """Compare one value with the baseline, if there is time."""
        challenger = contest.plan.with_values({optimization.name: value})
        compiles = challenger.value("compile") is not False
        compiling = min(QUICKEST, self.compiling) if self.source else self.compiling
        if left < max(4 * BLOCK, 10 * step, compiling if compiles else 0.0):
            contest.tried.setdefault((optimization.name, value), []).extend([(0.0, contest.plan)] * 2)
            if f"{optimization.name} {value}" not in late:
                late.add(f"{optimization.name} {value}")
                self.say(f"tune: {optimization.name} {written(value)} not measured: no time left")
            return
        verdict = self._verdict(optimization, contest.incumbent, challenger, step, left)
        text = contest.take(optimization.name, value, verdict)
        self.say(f"tune: {optimization.name} {text}")
        if verdict.wins:
            contest.incumbent = self.arm(contest.plan)
            contest.incumbent.steps(2)

    def _next(self, contest: TunerState) -> tuple[Optimization, Value] | None:
        """The most promising value that is still to be measured with the present plan."""
        cases = [case for case in self._contested(contest.plan) if contest.due(case[0].name, case[1])]
        return min(cases, key=lambda case: contest.rank(case[0].name, case[1]), default=None)

    def _contested(self, plan: Plan) -> Iterator[tuple[Optimization, Value]]:
        job, hardware = self.made.job, self.made.hardware
        for optimization in optimizations.every():
            settled = plan.row(optimization.name).source in SETTLED
            idle = optimization.needs is not None and plan.value(optimization.needs) is False
            if settled or idle or optimization.stage in (Stage.PROCESS, Stage.LOADER):
                continue
            for value in optimization.candidates(job, hardware, self.facts):
                if value == plan.value(optimization.name) or optimization.effect(self.facts) is Effect.TRAINING:
                    continue
                if not self._is_hopeless(optimization, value):
                    yield optimization, value

    def _is_hopeless(self, optimization: Optimization, value: Value) -> bool:
        """Whether the calibration spares measuring a value; that is reported once."""
        made = self.made
        present = made.plan.value(optimization.name)
        if value == present:
            return False
        why = calibrated.is_hopeless(optimization, made.job, made.hardware, self.facts, value, present)
        if why and (line := f"tune: {optimization.name} {written(value)} not measured: {why}") not in self.reported:
            self.reported.add(line)
            self.say(line)
        return why is not None

    def _bounded(self, plan: Plan, seconds: float) -> contextlib.AbstractContextManager[None]:
        """A time limit around steps in which a compiler may run, if another process can take over after an
        interruption.
        """
        compiles = plan.value("compile") is not False
        return timeout.time_limit(seconds) if self.source and compiles else contextlib.nullcontext()

    def _verdict(self, optimization: Optimization, incumbent: Variant, plan: Plan, step: float, left: float) -> Verdict:
        quiet = variants.redraws(optimization, plan, self.facts, self.made.device.type == "cuda")
        begun = time.monotonic()
        try:
            reference, start = self.reference(quiet, plan, begun + COMPARED * left), time.monotonic()
            left -= start - begun
            challenger = self.arm(plan)
            challenger.until = start + COMPARED * left
            with self._bounded(plan, COMPARED * left):
                numbers = challenger.numbers(quiet)
        except (variants.TooSlow, timeout.TimedOut) as late:
            return Verdict(False, str(late))
        first = time.monotonic() - start
        wrong = variants.differs(numbers, reference, variants.tolerance(plan))
        if wrong:
            return Verdict(False, f"vetoed: {wrong}")
        cost = max(0.0, first - (variants.CHECKED + 1) * step) if optimization.stage is Stage.COMPILE else 0.0
        self.compiling = min(self.compiling, 2 * cost) if cost else self.compiling
        for side in (incumbent, challenger):
            side.batches = self.batches(side.run)
        try:
            with self._bounded(plan, max(1.0, left - first)):
                pair = compare(incumbent.steps, challenger.steps, step, (left - first) / 3)
        except timeout.TimedOut as late:
            return Verdict(False, str(late))
        return variants.judged(pair, cost, self.made.total_steps * step)


def measured(
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
    name = evidence_keys.speed(job, hardware, dataset, network, source is not None)
    known = evidence.load(hardware, name)
    names = name, evidence_keys.numbers(name, job, dataset, network) if known else None
    if names[1] and (sure := evidence.load(hardware, names[1])):
        say(f"tune: measured before, on {next(iter(sure.values())).date}; reusing the results")
        return sure
    copied = replace(network, module=copy.deepcopy(network.module))
    made = assemble(job, hardware, plan, folder, dataset, copied, signals, PhaseTimer(), parts=parts)
    tuner = Tuner(made, dataset, network, say, source)
    found = vetted_plans.again(tuner, known) if known else {}
    if not found:
        whole = time_budget.predicted(tuner.arm(plan), made.total_steps)[1] if mode == "full" else 0.0
        found = tuner.tune(max(FULL, time_budget.SHARE * whole) if mode == "full" else None)
    if found:
        names = name, names[1] or evidence_keys.numbers(name, job, dataset, network)
        evidence_keys.keep(job, hardware, names, found, say)
    return found
