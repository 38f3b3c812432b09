"""Builds variants, which train a copy of the network with a plan, on the same few batches as all other variants.

Their numbers are compared with the reference, their speed with another variant.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from drivetrain import optimizations
from drivetrain.data.dataset import Batch
from drivetrain.job.workload import Workload
from drivetrain.models.inspection import inspect_workload
from drivetrain.models.networks.tabm import TabM
from drivetrain.models.recompute import RecomputedBlock
from drivetrain.optimizations import Effect, Optimization, Stage, Value
from drivetrain.plan.plan import Plan
from drivetrain.system.fault_points import fault_point
from drivetrain.training import batch_inputs
from drivetrain.training.assemble import Assembly
from drivetrain.training.captured_step import WARMUP_STEPS
from drivetrain.training.run import Run
from drivetrain.training.step_result import StepResult
from drivetrain.training.torch_setup import synchronize
from drivetrain.tuning.paired_timing import PairedTiming

MIN_SPEEDUP = 1.02
"""Smallest median speedup of a value that replaces the default."""
COMPARED_STEPS = 4
"""Number of steps whose losses and gradient norms are compared."""
MAX_SETTLING_STEPS = 32
"""Largest number of skipped steps until the fp16 scale fits."""
ROUNDING_TOLERANCE = 1e-3
"""Allowed relative difference of the loss for settings that round differently in fp32."""
SHORT_FORMAT_TOLERANCE = 5e-2
"""Allowed relative difference of the loss over the checked steps for formats with 8 to 11 bits of mantissa."""
SHORT_FORMATS = ("bf16", "fp16", "tf32")
Numbers = Sequence[tuple[float, float]]
"""Loss and gradient norm of each step."""


class TooSlow(Exception):
    """Steps take so long that there is no time to compare them."""


@dataclass
class Variant:
    """A copy of the network that trains with a plan."""

    run: Run
    batches: Iterator[Batch]
    deadline: float = math.inf
    """Deadline for its numbers, on the monotonic clock."""
    compared_steps: int = COMPARED_STEPS
    """Number of steps whose losses and gradient norms are read."""
    scale_fits: bool = False
    """Whether the fp16 scale fits."""

    @classmethod
    def over_epochs(cls, run: Run) -> Variant:
        """Make a variant from a run at its first batch; after each epoch it continues with the next one."""
        run.train_mode()
        return cls(run, itertools.chain.from_iterable(map(run.batches.epoch, itertools.count())))

    def time_steps(self, count: int) -> float:
        """Measure the seconds of `count` steps, including the loading of their batches."""
        start = time.perf_counter()
        for _ in range(count):
            self.train_step()
        synchronize(self.run.device)
        return time.perf_counter() - start

    def train_step(self) -> StepResult:
        """Train one step without waiting for its result, as in a training, unless fp16 is still searching its scale.

        The initial scale of fp16 is too high. Skipped steps lower it and change nothing else.
        """
        fault_point("tuner step")
        run, batch = self.run, next(self.batches)
        run.rates.set(run.counters, run.best_metric.factor())
        for _ in range(MAX_SETTLING_STEPS):
            result = run.step(batch_inputs.prepare(run, batch, 0), batch_inputs.share_batch(run))
            if self.scale_fits or not run.step.updater.scaler.active or result.finite:
                break
        self.scale_fits = True
        run.counters.step += 1
        return result

    def read_numbers(self, no_dropout: bool) -> Numbers:
        """Read losses and gradient norms of the next steps, without dropout if the variants' masks would differ.

        Raises:
            TooSlow: if the steps are not done by the deadline.
        """
        if no_dropout:
            turn_dropout_off(self.run)
        losses_and_norms = list[tuple[float, float]]()
        start = time.monotonic()
        for done in range(1, self.compared_steps + 1):
            losses_and_norms.append(self.train_step().read())
            end = time.monotonic()
            if end > self.deadline and done < self.compared_steps:
                raise TooSlow(f"not compared: {end - start:.0f} s for the first {done} of {self.compared_steps} steps")
        self.run.train_mode()
        if no_dropout:
            self.run.step.forget_last_step()  # its captured step has no dropout
        return losses_and_norms


def turn_dropout_off(run: Run) -> None:
    """Turn dropout off until the next `train_mode`."""
    for module in run.model.modules():
        # These types stay in training mode. Otherwise BatchNorm would use its running statistics, cuDNN's recurrent
        # kernels would have no backward pass, a recomputed block would save its activations, and an ensemble would return
        # its mean.
        if not isinstance(module, nn.RNNBase | nn.modules.batchnorm._BatchNorm | RecomputedBlock | TabM):
            module.training = False


@dataclass(frozen=True)
class Verdict:
    """Whether a value replaces the baseline, with the reason as text."""

    wins: bool
    text: str
    ratio: float = 0.0
    """Speed ratio; 0 for a value with wrong numbers or without a measurement."""


def judge(pair: PairedTiming, compile_seconds: float, run_seconds: float) -> Verdict:
    """Decide whether a value with the right numbers replaces the baseline."""
    text = f"{pair.format_spread()}, loss ok"
    if compile_seconds:
        text += f", {compile_seconds:.0f} s to compile"
    is_faster = pair.median >= MIN_SPEEDUP and pair.interquartile_range()[0] > 1
    pays_off = run_seconds * (1 - 1 / pair.median) > compile_seconds
    return Verdict(is_faster and pays_off, text, pair.median)


def find_difference(numbers: Numbers, reference: Numbers, tolerance: float) -> str | None:
    """Describe the first step whose loss differs from the reference by more than `tolerance`, or its norm by ten times
    as much; None if all match.
    """
    for step, ((loss, norm), (true_loss, true_norm)) in enumerate(zip(numbers, reference, strict=True), start=1):
        loss_error = abs(loss - true_loss) / max(abs(true_loss), 1e-6)
        norm_error = abs(norm - true_norm) / max(abs(true_norm), 1e-6)
        if not loss_error <= tolerance:
            return f"loss {loss:.4g} at step {step}, {true_loss:.4g} with everything off"
        if not norm_error <= 10 * tolerance:
            return f"gradient norm {norm:.4g} at step {step}, {true_norm:.4g} with everything off"
    return None


def choose_tolerance(plan: Plan) -> float:
    """Choose the allowed relative difference of a plan's loss from the reference, by its number formats."""
    formats = {plan.value("precision")}
    if plan.value("feature_cache"):
        formats.add(plan.value("prefix_precision"))
    return SHORT_FORMAT_TOLERANCE if formats & set(SHORT_FORMATS) else ROUNDING_TOLERANCE


