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
from torch import nn

from runtime import optimizations
from runtime.data import one_copy, stateless_random
from runtime.data.custom.loss_division import SPLITTABLE
from runtime.data.custom.stream_batches import batches_of
from runtime.data.dataset import Batch, Dataset
from runtime.data.loader.batches import Batches
from runtime.data.mixup import mix, mixes
from runtime.distributed import world
from runtime.distributed.batch_parts import BatchParts
from runtime.distributed.ranks import ALONE, Ranks, join_ranks
from runtime.distributed.world import LOCAL_RANK
from runtime.errors import SpecError
from runtime.hardware.facts import Hardware
from runtime.job import Job, extension
from runtime.job.extension import Extension
from runtime.job.train import Constant, Fp16
from runtime.job.values import duration_seconds
from runtime.models import lr_groups, sharding, single_sample, strided_convolution
from runtime.models.build import Model
from runtime.models.freeze import freeze, frozen_parts
from runtime.models.lr_groups import LrGroup
from runtime.plan.plan import Plan
from runtime.system import precision_variables
from runtime.system.signals import Signals
from runtime.tracking.event_log import EventLog
from runtime.tracking.metrics_log import MetricsLog
from runtime.training import identical_ranks, losses, optimizer, schedules, torch_setup
from runtime.training.best_metric import BestMetric, choose_metric
from runtime.training.checkpoints import resume
from runtime.training.counters import Counters
from runtime.training.ema import Ema
from runtime.training.learning_rates import LearningRates, ProgramsRates, ScheduledRates, SteppedRates
from runtime.training.losses import Objective
from runtime.training.nonfinite import NonfiniteGuard
from runtime.training.phase_timer import PhaseTimer
from runtime.training.step import Step
from runtime.training.step_options import SeededPart, plain_options
from runtime.training.step_result import StepResult
from runtime.training.user_parts import UserParts


