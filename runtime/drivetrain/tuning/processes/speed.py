"""Measures the ablation of `drivetrain bench speed` in one process, which trains all variants in turn.

The request contains the assignments of a job to compare `against`.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from drivetrain import optimizations
from drivetrain.errors import DrivetrainError, Replanned
from drivetrain.models.networks.user_network import blame_job_code
from drivetrain.plan import final_plan
from drivetrain.plan.plan import Decision, Plan, format_value
from drivetrain.system import timeout, torch_settings
from drivetrain.system.console import say
from drivetrain.training.assemble import Assembly
from drivetrain.tuning import assembly, speed_table
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.memory import meter
from drivetrain.tuning.paired_timing import PairedTiming, compare
from drivetrain.tuning.speed_table import AblationStep
from drivetrain.tuning.variants import COMPARED_STEPS, Variant

COMPARISON_SECONDS = 5.0
"""Time limit of one comparison; a clear one ends earlier."""
WARM_STEPS = 3
"""Number of steps for estimating the time of one."""


def measure(call: MeasuringCall) -> None:
    """Find the plan that `train` would use, and measure, print and write the ablation."""
    inputs = _load_planned(call)
    plan = inputs.plan
    if inputs.assemble_copy(plan).only_solves_heads:
        say("bench: the heads of this job are solved; its training has none of the steps that are measured here")
    against = call.request["against"]
    other_inputs = None
    if against:
        source = replace(call.source, assignments=[*call.source.assignments, *against])
        other_inputs = assembly.load_assembly(call.folder, source.load(), call.signals)
    no_dropout = _changes_dropout(plan)

    def start(variant_plan: Plan, is_other_job: bool = False) -> BenchVariant:
        try:
            with blame_job_code(call.job):
                variant_inputs = other_inputs if is_other_job and other_inputs else inputs
                return BenchVariant(variant_inputs, variant_plan, no_dropout)
        except (DrivetrainError, MemoryError, RuntimeError) as error:
            raise Failed(str(error).strip().splitlines()[0][:200]) from None

    # Earlier compilations would shorten the first step.
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        steps = Ablation(plan, start, say).measure(against)
    speed_table.report(steps, plan, call.job, inputs.hardware, call.folder)


def _load_planned(call: MeasuringCall) -> Assembly:
    """Load data, network and the plan that `train` would use, which is measured first if the job leaves it open.

    Raises:
        Replanned: if the tuner may have compiled: this process would then measure first steps that are too short.
    """
    inputs = assembly.load_assembly(call.folder, call.job, call.signals)
    call.store_plan(inputs.plan)
    if call.is_measured:
        return inputs
    decide = partial(final_plan.finalize, call.job, inputs.hardware, inputs.plan, inputs.facts, say)
    inputs = assembly.measure_plan(inputs, decide, can_restart=True)
    call.store_plan(inputs.plan)
    if timeout.has_timed_out() or inputs.plan.value("compile") is not False:
        raise Replanned("the tuner's compilations would shorten first steps")
    return inputs


class BenchVariant:
    """A copy of the network that trains with a plan, after its first steps."""

    def __init__(self, inputs: Assembly, plan: Plan, no_dropout: bool) -> None:
        device = torch.device("cuda:0" if inputs.hardware.gpu else "cpu")
        memory = meter.meter_for(device)
        memory.reset_peak()
        bytes_before = memory.read_used()
        run = inputs.assemble_copy(plan)
        self.plan, self.on_gpu, self.notes = plan, device.type == "cuda", list[str]()
        run.step.report = lambda kind, text: self.notes.append(text) if kind in ("memory", "compile") else None
        self.variant = Variant.over_epochs(run)
        start = time.perf_counter()
        self.numbers = self.variant.read_numbers(no_dropout)
        self.first_seconds = time.perf_counter() - start
        self.step_seconds = self.variant.time_steps(WARM_STEPS) / WARM_STEPS
        self.added_bytes = memory.peak() - bytes_before
        self.batch = len(run.dataset.train) / run.batches.per_epoch

    def time_steps(self, count: int) -> float:
        """Time a block of steps, with its plan's settings of the whole process."""
        if self.on_gpu:
            torch_settings.set_tf32(self.plan.value("precision") in ("tf32", "bf16"))
            torch.backends.cudnn.benchmark = self.plan.value("cudnn_benchmark") is True
        seconds = self.variant.time_steps(count)
        self.step_seconds = min(self.step_seconds, seconds / count)
        return seconds


