"""Tune: measure the contested decisions on the user's own network and batches, before the first step.

Each candidate value trains a copy of the network for a few real steps, in turn with the incumbent (A B A B); the ratio
of each pair of blocks is one observation, so a noisy neighbour hits both sides. Before its speed counts, its numbers
do: losses and gradient norms of the first steps against everything off, in fp32, over the same batches and draws. A
value outside what its effect declares is vetoed however fast it is. What wins is the next one's incumbent.

The run itself is not touched: every arm has its own copy, and every draw is a function of (seed, step).
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from runtime import evidence, optimizations
from runtime.clock import Clock
from runtime.data.dataset import Batch, Dataset
from runtime.errors import StorageError
from runtime.evidence import Measured
from runtime.hardware import Hardware
from runtime.job import Job
from runtime.models.build import Model
from runtime.optimizations import Effect, Optimization, Stage, Value
from runtime.pairs import BLOCK, compare
from runtime.plan import Plan, written
from runtime.run import Run, assemble, workload
from runtime.signals import Signals

WORTH_FROM = 300.0
"""Seconds a run must be predicted to take before anything is measured by itself."""
SHARE = 0.02
"""Share of the predicted run that measuring may take."""
FULL = 120.0
"""Seconds that `measure: full` may take at least."""
COMPILING = 60.0
"""Seconds that must be left before a compiled network is tried: the compiler cannot be told when to stop."""
MARGIN = 1.02
"""A value must win by this much, and in three of four pairs, to replace what we would do anyway."""
SETTLED = ("job", "file", "memory", "measured")
"""Sources of decisions that are not contested any more."""
CHECKED = 4
"""Steps over which numbers are compared."""
TOLERANCE = {Effect.EXACT: 1e-6, Effect.ROUNDING: 1e-3}
SHORT_FORMAT = 5e-2
"""Relative difference of loss that a format of 8 to 11 bits of mantissa may show over the checked steps."""


@dataclass
class Arm:
    """One plan in use: a copy of the network that trains on its own."""

    run: Run
    batches: Iterator[Batch]

    def steps(self, count: int) -> float:
        """Seconds of `count` steps."""
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        if self.run.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def step(self) -> tuple[float, float]:
        """One step; its loss and gradient norm."""
        run, batch = self.run, next(self.batches)
        run.set_rate()
        outcome = run.step(run.mixed(run.prepared(batch, 0)), run.step_seed())
        run.counters.step += 1
        return outcome.loss, outcome.grad_norm


class Tuner:
    """Measures for one job.

    Args:
        made: the run, assembled under the plan so far; it is read, never changed.
        dataset: its data.
        network: its network, with the first weights.
        say: where progress is told.
    """

    def __init__(self, made: Run, dataset: Dataset, network: Model, say: Callable[[str], None]) -> None:
        self.made, self.dataset, self.network, self.say = made, dataset, network, say
        self.initial = copy.deepcopy(network.module.state_dict())

    def arm(self, plan: Plan) -> Arm:
        """A fresh copy of the network under a plan, at the first batch."""
        made = self.made
        module = copy.deepcopy(self.network.module)
        module.load_state_dict(self.initial)
        network = replace(self.network, module=module)
        run = assemble(made.job, made.hardware, plan, made.folder, self.dataset, network, made.signals, Clock())
        run.train_mode()
        epochs = itertools.count()
        return Arm(run, (batch for epoch in epochs for batch in run.batches.epoch(epoch)))

    def predicted(self, arm: Arm) -> tuple[float, float]:
        """Seconds of one step, and of the whole run, from a few warm steps."""
        arm.steps(2)
        step = arm.steps(3) / 3
        return step, step * self.made.total_steps

    def tune(self, budget: float | None) -> dict[str, Measured]:
        """Measure every contested decision.

        Args:
            budget: seconds that measuring may take; None decides by the predicted length of the run.
        """
        start, plan, found = time.monotonic(), self.made.plan, dict[str, Measured]()
        incumbent = self.arm(plan)
        step, total = self.predicted(incumbent)
        if budget is None:
            if total < WORTH_FROM:
                self.say(f"tune: about {total:.0f} s of training, too short to measure anything")
                return found
            budget = SHARE * total
        self.say(f"tune: about {total:.0f} s of training, {budget:.0f} s to measure what is contested")
        reference = self._numbers(self.arm(_all_off(plan)))
        for optimization, value in self._contested(plan):
            left = budget - (time.monotonic() - start)
            if left < (COMPILING if optimization.stage is Stage.COMPILE else 4 * BLOCK):
                self.say(f"tune: {optimization.name} {written(value)} not measured, the budget is spent")
                continue
            challenger = _with(plan, optimization.name, value)
            verdict = self._verdict(optimization, value, incumbent, challenger, reference, step, left)
            previous = found.get(optimization.name)
            text = f"{written(value)} {verdict.text}"
            kept = value if verdict.wins else plan.value(optimization.name)
            joined = f"{previous.text}; {text}" if previous else text
            found[optimization.name] = Measured(kept, joined, evidence.today())
            self.say(f"tune: {optimization.name} {text}{', taken' if verdict.wins else ''}")
            if verdict.wins:
                plan, incumbent = challenger, self.arm(challenger)
                incumbent.steps(2)
        return found

    def _contested(self, plan: Plan) -> Iterator[tuple[Optimization, Value]]:
        job, hardware = self.made.job, self.made.hardware
        facts = workload(self.dataset, self.network.module)
        for optimization in optimizations.every():
            settled = next(d for d in plan.decisions if d.name == optimization.name).source in SETTLED
            if settled or optimization.stage in (Stage.PROCESS, Stage.LOADER):
                continue
            for value in optimization.candidates(job, hardware, facts):
                if value != plan.value(optimization.name) and optimization.effect(facts) is not Effect.TRAINING:
                    yield optimization, value

    def _numbers(self, arm: Arm) -> list[tuple[float, float]]:
        return [arm.step() for _ in range(CHECKED)]

    def _verdict(
        self, optimization: Optimization, value: Value, incumbent: Arm, plan: Plan,
        reference: list[tuple[float, float]], step: float, left: float,
    ) -> Verdict:  # fmt: skip
        start = time.monotonic()
        challenger = self.arm(plan)
        numbers = self._numbers(challenger)
        first = time.monotonic() - start
        wrong = _differs(numbers, reference, _tolerance(optimization, value))
        if wrong:
            return Verdict(False, f"vetoed: {wrong}")
        cost = max(0.0, first - (CHECKED + 1) * step) if optimization.stage is Stage.COMPILE else 0.0
        pair = compare(incumbent.steps, challenger.steps, step, left - first)
        text = f"{pair.spread()}, loss ok"
        if cost:
            text += f", {cost:.0f} s to compile"
        saved = self.made.total_steps * step * (1 - 1 / pair.median)
        return Verdict(pair.median >= MARGIN and pair.middle()[0] > 1 and saved > cost, text)


@dataclass(frozen=True)
class Verdict:
    """Whether a value replaces the incumbent, and what was seen."""

    wins: bool
    text: str


def _differs(numbers: list[tuple[float, float]], reference: list[tuple[float, float]], tolerance: float) -> str | None:
    """Where losses are further from the reference than allowed, and by how much; gradients may be off ten times that."""
    for number, ((loss, norm), (true_loss, true_norm)) in enumerate(zip(numbers, reference, strict=True), start=1):
        loss_off = abs(loss - true_loss) / max(abs(true_loss), 1e-6)
        norm_off = abs(norm - true_norm) / max(abs(true_norm), 1e-6)
        if not loss_off <= tolerance:
            return f"loss {loss:.4g} at step {number}, {true_loss:.4g} with everything off"
        if not norm_off <= 10 * tolerance:
            return f"gradient norm {norm:.4g} at step {number}, {true_norm:.4g} with everything off"
    return None


def _tolerance(optimization: Optimization, value: Value) -> float:
    short = optimization.name == "precision" and value in ("bf16", "fp16", "tf32")
    return SHORT_FORMAT if short else TOLERANCE[Effect.ROUNDING]


def _with(plan: Plan, name: str, value: Value) -> Plan:
    rows = [replace(row, value=value) if row.name == name else row for row in plan.decisions]
    return replace(plan, decisions=tuple(rows))


def _all_off(plan: Plan) -> Plan:
    """Everything off that can still be switched in this process; other parts of a batch would draw other dropout."""
    off = {o.name: o.off for o in optimizations.every() if o.stage is not Stage.PROCESS and o.name != "unpadding"}
    rows = [replace(row, value=off.get(row.name, row.value)) for row in plan.decisions]
    return replace(plan, decisions=tuple(rows))


def measured(
    job: Job, hardware: Hardware, plan: Plan, dataset: Dataset, network: Model, folder: Path, signals: Signals,
    say: Callable[[str], None],
) -> dict[str, Measured]:  # fmt: skip
    """What is known of the contested decisions: from the cache, else measured now if that is worth it.

    `measure: off` knows nothing, `auto` spends 2 % of a run that is predicted to take five minutes or more, `full`
    measures whatever the length.
    """
    mode = job.optimize.get("measure", "auto")
    open_ = [row.name for row in plan.decisions if row.source in ("choice", "profile")]
    if mode == "off" or not open_:
        return {}
    shapes = {name: list(value.shape) for name, value in network.module.state_dict().items()}
    train = job.train
    fixed = [train.optimizer.name, train.deterministic, str(train.loss), str(getattr(job.data, "augment", None)), mode]
    name = evidence.key(hardware, workload(dataset, network.module), train.batch, shapes, fixed)
    known = evidence.load(hardware, name)
    if known:
        say(f"tune: measured before, on {next(iter(known.values())).date}; nothing to measure again")
        return known
    copied = replace(network, module=copy.deepcopy(network.module))
    made = assemble(job, hardware, plan, folder, dataset, copied, signals, Clock())
    tuner = Tuner(made, dataset, network, say)
    budget = None
    if mode == "full":
        arm = tuner.arm(plan)
        budget = max(FULL, SHARE * tuner.predicted(arm)[1])
    found = tuner.tune(budget)
    if found:
        try:
            evidence.store(hardware, name, found)
        except (OSError, StorageError) as error:
            say(f"tune: what was measured is not kept: {error}")
    return found