@dataclass
class Run:
    """Everything that a training needs; `loop.fit` drives it."""

    job: Job
    hardware: Hardware
    plan: Plan
    folder: Path
    device: torch.device
    dataset: Dataset
    network: Model
    model: nn.Module
    frozen: list[nn.Module]
    optimizer: torch.optim.Optimizer
    step: Step
    batches: Batches
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
    replaced: Dataset | None = None
    """The original dataset, if cached activations of a frozen prefix have replaced it."""
    cached: str = ""
    """That prefix in words."""
    stage: int = 0
    """How many unfreezings of `model.unfreeze` have happened."""
    lr_groups: list[LrGroup] = field(default_factory=list)
    """The trained parameters by their factor of the learning rate."""
    prefix_dtype: torch.dtype | None = None
    """dtype in which a frozen prefix is computed once; None for fp32."""
    parts: UserParts = field(default_factory=UserParts)
    """What a Python program brought."""
    outcome: StepResult | None = None
    """Of the last step; None if its batch was left out."""
    stop_reason: str | None = None
    """Why a callback ends the training."""
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Effective settings when last read back, by decision."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run, if nothing ends it early."""
        steps = self.batches.per_epoch * self.job.train.epochs
        return min(steps, self.job.train.steps or steps)

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

    def configure_step(self, **options: object) -> None:
        """Give the step other options."""
        self.step = self.step.configured(**options)

    def autocast_step(self, dtype: torch.dtype, scaling: Fp16 | None = None) -> None:
        """Run the step's forward pass under autocast, and scale its gradients if `scaling` is given."""
        self.step = self.step.autocast(dtype, scaling)

    def compile_step(self, *, graphs: bool = False) -> None:
        """Compile the step's forward pass."""
        self.step = self.step.compile(graphs=graphs)

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
        """Set training mode, except for frozen modules."""
        self.model.train()
        for module in self.frozen:
            module.eval()

    def prepared(self, batch: Batch, epoch: int | None) -> Batch:
        """The batch on the device, preprocessed; augmented if an epoch is given."""
        batch = batch.to(self.device)
        return Batch(batch.ids, self.dataset.prepare(batch.inputs, batch.ids, epoch), batch.targets)

    def mixed(self, batch: Batch) -> Batch:
        """The batch after mixup or cutmix, if the job has them; random numbers depend on (seed, step)."""
        if not self.dataset.mixable:
            return batch
        whole = mix(batch, self.dataset.heads, self.job, self.counters.step)
        return whole.taken(self.batch_parts.shard(np.arange(len(whole)))) if mixes(self.job) else whole

    def set_rate(self) -> float:
        """Set the learning rates of the next step; returns that of the optimizer."""
        return self.rates.set(self.counters, self.watch.factor())

    def group_rates(self, rate: float) -> dict[str, float]:
        """The learning rates of the layers in `train.lr_groups`, as they are recorded; `rate` is that of the rest."""
        return {f"{group.pattern}/lr": rate * group.factor for group in self.lr_groups if group.pattern}

    def step_seed(self, part: int = 0) -> int:
        """The seed of this step's dropout: a function of (seed, step, part), so there is no generator state to save."""
        where = (self.counters.step, part) if part else (self.counters.step,)
        return stateless_random.key(self.job.train.seed, "step", *where)

    def own_parts(self, samples: int) -> list[SeededPart]:
        """What this process computes of a batch of so many samples over all processes, with the seeds of this step."""
        own = self.batch_parts.own(samples)
        return [SeededPart(part.samples, self.step_seed(part.number)) for part in own]

    def time_left(self) -> float:
        """Seconds until `max_time` of this attempt; infinite without one."""
        if self.job.train.max_time is None:
            return float("inf")
        return duration_seconds(self.job.train.max_time) - self.clock.seconds


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
    """Assemble a run and apply the plan to it; what is frozen is that of `epoch`, counted from 0.

    `parts` are those of a Python program.
    """
    parts = parts or UserParts()
    events, counters = EventLog(folder), Counters()
    report = partial(_report, events, counters)
    device = torch.device(f"cuda:{os.environ.get(LOCAL_RANK, 0)}" if hardware.gpu else "cpu")
    for line in precision_variables.overriding(os.environ):
        report("precision", line)
    ranks = join_ranks(device)
    torch_setup.begin(job, hardware, device)
    divides = ranks.count > 1 and bool(plan.value("sharding"))
    # A network that will be divided may not fit a GPU as a whole.
    model = network.module if divides else network.module.to(device)
    identity = _begin_alike(ranks, job, hardware, plan, dataset, model)
    if device.type == "cpu":
        strided_convolution.rewrite(model)
    frozen = _frozen(model, network, job, epoch)
    by_layer = lr_groups.groups(job, model, network.trained())
    made = _optimizer(job, model, by_layer, parts)
    cut = BatchParts(ranks, job.train.parts or ranks.count, job.train.batch)
    batches = _batches(job, dataset, cut, report)
    options = plain_options(model, ranks, cut.own(job.train.batch)[0].samples, signals, report)
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
        frozen=frozen,
        optimizer=made,
        batches=batches,
        signals=signals,
        clock=clock,
        step=Step(model, made, _objective(job, dataset), job.train.clip_norm, device, options),
        rates=_rates(job, made, parts, batches.per_epoch, extends.origin if extends else 0, report),
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
    _refuse_single_samples(run)
    sizes = {"processes": ranks.count, "parts": cut.count, "threads": torch.get_num_threads()}
    run.identity = identity | {name: str(size) for name, size in sizes.items()}
    return run


def _needs_two(network: Model, model: nn.Module, dataset: Dataset, device: torch.device) -> bool:
    """Whether the network fails on a single sample once all is unfrozen that ever is."""
    with network.unfreezing.during(model, network.unfreezing.last):
        evaluated = [] if network.freeze.train_mode else list(frozen_parts(model))
        return single_sample.needs_two(model, evaluated, dataset, device)


