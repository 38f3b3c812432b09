"""Measures an ablation in paired comparisons: plain, each optimization added in turn, all, and all without each one.

A ratio above 1 means that the optimization makes training faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from drivetrain import optimizations
from drivetrain.optimizations import Value
from drivetrain.plan.plan import Decision, Plan, format_value
from drivetrain.tuning.paired_timing import PairedTiming, TimedBlock, count_block_steps, time_quiet_pairs

EXPLAINED_DIFFERENCE = 0.05
"""Largest difference between the logarithms of the steps' product and of the total, unless the noise is larger."""
MAX_NOISE = 0.15
"""Largest noise that still allows a statement about the total."""


class Failed(Exception):
    """A variant cannot train; the text is the reason."""


class TimedVariant(Protocol):
    """A variant of the training whose first steps are done."""

    numbers: list[tuple[float, float]]
    """Loss and gradient norm of the first steps."""
    first_seconds: float
    """Seconds of the first step, which includes compilation."""
    step_seconds: float
    """Approximate seconds of a normal step."""
    batch: float
    """Mean number of samples per step."""
    added_bytes: int
    """Bytes that it adds to the process."""
    notes: list[str]

    def time_steps(self, count: int) -> TimedBlock:
        """Time a block of steps."""


Start = Callable[..., TimedVariant]
"""Function of (plan, is_other_job) that returns a ready variant or raises Failed."""


@dataclass(frozen=True)
class AblationStep:
    """One comparison. A failed comparison has a note and no pair."""

    kind: str
    """`plain`; `added`, compared with the step above; `all`, compared with plain; `without`, compared with all; `against`,
    a variant of the job compared with all.
    """
    name: str
    value: Value | None = None
    effect: str = ""
    pair: PairedTiming | None = None
    samples_per_second: float | None = None
    step_seconds: float | None = None
    added_bytes: int | None = None
    """Bytes that the variant adds to the process."""
    loss_off: float | None = None
    """Largest relative difference of the first losses from plain fp32 on the same batches."""
    first_seconds: float | None = None
    """Extra seconds of the first step, relative to a normal step."""
    disturbed: float | None = None
    """Median share of the time that threads of both variants waited for a CPU, over the selected pairs."""
    note: str = ""

    def to_json(self) -> dict[str, object]:
        """Return plain JSON data."""
        ratio = None
        if self.pair:
            low, high = self.pair.interquartile_range()
            ratio = {"median": self.pair.median, "low": low, "high": high, "pairs": list(self.pair.ratios)}
        return {**vars(self), "pair": ratio}


@dataclass(frozen=True)
class Ablation:
    """All steps, in the order of measurement."""

    steps: tuple[AblationStep, ...]

    def list_steps(self, kind: str) -> list[AblationStep]:
        """List the steps of one kind."""
        return [step for step in self.steps if step.kind == kind]

    @property
    def total(self) -> AblationStep | None:
        """Comparison of all with plain, if it was measured."""
        return next((step for step in self.steps if step.kind == "all" and step.pair), None)

    @property
    def product(self) -> float:
        """Product of the single steps' ratios."""
        return math.prod(step.pair.median for step in self.list_steps("added") if step.pair)

    @property
    def explains_total(self) -> bool | None:
        """Whether the product matches the total within twice their standard error; None with too much noise."""
        if self.total is None or self.total.pair is None:
            return None
        pairs = [step.pair for step in self.list_steps("added") if step.pair] + [self.total.pair]
        noise = 2 * math.sqrt(sum(_standard_error(pair) ** 2 for pair in pairs))
        if abs(math.log(self.product / self.total.pair.median)) > max(EXPLAINED_DIFFERENCE, noise):
            return False
        return True if noise <= MAX_NOISE else None


def _standard_error(pair: PairedTiming) -> float:
    """Estimate the standard error of the median log ratio from the interquartile range of the pairs."""
    if len(pair.ratios) < 4:
        return 0.0
    low, high = pair.interquartile_range()
    return 1.253 * math.log(high / low) / 1.349 / math.sqrt(len(pair.ratios))


def measure_ablation(
    plan: Plan, start: Start, rounds: int, report: Callable[[str], None], against: Sequence[str] = ()
) -> Ablation:
    """Measure all optimizations that a process can switch; raises Failed if the plain variant does not start."""
    return Ablation(tuple(_AblationRunner(plan, start, rounds, report).measure_steps(against)))


