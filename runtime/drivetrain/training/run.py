"""A run, assembled from job, hardware and plan: model, optimizer, data, step and counters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain import optimizations
from drivetrain.data import one_copy, stateless_random
from drivetrain.data.custom.stream import batches_of
from drivetrain.data.dataset import Batch, Dataset
from drivetrain.data.loader.batches import Batches
from drivetrain.data.mixup import mix, uses_mixing
from drivetrain.distributed import world
from drivetrain.distributed.batch_parts import BatchParts
from drivetrain.distributed.ranks import ALONE, Ranks, join_ranks
from drivetrain.distributed.world import LOCAL_RANK
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job, extension
from drivetrain.job.extension import Extension
from drivetrain.job.train import Constant
from drivetrain.job.values import parse_duration
from drivetrain.models import lr_groups, sharding, single_sample, strided_convolution
from drivetrain.models.build import Model
from drivetrain.models.freeze import freeze, frozen_parts
from drivetrain.models.lr_groups import LrGroup
from drivetrain.optimizations import AssembledRun
from drivetrain.plan.plan import Plan
from drivetrain.system import library_variables
from drivetrain.system.fault_points import fault_point
from drivetrain.system.signals import Signals
from drivetrain.tracking.event_log import EventLog
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import learning_rates, losses, optimizer, start_checks, torch_setup
from drivetrain.training.best_metric import BestMetric, choose_metric
from drivetrain.training.captured_step import CapturedStep, CudaGraphs
from drivetrain.training.checkpoints import resume
from drivetrain.training.counters import Counters
from drivetrain.training.ema import Ema
from drivetrain.training.learning_rates import LearningRates, ProgramsRates, ScheduledRates, SteppedRates
from drivetrain.training.losses import Objective
from drivetrain.training.nonfinite import NonfiniteGuard
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.solvable_heads import HeadTraining
from drivetrain.training.step import Step
from drivetrain.training.step_options import SeededPart, plain_options
from drivetrain.training.step_result import StepResult
from drivetrain.training.user_parts import UserParts


@dataclass(kw_only=True)
class Run(AssembledRun):
    """Everything that a training needs; `loop.fit` drives it."""

    plan: Plan
    network: Model
    kept_in_eval_mode: list[nn.Module]
    """Modules that stay in evaluation mode, because they are frozen or the program has put them there."""
    step: Step
    rates: LearningRates
    ema: Ema | None
    watch: BestMetric
    numerics: NonfiniteGuard
    signals: Signals
    events: EventLog
    clock: PhaseTimer
    counters: Counters = field(default_factory=Counters)
    samples_before: int = 0
    """Samples processed by earlier attempts."""
    own_samples: int = 0
    """Samples that this process has trained on itself, in this attempt."""
    metrics: MetricsLog | None = None
    last: dict[str, float] = field(default_factory=dict)
    """Metrics of the last evaluation."""
    identity: dict[str, str] = field(default_factory=dict)
    """What the exact bits of the run depend on, beside spec and plan."""
    ranks: Ranks = ALONE
    """This process among those that train together."""
    batch_parts: BatchParts = field(default_factory=lambda: BatchParts(ALONE, 1, 1))
    """How each batch is cut."""
    extension: Extension | None = None
    """The finished run that this one continues."""
    lr_groups: list[LrGroup] = field(default_factory=list)
    """The trained parameters by their factor of the learning rate."""
    parts: UserParts = field(default_factory=UserParts)
    """What a Python program brought."""
    solved_layers: dict[str, nn.Linear] = field(default_factory=dict)
    """The layer of each head, if the heads are solved in place of the first epochs."""
    unsolved: str = ""
    """Why the heads are not solved, though only they are trained at first."""
    outcome: StepResult | None = None
    """Of the last step; None if its batch was left out."""
    stop_reason: str | None = None
    """Why a callback ends the training."""
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Effective settings when last read back, by decision."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run, if nothing ends it early."""
        if self.ends_solved:
            return 1
        steps = self.batches.per_epoch * self.job.train.epochs
        return min(steps, self.job.train.steps or steps)

    @property
    def ends_solved(self) -> bool:
        """Whether the run has nothing to train but heads that are solved."""
        return (self.counters.solved or self.solves_heads) and not self.network.unfreezing.epochs

    @property
    def solves_heads(self) -> bool:
        """Whether the heads are going to be solved; a run that has begun with steps goes on with them."""
        return bool(self.solved_layers) and not self.counters.step

    def steps_done(self) -> bool:
        """Whether `train.steps` are done."""
        return self.job.train.steps is not None and self.counters.step >= self.job.train.steps

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def readable(self) -> Dataset:
        """The dataset whose samples can be shown to the user."""
        return self.replaced or self.dataset

    def record_step(self) -> None:
        """Record whole steps as CUDA graphs and replay them."""
        report = partial(_report, self.events, self.counters, "step_graph")
        # A recorded step cannot copy them from the host.
        self.step.objective.move(self.device)
        self.configure_step(captured=CapturedStep(CudaGraphs(self.device), self.average_weights, report))

    def average_weights(self, finite: Tensor) -> None:
        """Update the average of the weights, if there is one and the last update was made."""
        if self.ema:
            self.ema.update(self.model, finite)

    def divide(self) -> None:
        """Divide weights, gradients and optimizer state among the processes, if there are several."""
        if self.ranks.count == 1:
            return
        before = dict(self.model.named_parameters())
        sharding.shard(self.model, self.device, self.ranks.count)
        sharding.follow(self.optimizer, before, self.model)
        # A process that is interrupted in the middle of a pass would leave the others waiting for its part.
        packed = getattr(self.model, "packed", None)
        self.configure_step(divided=True, packed_forward=packed, interruptible=contextlib.nullcontext)
        if self.ema:
            self.ema = Ema(self.model, self.ema.decay)

    @property
    def is_divided(self) -> bool:
        """Whether each process holds a part of the weights."""
        return self.step.options.divided

    def train_mode(self) -> None:
        """Set training mode, except for the modules that are kept in evaluation mode."""
        self.model.train()
        for module in self.kept_in_eval_mode:
            module.eval()

    def preprocess(self, batch: Batch, epoch: int | None) -> Batch:
        """The batch on the device, preprocessed; augmented if an epoch is given."""
        batch = batch.to(self.device)
        return replace(batch, inputs=self.dataset.prepare(batch.inputs, batch.ids, epoch))

    def mix(self, batch: Batch) -> Batch:
        """The batch after mixup or cutmix, if the job has them; random numbers depend on (seed, step)."""
        if not self.dataset.mixable:
            return batch
        mixed_batch = mix(batch, self.dataset.heads, self.job, self.counters.step)
        return (
            mixed_batch.take_rows(self.batch_parts.shard(np.arange(len(mixed_batch))))
            if uses_mixing(self.job)
            else mixed_batch
        )

    def set_rate(self) -> float:
        """Set the learning rates of the next step; returns that of the optimizer."""
        return self.rates.set(self.counters, self.watch.factor())

    def group_rates(self, rate: float) -> dict[str, float]:
        """The learning rates of the layers in `train.lr_groups`, as they are recorded; `rate` is that of the rest."""
        return {f"{group.pattern}/lr": rate * group.factor for group in self.lr_groups if group.pattern}

    def step_seed(self, part: int = 0) -> int:
        """The seed of this step's dropout: a function of (seed, step, part), so there is no generator state to save."""
        where = (self.counters.step, part) if part else (self.counters.step,)
        return stateless_random.derive_key(self.job.train.seed, "step", *where)

    def own_parts(self, samples: int) -> list[SeededPart]:
        """The parts that this process computes of a batch of `samples` over all processes, with the seeds of this step."""
        rank_parts = self.batch_parts.own(samples)
        return [SeededPart(part.samples, self.step_seed(part.number)) for part in rank_parts]

    def time_left(self) -> float:
        """Seconds until `max_time` of this attempt; infinite without one."""
        if self.job.train.max_time is None:
            return float("inf")
        return parse_duration(self.job.train.max_time) - self.clock.seconds