def changes_dropout(optimization: Optimization, plan: Plan, facts: Workload, on_gpu: bool) -> bool:
    """Return whether an optimization changes dropout's random numbers; losses are then compared without dropout."""
    has_dropout = facts.has("Dropout") or facts.has("LSTM") or facts.has("GRU")
    return has_dropout and (optimization.redraws or (plan.value("compile") is not False and on_gpu))


def turn_everything_off(plan: Plan, no_dropout: bool) -> Plan:
    """Turn off all optimizations that this process can switch.

    Requested values that change the training stay on, since their effect is not a rounding error. Settings that change
    dropout's random numbers stay on unless `no_dropout`.
    """
    off_values: dict[str, Value] = {}
    for setting in optimizations.every():
        is_switchable = setting.stage is not Stage.PROCESS and (no_dropout or not setting.redraws)
        if is_switchable and plan.decision(setting.name).effect != Effect.TRAINING:
            off_values[setting.name] = setting.off
    return plan.with_values(off_values)


MAX_BATCHES, MAX_FETCH_SECONDS = 8, 2.0
"""Limits of the batches that all variants cycle through: their number, and seconds for loading more than two."""


class VariantBuilder:
    """Builds variants of one run, and the reference for their numbers; the assembly's own network is never changed."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly, self.say = assembly, assembly.say
        self.run = assembly.assemble_copy(assembly.plan)
        self.batches_by_kind: dict[Value, list[Batch]] = {}
        self.compared_steps = COMPARED_STEPS
        """Number of steps whose losses and gradient norms are compared."""
        self.reference_numbers: dict[tuple[bool, tuple[Value, ...]], Numbers] = {}

    @cached_property
    def facts(self) -> Workload:
        """Properties of data and network that optimizations depend on; found by computing a sample."""
        return inspect_workload(self.assembly.dataset, self.assembly.built_model.module)

    def build(self, plan: Plan) -> Variant:
        """Build a new copy of the network with a plan, at the first batch."""
        cache = self.assembly.dataset.cache
        cached_before = dict(cache)
        run = self.assembly.assemble_copy(plan)
        if cached_before:
            # The run would lose the baseline's cached activations if a candidate's activations replaced them.
            cache.clear()
            cache.update(cached_before)
        run.train_mode()
        return Variant(run, self.batches(run), compared_steps=self._count_compared_steps(plan))

    def _count_compared_steps(self, plan: Plan) -> int:
        """Count the steps to compare, so that replays are among them: warm-up and capture come before the first one."""
        return self.compared_steps + (WARMUP_STEPS + 1 if plan.value("step_graph") else 0)

    def batches(self, run: Run) -> Iterator[Batch]:
        """Return an endless cycle of a few batches, the same for all variants, from the first one on."""
        # These two settings change the tensors of a sample.
        kind = f"{run.plan.value('feature_cache')} {run.plan.value('gpu_resident_data')}"
        if kind not in self.batches_by_kind:
            deadline = time.monotonic() + MAX_FETCH_SECONDS
            collected = self.batches_by_kind[kind] = []
            for batch in itertools.islice(run.batches.epoch(0), MAX_BATCHES):
                collected.append(batch)
                if len(collected) > 1 and time.monotonic() > deadline:
                    break
        return itertools.cycle(self.batches_by_kind[kind])

    def load_reference(self, no_dropout: bool, plan: Plan, deadline: float = math.inf) -> Numbers:
        """Return losses and gradient norms with everything off, with dropout as in the compared plan.

        Raises:
            TooSlow: if the steps are not done by `deadline`.
        """
        off = turn_everything_off(plan, no_dropout)
        if plan.value("compile") is not False:
            # A compiled network draws torch's dropout.
            off = off.with_values({"packed_dropout": False})
        key = no_dropout, tuple(off.value(setting.name) for setting in optimizations.every() if setting.redraws)
        # An earlier comparison may have read more steps than this one needs.
        count = self._count_compared_steps(plan)
        if len(self.reference_numbers.get(key, ())) < count:
            variant = self.build(off)
            variant.deadline, variant.compared_steps = deadline, count
            self.reference_numbers[key] = variant.read_numbers(no_dropout)
        return self.reference_numbers[key][:count]