class _AblationRunner:
    """Keeps at most three variants at a time: plain, the last accepted variant, and the compared variant."""

    def __init__(self, plan: Plan, start: Start, rounds: int, report: Callable[[str], None]) -> None:
        self.plan, self.start, self.rounds, self.report = plan, start, rounds, report
        self.fixed = optimizations.list_process_settings()
        self.plain = self.best = start(plan.only(self.fixed))
        self.enabled: list[Decision] = []

    def measure_steps(self, against: Sequence[str]) -> Iterator[AblationStep]:
        rows = [row for row in self.plan.list_enabled() if row.name not in self.fixed]
        added = [self._measure_added(row) for row in rows]
        plain, count = self.plain, count_block_steps(self.plain.step_seconds)
        seconds = min(plain.time_steps(count).seconds / count for _ in range(3))
        speed = plain.batch / seconds
        yield AblationStep("plain", "plain", None, "", None, speed, seconds, plain.added_bytes, loss_off=0.0)
        yield from added
        if self.best is not plain:
            yield self._measure(AblationStep("all", "all together"), plain, self.best, self.best)
        if len(self.enabled) > 1:
            for row in self.enabled:
                remaining = [enabled for enabled in self.enabled if enabled is not row]
                yield self._compare_with_best(AblationStep("without", row.name, row.value, row.effect), remaining)
        if against:
            empty = AblationStep("against", ", ".join(against), effect="training")
            yield self._compare_with_best(empty, self.enabled, is_other_job=True)

    def _build(self, rows: Sequence[Decision], *, is_other_job: bool = False) -> TimedVariant:
        return self.start(self.plan.only({*self.fixed, *(row.name for row in rows)}), is_other_job)

    def _measure_added(self, row: Decision) -> AblationStep:
        empty = AblationStep("added", row.name, row.value, row.effect)
        try:
            variant = self._build([*self.enabled, row])
            measured = self._measure(empty, self.best, variant, variant)
        except Failed as error:
            self.report(f"bench: {row.name} {format_value(row.value)} failed and is skipped: {error}")
            return replace(empty, note=f"failed: {error}")
        self.best = variant
        self.enabled.append(row)
        return measured

    def _compare_with_best(
        self, empty: AblationStep, rows: Sequence[Decision], *, is_other_job: bool = False
    ) -> AblationStep:
        """Compare another variant with the best plan."""
        try:
            variant = self._build(rows, is_other_job=is_other_job)
            slow, fast = (self.best, variant) if is_other_job else (variant, self.best)
            measured = self._measure(empty, slow, fast, variant)
        except Failed as error:
            return replace(empty, note=f"failed: {error}")
        # Losses of another job do not measure rounding.
        return replace(measured, loss_off=None) if is_other_job else measured

    def _measure(
        self, empty: AblationStep, slow: TimedVariant, fast: TimedVariant, reported: TimedVariant
    ) -> AblationStep:
        """Measure a step; returns it with speed, step time and memory of the variant `reported`, which is one of both."""
        pairs = time_quiet_pairs(slow.time_steps, fast.time_steps, count_block_steps(slow.step_seconds), self.rounds)
        pair = PairedTiming(tuple(a.seconds / b.seconds * fast.batch / slow.batch for a, b in pairs))
        self.report(f"bench: {empty.kind} {empty.name}: {pair.format_spread()}")
        blocks = [sides[reported is fast] for sides in pairs]
        step_seconds = statistics.median(block.seconds / block.steps for block in blocks)
        return replace(
            empty,
            pair=pair,
            samples_per_second=reported.batch / step_seconds,
            step_seconds=step_seconds,
            added_bytes=reported.added_bytes,
            loss_off=_compare_losses(reported, self.plain),
            first_seconds=max(0.0, reported.first_seconds - step_seconds),
            disturbed=statistics.median(block.waited for sides in pairs for block in sides),
            note="; ".join(reported.notes),
        )


def _compare_losses(variant: TimedVariant, reference: TimedVariant) -> float:
    """Compute the largest relative difference of the losses; infinite if one of them is NaN."""
    pairs = [(loss, true_loss) for (loss, _), (true_loss, _) in zip(variant.numbers, reference.numbers, strict=True)]
    errors = [abs(loss - true_loss) / max(abs(true_loss), 1e-6) for loss, true_loss in pairs]
    return math.inf if any(map(math.isnan, errors)) else max(errors, default=0.0)