def assemble(
    job: Job,
    hardware: Hardware,
    plan: Plan,
    folder: Path,
    dataset: Dataset,
    network: Model,
    signals: Signals,
    clock: PhaseTimer,
    epoch: int = 0,
    parts: UserParts | None = None,
) -> Run:
    """Assemble a run and apply the plan to it.

    Args:
        epoch: counted from 0; what is frozen in it is frozen here.
        parts: of a Python program.
    """
    fault_point("assemble")
    parts = parts or UserParts()
    events, counters = EventLog(folder), Counters()
    report = partial(_report, events, counters)
    device, ranks = _join_processes(job, hardware, report)
    model = _place_network(network, plan, ranks, device)
    identity = _begin_alike(ranks, job, hardware, plan, dataset, model)
    # Around a fault of oneDNN, which computes convolutions on CPUs only.
    if device.type == "cpu":
        strided_convolution.rewrite(model)
    # The optimizer holds what is trained in any epoch, so layers that unfreeze later are in it.
    frozen = _freeze(model, network, job, epoch)
    by_layer = lr_groups.groups(job, model, network.trained())
    optimizer = _optimizer(job, model, by_layer, parts)
    cut = BatchParts(ranks, job.train.parts or ranks.count, job.train.batch)
    batches = _batches(job, dataset, cut, report)
    options = plain_options(model, ranks, cut.own(job.train.batch)[0].samples, signals, report)
    # A last batch of one sample joins the one before it, if the network cannot normalize a single sample.
    if _needs_two(network, model, dataset, device):
        options = replace(options, least=2)
        batches.join_single()
    extends = extension.read(folder)
    run = Run(
        job=job,
        hardware=hardware,
        plan=plan,
        folder=folder,
        device=device,
        dataset=dataset,
        network=network,
        model=model,
        kept_in_eval_mode=frozen,
        optimizer=optimizer,
        batches=batches,
        signals=signals,
        clock=clock,
        step=Step(model, optimizer, _objective(job, dataset), job.train.clip_norm, device, options),
        rates=_rates(job, optimizer, parts, batches.per_epoch, extends.origin if extends else 0, report),
        ema=Ema(model, job.train.ema) if job.train.ema else None,
        watch=BestMetric(choose_metric(job, dataset), job.train.early_stopping, job.train.schedule),
        numerics=NonfiniteGuard(job.train.loss_spike, job.train.fp16),
        events=events,
        counters=counters,
        ranks=ranks,
        batch_parts=cut,
        extension=extends,
        stage=network.unfreezing.stage(epoch),
        lr_groups=by_layer,
        parts=parts,
    )
    _apply(plan, run)
    solvable = HeadTraining(job, network, run.readable, run.step, parts, ranks.count, hardware.memory.available)
    run.solved_layers, run.unsolved = solvable.find_heads()
    # The plan may have chosen micro-batches of one sample, and the number of threads.
    start_checks.refuse_single_samples(job, run.step, run.batch_parts.count)
    sizes = {"processes": ranks.count, "parts": cut.count, "threads": torch.get_num_threads()}
    run.identity = identity | {name: str(size) for name, size in sizes.items()}
    return run


