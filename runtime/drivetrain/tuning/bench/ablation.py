"""Ablation: plain PyTorch, each optimization added in turn, all, and all without each; every step a paired comparison.

A ratio is a speedup: above 1 the optimization makes training faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from drivetrain.optimizations import Value
from drivetrain.plan.plan import Decision, Plan, format_value
from drivetrain.tuning.bench.variant import Failed, VariantReady
from drivetrain.tuning.paired_timing import PairedTiming, TimedBlock, steps_per_block, time_quiet_pairs

EXPLAINED_DIFFERENCE = 0.05
"""The steps explain the total if their product differs by at most this, or by less than the noise of both."""
MAX_NOISE = 0.15
"""With more noise than this, nothing can be said."""


class VariantProtocol(Protocol):
    """A plan that can train steps."""

    peak: int
    ready: VariantReady

    def steps(self, count: int) -> TimedBlock:
        """Time a block of steps."""
        ...

    def close(self) -> None:
        """Stop it."""
        ...


Start = Callable[..., VariantProtocol]
"""(plan, assignments) -> a variant that is ready; raises Failed."""


@dataclass(frozen=True)
class AblationStep:
    """One comparison. If it could not be measured, it has no pair and a note."""

    kind: str
    """`plain`; `added`, against the step before; `all`, against plain; `without`, all against it; `against`, a variant
    of the job against all.
    """
    name: str
    value: Value | None = None
    effect: str = ""
    pair: PairedTiming | None = None
    samples_per_second: float | None = None
    step_seconds: float | None = None
    peak: int | None = None
    """Bytes."""
    loss_off: float | None = None
    """Largest relative difference of the first losses from plain fp32 on the same batches."""
    first_seconds: float | None = None
    """Seconds that the first step took beyond a normal one."""
    disturbed: float | None = None
    """Share of the time for which threads of both variants waited for a CPU that others used, over the pairs that
    count.
    """
    note: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain JSON data."""
        ratio = None
        if self.pair:
            low, high = self.pair.middle()
            ratio = {"median": self.pair.median, "low": low, "high": high, "pairs": list(self.pair.ratios)}
        return {**vars(self), "pair": ratio}


@dataclass(frozen=True)
class Ablation:
    """All steps, in the order in which they were measured."""

    rungs: tuple[AblationStep, ...]

    def of(self, kind: str) -> list[AblationStep]:
        """The steps of one kind."""
        return [rung for rung in self.rungs if rung.kind == kind]

    @property
    def total(self) -> AblationStep | None:
        """All against plain, if it was measured."""
        return next((rung for rung in self.rungs if rung.kind == "all" and rung.pair), None)

    @property
    def product(self) -> float:
        """The product of the single steps' ratios."""
        return math.prod(rung.pair.median for rung in self.of("added") if rung.pair)

    @property
    def explained(self) -> bool | None:
        """Whether the product matches the total within twice the standard error of both; None if the noise is too
        high.
        """
        if self.total is None or self.total.pair is None:
            return None
        pairs = [rung.pair for rung in self.of("added") if rung.pair] + [self.total.pair]
        noise = 2 * math.sqrt(sum(_error(pair) ** 2 for pair in pairs))
        if abs(math.log(self.product / self.total.pair.median)) > max(EXPLAINED_DIFFERENCE, noise):
            return False
        return True if noise <= MAX_NOISE else None


def _error(pair: PairedTiming) -> float:
    """Standard error of the median log ratio, from the interquartile range of the pairs."""
    if len(pair.ratios) < 4:
        return 0.0
    low, high = pair.middle()
    return 1.253 * math.log(high / low) / 1.349 / math.sqrt(len(pair.ratios))


def climb(
    plan: Plan, start: Start, rounds: int, report: Callable[[str], None], against: Sequence[str] = ()
) -> Ablation:
    """Measure the whole ablation.

    Raises:
        Failed: if not even the plain variant starts.
    """
    climber = _AblationRunner(plan, start, rounds, report)
    return Ablation(tuple(climber.rungs(against)))