def _refuse_single_samples(run: Run) -> None:
    """Refuse sizes that are too small for a network that needs two samples at once.

    Raises:
        SpecError: naming the key that makes them so small.
    """
    train, parts = run.job.train, run.batch_parts.count
    if run.step.options.least == 1:
        return
    if run.step.micro_batch == 1:
        key, given = ("optimize", "micro_batch"), "1"
    elif train.batch < 2 * parts:
        key, given = ("train", "batch_size"), f"{train.batch}" + (f" in {parts} parts" if parts > 1 else "")
    elif run.step.options.splitter is not Batch.split:
        key, given = ("optimize", "unpadding"), "a text may get a pass of its own"
    else:
        return
    raise SpecError(
        [
            run.job.problem(
                key,
                f"{given}, but this network cannot train on a single sample: one of its BatchNorm layers would have one "
                "value per channel, which has no variance",
                "two samples or more at a time",
                "use a larger size, or layers that need no batch, such as GroupNorm or LayerNorm",
            )
        ]
    )


def _begin_alike(
    ranks: Ranks, job: Job, hardware: Hardware, plan: Plan, dataset: Dataset, model: nn.Module
) -> dict[str, str]:
    """Make sure that all processes begin with the same data, plan and weights; returns what the bits depend on."""
    identity = resume.identity(hardware, dataset)
    identical_ranks.check(ranks, job, dataset, model, identity["data"])
    identical_ranks.check_plan(ranks, plan)
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
    _check_divisible(job, dataset, cut)
    if not (dataset.mixable and mixes(job)):  # mixing needs the whole batch
        batches.shard = cut.shard
    batches.handover.processes = cut.ranks.count
    batches.tell = partial(report, "loader")
    return batches


def _check_divisible(job: Job, dataset: Dataset, cut: BatchParts) -> None:
    """Refuse several parts of a batch if the user's loss cannot be put together from those of parts."""
    if cut.count == 1 or not dataset.loss or not (obstacle := dataset.loss.division.obstacle):
        return
    path = ("train", "parts") if cut.ranks.count == 1 else ("limits", "processes")
    given = f"a batch has {cut.count} parts for {cut.ranks.count} processes, and {obstacle}"
    action = f"train in one process, on one GPU, without train.parts; {SPLITTABLE}"
    raise SpecError([job.problem(path, given, "one process, which computes every batch as a whole", action)])


def _apply(plan: Plan, run: Run) -> None:
    """Apply the optimizations of the plan."""
    for optimization in optimizations.every():
        value = plan.value(optimization.name)
        if value != optimization.off:
            # Here mypy checks that Run fits AssembledRun, the interface for optimizations.
            optimization.apply(run, value)
    on_device = run.device.type == "cuda"
    run.step.state.on_device = on_device
    run.step.state.strict = on_device and run.job.train.is_deterministic(on_gpu=True)


def _frozen(model: nn.Module, network: Model, job: Job, epoch: int) -> list[nn.Module]:
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
    made: torch.optim.Optimizer,
    parts: UserParts,
    per_epoch: int,
    origin: int,
    report: Callable[[str, str], None],
) -> LearningRates:
    """What sets the learning rates: the scheduler of the program, or the schedule of the spec."""
    if parts.schedule:
        return SteppedRates(made, parts.schedule.build(made), parts.schedule.every)
    if parts.optimizer and job.train.schedule == Constant(name="constant"):
        return ProgramsRates(made)
    schedule = schedules.of_job(job.train, per_epoch, origin)
    own = parts.optimizer is not None
    return ScheduledRates(made, job.train.optimizer.lr, schedule, own=own, report=partial(report, "schedule"))


def _report(events: EventLog, counters: Counters, kind: str, text: str) -> None:
    """Record an event at the current step."""
    events.add(kind, text, counters.step)