def _join_processes(job: Job, hardware: Hardware, report: Callable[[str, str], None]) -> tuple[torch.device, Ranks]:
    """Prepare torch in this process and join the others; returns the device and this process among them."""
    device = torch.device(f"cuda:{os.environ.get(LOCAL_RANK, 0)}" if hardware.gpu else "cpu")
    for line in library_variables.overriding(os.environ):
        report("precision", line)
    ranks = join_ranks(device)
    torch_setup.begin(job, hardware, device)
    return device, ranks


def _place_network(network: Model, plan: Plan, ranks: Ranks, device: torch.device) -> nn.Module:
    """Move the network to the device, unless it will be divided: it may not fit a GPU as a whole."""
    divides = ranks.count > 1 and bool(plan.value("sharding"))
    return network.module if divides else network.module.to(device)


def _needs_two(network: Model, model: nn.Module, dataset: Dataset, device: torch.device) -> bool:
    """Whether the network fails on a single sample once all is unfrozen that ever is."""
    with network.unfreezing.during(model, network.unfreezing.last):
        evaluated = [] if network.freeze.train_mode else list(frozen_parts(model))
        return single_sample.needs_two(model, evaluated, dataset, device)


def _begin_alike(
    ranks: Ranks, job: Job, hardware: Hardware, plan: Plan, dataset: Dataset, model: nn.Module
) -> dict[str, str]:
    """Make sure that all processes begin with the same data, plan and weights; returns what the bits depend on."""
    identity = resume.identity(hardware, dataset)
    start_checks.check_identical(ranks, job, dataset, model, identity["data"])
    start_checks.check_plan(ranks, plan)
    if shared := one_copy.share(dataset, ranks):
        dataset.notes.append(shared)
    # User code may initialize weights from random numbers that our seed does not control.
    ranks.broadcast([*model.parameters(), *model.buffers()])
    return identity