class _AblationRunner:
    """Keeps at most three variants running: plain, the last accepted one, and the one being compared."""

    def __init__(self, plan: Plan, start: Start, rounds: int, report: Callable[[str], None]) -> None:
        self.plan, self.start, self.rounds, self.tell = plan, start, rounds, report
        self.plain = start(plan.only(()))
        self.top = self.plain
        self.on: list[Decision] = []

    def rungs(self, against: Sequence[str]) -> Iterator[AblationStep]:
        added = [self._add(row) for row in self.plan.list_enabled()]
        total = self._total()
        ready = self.plain.ready
        count = steps_per_block(ready.step)
        seconds = min(self.plain.steps(count).seconds / count for _ in range(3))
        yield AblationStep(
            "plain",
            "plain",
            samples_per_second=ready.batch / seconds,
            step_seconds=seconds,
            peak=self.plain.peak,
            loss_off=0.0,
        )
        yield from added
        if self.top is not self.plain:
            self.plain.close()
            yield total
        if len(self.on) > 1:
            yield from [self._without(row) for row in self.on]
        if against:
            yield self._against(against)

    def _add(self, row: Decision) -> AblationStep:
        names = [decision.name for decision in self.on] + [row.name]
        empty = AblationStep("added", row.name, row.value, row.effect)
        try:
            arm = self.start(self.plan.only(names))
            rung = self._measure(empty, self.top, arm, arm)
        except Failed as error:
            self.tell(f"bench: {row.name} {format_value(row.value)} failed and is skipped: {error}")
            return replace(empty, note=f"failed: {error}")
        if self.top is not self.plain:
            self.top.close()
        self.top = arm
        self.on.append(row)
        return rung

    def _total(self) -> AblationStep:
        return self._measure(AblationStep("all", "all together"), self.plain, self.top, self.top)

    def _without(self, row: Decision) -> AblationStep:
        names = [decision.name for decision in self.on if decision is not row]
        empty = AblationStep("without", row.name, row.value, row.effect)
        try:
            arm = self.start(self.plan.only(names))
            rung = self._measure(empty, arm, self.top, arm)
            arm.close()
        except Failed as error:
            return replace(empty, note=f"failed: {error}")
        return rung

    def _against(self, assignments: Sequence[str]) -> AblationStep:
        empty = AblationStep("against", ", ".join(assignments), effect="training")
        try:
            arm = self.start(self.plan.only([row.name for row in self.on]), assignments)
            rung = replace(self._measure(empty, self.top, arm, arm), loss_off=None)
            arm.close()
        except Failed as error:
            return replace(empty, note=f"failed: {error}")
        return rung

    def _measure(
        self, empty: AblationStep, slow: VariantProtocol, fast: VariantProtocol, reported: VariantProtocol
    ) -> AblationStep:
        """The step with its measurements; speed, step time and memory are those of the variant `reported`."""
        pairs = time_quiet_pairs(slow.steps, fast.steps, steps_per_block(slow.ready.step), self.rounds)
        pair = PairedTiming(tuple(a.seconds / b.seconds * fast.ready.batch / slow.ready.batch for a, b in pairs))
        self.tell(f"bench: {empty.kind} {empty.name}: {pair.spread()}")
        blocks = [sides[reported is fast] for sides in pairs]
        ready, step = reported.ready, statistics.median(one.seconds / one.steps for one in blocks)
        waited = statistics.median(one.waited for sides in pairs for one in sides)
        return replace(
            empty,
            pair=pair,
            samples_per_second=ready.batch / step,
            step_seconds=step,
            peak=reported.peak,
            loss_off=_loss_off(ready, self.plain.ready),
            first_seconds=max(0.0, ready.first - step),
            disturbed=waited,
            note="; ".join(ready.notes),
        )


def _loss_off(ready: VariantReady, reference: VariantReady) -> float:
    """Largest relative difference of the losses; infinite if one is NaN."""
    worst = 0.0
    for (loss, _), (true, _) in zip(ready.numbers, reference.numbers, strict=True):
        off = abs(loss - true) / max(abs(true), 1e-6)
        worst = max(worst, off if off == off else math.inf)
    return worst