class Failed(Exception):
    """A variant cannot train; the text is the reason."""


Start = Callable[..., BenchVariant]
"""Function of (plan, is_other_job) that returns a ready variant or raises Failed."""


class Ablation:
    """Measures the steps; it keeps at most three variants: plain, the last accepted variant, and the compared variant.

    Raises:
        Failed: if the plain variant does not start.
    """

    def __init__(self, plan: Plan, start: Start, report: Callable[[str], None]) -> None:
        self.plan, self.start, self.report = plan, start, report
        self.fixed = optimizations.list_process_settings()
        self.plain = self.best = start(plan.with_only(self.fixed))
        self.enabled: list[Decision] = []

    def measure(self, against: Sequence[str] = ()) -> list[AblationStep]:
        """Measure all optimizations that a process can switch, and a job with the settings `against` at the end."""
        steps = [*self._compare_all(against)]
        # The plain variant is described last, since each comparison adds blocks, and the fastest block counts.
        return [self._describe(AblationStep("plain", "plain"), self.plain), *steps]

    def _compare_all(self, against: Sequence[str]) -> Iterator[AblationStep]:
        for row in self.plan.list_enabled():
            if row.name not in self.fixed:
                yield self._measure_added(row)
        if self.best is not self.plain:
            yield self._measure(AblationStep("all", "all together"), self.plain, self.best, self.best)
        if len(self.enabled) > 1:
            for row in self.enabled:
                remaining = [enabled for enabled in self.enabled if enabled is not row]
                yield self._compare_with_best(AblationStep("without", row.name, row.value), remaining)
        if against:
            other_job = AblationStep("against", ", ".join(against))
            yield self._compare_with_best(other_job, self.enabled, is_other_job=True)

    def _build(self, rows: Sequence[Decision], *, is_other_job: bool = False) -> BenchVariant:
        return self.start(self.plan.with_only({*self.fixed, *(row.name for row in rows)}), is_other_job)

    def _measure_added(self, row: Decision) -> AblationStep:
        empty = AblationStep("added", row.name, row.value)
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
        self, empty: AblationStep, slow: BenchVariant, fast: BenchVariant, reported: BenchVariant
    ) -> AblationStep:
        """Compare two variants in samples per second; returns the step with the numbers of `reported`, one of both."""
        pair = compare(slow.time_steps, fast.time_steps, slow.step_seconds, COMPARISON_SECONDS)
        pair = PairedTiming(tuple(ratio * fast.batch / slow.batch for ratio in pair.ratios))
        self.report(f"bench: {empty.kind} {empty.name}: {pair.format_spread()}")
        return self._describe(replace(empty, pair=pair), reported)

    def _describe(self, step: AblationStep, variant: BenchVariant) -> AblationStep:
        """Add speed, memory, first step and rounding of a variant to its step."""
        return replace(
            step,
            samples_per_second=variant.batch / variant.step_seconds,
            step_seconds=variant.step_seconds,
            added_bytes=variant.added_bytes,
            loss_off=_compare_losses(variant, self.plain),
            first_seconds=max(0.0, variant.first_seconds - COMPARED_STEPS * variant.step_seconds),
            note="; ".join(variant.notes),
        )


def _compare_losses(variant: BenchVariant, reference: BenchVariant) -> float:
    """Compute the largest relative difference of the losses; infinite if one of them is NaN."""
    pairs = [(loss, true_loss) for (loss, _), (true_loss, _) in zip(variant.numbers, reference.numbers, strict=True)]
    errors = [abs(loss - true_loss) / max(abs(true_loss), 1e-6) for loss, true_loss in pairs]
    return math.inf if any(map(math.isnan, errors)) else max(errors, default=0.0)


def _changes_dropout(plan: Plan) -> bool:
    """Return whether variants have different dropout masks.

    This is False if one compiles, because a variant compiled without dropout would be compiled again with it.
    """
    names = {row.name for row in plan.list_enabled()}
    if "compile" in names:
        return False
    return any(setting.redraws for setting in optimizations.every() if setting.name in names)