def _optimizer(job: Job, model: nn.Module, by_layer: list[LrGroup], parts: UserParts) -> torch.optim.Optimizer:
    """The optimizer of the program, or that of the spec."""
    if parts.optimizer:
        return parts.optimizer.build(model)
    return optimizer.build(job.train.optimizer, model, {name: g.factor for g in by_layer for name in g.names})


def _batches(job: Job, dataset: Dataset, cut: BatchParts, report: Callable[[str, str], None]) -> Batches:
    """The batches of the training data; of each one this process gets its share, unless batches are mixed."""
    batches = batches_of(dataset, job.train.batch, job.train.seed)
    world.check_parts(job, cut.ranks.count)
    start_checks.check_divisible(job, dataset, cut)
    if not (dataset.mixable and uses_mixing(job)):  # mixing needs the whole batch
        batches.shard = cut.shard
    batches.shared_memory.processes = cut.ranks.count
    batches.tell = partial(report, "loader")
    return batches


def _apply(plan: Plan, run: Run) -> None:
    """Apply the optimizations of the plan."""
    for optimization in optimizations.every():
        value = plan.value(optimization.name)
        if value != optimization.off:
            optimization.apply(run, value)
    on_device = run.device.type == "cuda"
    run.step.state.on_device = on_device
    run.step.state.strict = on_device and run.job.train.is_deterministic(on_gpu=True)


def _freeze(model: nn.Module, network: Model, job: Job, epoch: int) -> list[nn.Module]:
    """Freeze what is frozen in `epoch`; returns the modules that stay in evaluation mode."""
    frozen = freeze(model, network.freeze, job)
    if not epoch:
        return frozen
    network.unfreezing.apply(model, epoch)
    return [] if network.freeze.train_mode else list(frozen_parts(model))


def _objective(job: Job, dataset: Dataset) -> Objective:
    """The loss of all heads."""
    weighting = job.train.class_weights
    # A dataset that reads a sample to get its target would be read as a whole.
    targets = dataset.train.targets if losses.weighs(dataset.heads, weighting) else {}
    return losses.objective(job.train.loss, dataset.heads, targets, weighting, dataset.loss)


def _rates(
    job: Job,
    optimizer: torch.optim.Optimizer,
    parts: UserParts,
    per_epoch: int,
    origin: int,
    report: Callable[[str, str], None],
) -> LearningRates:
    """What sets the learning rates: the scheduler of the program, or the schedule of the spec."""
    if parts.schedule:
        return SteppedRates(optimizer, parts.schedule.build(optimizer), parts.schedule.every)
    if parts.optimizer and job.train.schedule == Constant(name="constant"):
        return ProgramsRates(optimizer)
    schedule = learning_rates.schedule_of_job(job.train, per_epoch, origin)
    has_user_optimizer = parts.optimizer is not None
    return ScheduledRates(
        optimizer, job.train.optimizer.lr, schedule, keeps_rates=has_user_optimizer, report=partial(report, "schedule")
    )


def _report(events: EventLog, counters: Counters, kind: str, text: str) -> None:
    """Record an event at the current step."""
    events.add(kind, text, counters.step)
