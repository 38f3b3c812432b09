"""Holds everything that a training needs, and its position. `Assembly.assemble` makes it, `loop.fit` trains it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drivetrain.data.dataset import Dataset
from drivetrain.data.loader.batches import Batches
from drivetrain.distributed.batch_sharding import BatchSharding
from drivetrain.distributed.ranks import Ranks
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.values import parse_duration
from drivetrain.models.build import BuiltModel
from drivetrain.models.lr_groups import LrGroup
from drivetrain.plan.plan import Plan
from drivetrain.system.run_files import CHECKPOINTS
from drivetrain.system.signals import Signals
from drivetrain.tracking.event_log import EventLog
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training.best_metric import BestMetric, choose_metric
from drivetrain.training.captured_step import CudaGraphs, StepCapture
from drivetrain.training.ema import Ema
from drivetrain.training.lockstep import Lockstep
from drivetrain.training.losses import Objective
from drivetrain.training.nonfinite import NonfiniteGuard
from drivetrain.training.optimizer import LearningRates, build_rates
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.solvable_heads import SolvableHead
from drivetrain.training.step import Step
from drivetrain.training.time_target import MAX_EPOCHS, Counters, TimeTarget
from drivetrain.training.user_parts import TrainingInfo, UserParts


@dataclass(kw_only=True)
class Run:
    """Everything that a training needs. Optimizations see it as an `AssembledRun`."""

    # The job and the machine.
    job: Job
    hardware: Hardware
    plan: Plan
    folder: Path
    device: torch.device
    user_parts: UserParts = field(default_factory=UserParts)
    """Optimizer, schedule, metrics and callbacks of a Python program."""
    identity: dict[str, str] = field(default_factory=dict)
    """Name and value of each fact besides spec and plan that determines the exact bits of the run."""

    # The samples.
    dataset: Dataset
    uncached_dataset: Dataset | None = None
    """The dataset with the user's samples, if cached activations of a frozen prefix have replaced it in `dataset`."""
    cached_prefix: str = ""
    """Description of the cached prefix; empty if nothing is cached."""
    prefix_dtype: torch.dtype | None = None
    """dtype for computing a frozen prefix once; None for fp32."""
    batches: Batches
    batch_sharding: BatchSharding
    """Shards each batch over the ranks."""

    # The weights and how they change.
    built_model: BuiltModel
    """How `model` was built, and which of its layers are frozen when."""
    model: nn.Module
    """The network itself, `built_model.module`, on its device."""
    kept_in_eval_mode: list[nn.Module]
    """Modules that stay in evaluation mode, because they are frozen or the program has set this mode."""
    objective: Objective
    """The loss of all heads."""
    optimizer: torch.optim.Optimizer
    lr_groups: list[LrGroup] = field(default_factory=list)
    """The trained parameters, grouped by their factor of the learning rate."""
    step: Step
    solvable_heads: Mapping[str, SolvableHead] = field(default_factory=dict)
    """Heads that are solved in place of the first epochs; empty if they are trained."""
    unsolved_reason: str = ""
    """Reason why the heads are not solved, though only they are trained at first."""

    # The position.
    counters: Counters = field(default_factory=Counters)
    stage: int = 0
    """Number of unfreezings of `model.unfreeze` so far."""
    stop_reason: str | None = None
    """Reason why a callback ends the training; None if it continues."""
    last_metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last evaluation."""
    earlier_samples: int = 0
    """Samples processed by earlier attempts."""

    # Signals, clock and records.
    signals: Signals
    clock: PhaseTimer
    events: EventLog
    metrics: MetricsLog | None = None
    effective_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows of `effective_settings.compare_with_plan` as last reported."""

    # Built from the fields above.
    rates: LearningRates = field(init=False)
    ema: Ema | None = field(init=False)
    best_metric: BestMetric = field(init=False)
    numerics: NonfiniteGuard = field(init=False)
    time_target: TimeTarget | None = field(init=False)
    """Time of a run with `train.within`."""

    def __post_init__(self) -> None:
        train = self.job.train
        report = partial(report_event, self.events, self.counters)
        self.rates = build_rates(train, self.optimizer, self.user_parts, self.batches.per_epoch, report)
        self.ema = Ema(self.model, train.ema) if train.ema else None
        self.best_metric = BestMetric(choose_metric(self.job, self.dataset), train.early_stopping, train.schedule)
        self.numerics = NonfiniteGuard(train.loss_spike, train.fp16)
        self.time_target = None
        if train.within:
            validation_batches = len(self.dataset.validation or ()) / train.batch
            test_batches = len(self.dataset.test.split) / train.batch if self.dataset.test else 0.0
            self.time_target = TimeTarget(self.job, self.clock.started, validation_batches, test_batches)

    @property
    def lockstep(self) -> Lockstep:
        """The ranks that train together, and the error that this rank holds."""
        return self.step.lockstep

    @property
    def ranks(self) -> Ranks:
        """The ranks that train together."""
        return self.lockstep.ranks

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / CHECKPOINTS

    @property
    def readable(self) -> Dataset:
        """The dataset with the user's samples, not the activations that may have replaced them."""
        return self.uncached_dataset or self.dataset

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run if nothing ends it early; with `train.within` estimated from the speed."""
        if self.only_solves_heads:
            return 1
        if self.time_target:
            max_steps = self.batches.per_epoch * MAX_EPOCHS
            if not self.counters.step or not self.lockstep.time_share:
                return max_steps
            return min(max_steps, round(self.counters.step / self.lockstep.time_share))
        steps = self.batches.per_epoch * self.job.train.epochs
        return min(steps, self.job.train.steps or steps)

    @property
    def total_epochs(self) -> int:
        """Epochs of the whole run if nothing ends it early; the last epoch may be incomplete."""
        return math.ceil(self.total_steps / self.batches.per_epoch) if self.time_target else self.job.train.epochs

    @property
    def only_solves_heads(self) -> bool:
        """Whether solving the heads is the whole training, because nothing is unfrozen later."""
        return (self.counters.solved or self.solves_heads) and not self.built_model.unfreezing.epochs

    @property
    def solves_heads(self) -> bool:
        """Whether the next epoch solves the heads; a run that began with steps continues with steps."""
        return bool(self.solvable_heads) and not self.counters.step

    def has_next_batch(self) -> bool:
        """Return whether the epoch continues with another batch; the answer is the same in all ranks."""
        is_epoch_done = self.counters.batch >= self.batches.per_epoch
        return not is_epoch_done and not self.reached_step_limit() and self.stop_reason is None

    def reached_step_limit(self) -> bool:
        """Return whether the run has finished the steps of `train.steps` or used up the time of `train.within`."""
        if self.time_target:
            return self.lockstep.time_share >= 1
        limit = self.job.train.steps
        return limit is not None and self.counters.step >= limit

    def begin_time(self) -> None:
        """Start to measure the used share of `train.within`, before the first step."""
        target, counters = self.time_target, self.counters
        if target is None or self.only_solves_heads:
            return
        target.begin()
        self.lockstep.measure_time_share = lambda: target.measure_share(
            counters.step, counters.epoch + counters.batch / self.batches.per_epoch
        )
        # One exchange before the first step, so that all ranks know rank 0's share.
        self.lockstep.raise_together()

    def capture_steps(self) -> None:
        """Capture whole steps as CUDA graphs and replay them."""
        # A captured step cannot copy class weights from the host.
        self.objective.move(self.device)
        update_average = partial(self.ema.update, self.model) if self.ema else lambda finite: None
        report = partial(report_event, self.events, self.counters, "step_graph")
        self.step.use_capture(StepCapture(CudaGraphs(self.device).capture, update_average, report))

    def train_mode(self) -> None:
        """Set training mode, except for modules that are kept in evaluation mode."""
        self.model.train()
        for module in self.kept_in_eval_mode:
            module.eval()

    def set_learning_rates(self) -> float:
        """Set the learning rates of the next step; returns the rate of the first parameter group."""
        share = self.lockstep.time_share if self.time_target else None
        return self.rates.set(self.counters, self.best_metric.factor(), share)

    def collect_info(self, epoch: int, **values: Any) -> TrainingInfo:
        """Collect the current state for a callback; `values` are further fields of `TrainingInfo`."""
        return TrainingInfo(self.folder, self.counters.step, self.total_steps, epoch, self.total_epochs, **values)

    def time_left(self) -> float:
        """Return the seconds until `max_time` of this attempt; infinite without one."""
        if self.job.train.max_time is None:
            return float("inf")
        return parse_duration(self.job.train.max_time) - self.clock.seconds


def report_event(events: EventLog, counters: Counters, kind: str, text: str) -> None:
    """Record an event at the current step."""
    events.add(kind, text, counters.step)
