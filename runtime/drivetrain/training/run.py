"""A run, assembled from job, hardware and plan: model, optimizer, data, step and counters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain import optimizations
from drivetrain.data import stateless_random
from drivetrain.data.custom.iterables import batches_of
from drivetrain.data.dataset import Batch, Dataset
from drivetrain.data.loader.batches import Batches
from drivetrain.data.mixup import mix, uses_mixing
from drivetrain.distributed.batch_parts import BatchParts
from drivetrain.distributed.ranks import Ranks, join_ranks
from drivetrain.distributed.world import LOCAL_RANK
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.values import parse_duration
from drivetrain.models import dry_run, lr_groups, strided_convolution
from drivetrain.models.build import Model
from drivetrain.models.freeze import find_frozen_parts, freeze
from drivetrain.models.lr_groups import LrGroup
from drivetrain.optimizations import AssembledRun
from drivetrain.plan.plan import Plan
from drivetrain.system import library_variables
from drivetrain.system.fault_points import fault_point
from drivetrain.system.run_files import CHECKPOINTS
from drivetrain.system.signals import Signals
from drivetrain.tracking.event_log import EventLog
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import losses, optimizer, start_checks, torch_setup
from drivetrain.training.best_metric import BestMetric, choose_metric
from drivetrain.training.captured_step import CapturedStep, CudaGraphs
from drivetrain.training.checkpoints import resume
from drivetrain.training.losses import Objective
from drivetrain.training.nonfinite import NonfiniteGuard
from drivetrain.training.optimizer import LearningRates, build_rates
from drivetrain.training.peers import Peers
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.solvable_heads import HeadTraining, SolvableHead
from drivetrain.training.step import Step
from drivetrain.training.step_options import build_options
from drivetrain.training.time_target import MAX_EPOCHS, Counters, TimeTarget
from drivetrain.training.user_parts import TrainingInfo, UserParts
from drivetrain.training.weight_update import Ema


@dataclass(kw_only=True)
class Run(AssembledRun):
    """Everything that a training needs; `loop.fit` drives it."""

    plan: Plan
    network: Model
    kept_in_eval_mode: list[nn.Module]
    """Modules that stay in evaluation mode, because they are frozen or the program has put them there."""
    step: Step
    signals: Signals
    events: EventLog
    clock: PhaseTimer
    counters: Counters = field(default_factory=Counters)
    earlier_samples: int = 0
    """Samples processed by earlier attempts."""
    local_samples: int = 0
    """Samples that this process has trained on itself, in this attempt."""
    metrics: MetricsLog | None = None
    last_metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last evaluation."""
    identity: dict[str, str] = field(default_factory=dict)
    """Name and value of everything beside spec and plan that the exact bits of the run depend on."""
    batch_parts: BatchParts
    """Divides each batch among the processes."""
    lr_groups: list[LrGroup] = field(default_factory=list)
    """The trained parameters, grouped by their factor of the learning rate."""
    user_parts: UserParts = field(default_factory=UserParts)
    """Optimizer, schedule, metrics and callbacks of a Python program."""
    solvable_heads: Mapping[str, SolvableHead] = field(default_factory=dict)
    """The heads, if they are solved in place of the first epochs; else empty."""
    unsolved_reason: str = ""
    """Why the heads are not solved, though only they are trained at first."""
    stop_reason: str | None = None
    """Why a callback ends the training; None if it goes on."""
    effective_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The rows of `effective_settings.compare_with_plan`, as they were last reported."""
    rates: LearningRates = field(init=False)
    ema: Ema | None = field(init=False)
    best_metric: BestMetric = field(init=False)
    numerics: NonfiniteGuard = field(init=False)
    time_target: TimeTarget | None = field(init=False)
    """The time of a run with `train.within`."""

    def __post_init__(self) -> None:
        train = self.job.train
        report, per_epoch = partial(_report_event, self.events, self.counters), self.batches.per_epoch
        self.rates = build_rates(train, self.optimizer, self.user_parts, per_epoch, report)
        self.ema = Ema(self.model, train.ema) if train.ema else None
        self.best_metric = BestMetric(choose_metric(self.job, self.dataset), train.early_stopping, train.schedule)
        self.numerics = NonfiniteGuard(train.loss_spike, train.fp16)
        batches = [
            len(split or ()) / train.batch
            for split in (self.dataset.validation, self.dataset.test and self.dataset.test.split)
        ]
        self.time_target = TimeTarget(self.job, self.clock.started, *batches) if train.within else None

    @property
    def peers(self) -> Peers:
        """The processes that train together, with the problem of this one that the others do not know yet."""
        return self.step.options.peers

    @property
    def ranks(self) -> Ranks:
        """The same processes, and the number of this one."""
        return self.peers.ranks

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run, if nothing ends it early; with `train.within` by the speed so far."""
        if self.ends_solved:
            return 1
        if self.time_target:
            max_steps, share = self.batches.per_epoch * MAX_EPOCHS, self.peers.time_share
            return min(max_steps, round(self.counters.step / share)) if share and self.counters.step else max_steps
        steps = self.batches.per_epoch * self.job.train.epochs
        return min(steps, self.job.train.steps or steps)

    @property
    def total_epochs(self) -> int:
        """Epochs of the whole run, the last one perhaps in part, if nothing ends it early."""
        return -(-self.total_steps // self.batches.per_epoch) if self.time_target else self.job.train.epochs

    @property
    def ends_solved(self) -> bool:
        """Whether solving the heads is the whole training, since nothing is unfrozen later."""
        return (self.counters.solved or self.solves_heads) and not self.network.unfreezing.epochs

    @property
    def solves_heads(self) -> bool:
        """Whether the next epoch solves the heads; a run that has begun with steps continues with steps."""
        return bool(self.solvable_heads) and not self.counters.step

    def reached_step_limit(self) -> bool:
        """Whether the run has made the optimizer steps of `train.steps`, or used the time of `train.within`."""
        if self.time_target:
            return self.peers.time_share >= 1
        limit = self.job.train.steps
        return limit is not None and self.counters.step >= limit

    def begin_time(self) -> None:
        """Start to measure the share of `train.within` that is used, before the first step."""
        target, counters = self.time_target, self.counters
        if target is None or self.ends_solved:
            return
        target.begin()
        self.peers.measure_time_share = lambda: target.measure_share(
            counters.step, counters.epoch + counters.batch / self.batches.per_epoch
        )
        self.peers.raise_gravest()

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / CHECKPOINTS

    @property
    def readable(self) -> Dataset:
        """The dataset with the samples as the user knows them, not the activations that may have replaced them."""
        return self.replaced or self.dataset

    def record_step(self) -> None:
        """Record whole steps as CUDA graphs and replay them."""
        report = partial(_report_event, self.events, self.counters, "step_graph")
        # A recorded step cannot copy class weights from the host.
        self.step.objective.move(self.device)
        self.configure_step(captured=CapturedStep(CudaGraphs(self.device).record, self.average_weights, report))

    def average_weights(self, finite: Tensor) -> None:
        """Update the average of the weights, if there is one and the last update was made."""
        if self.ema:
            self.ema.update(self.model, finite)

    def train_mode(self) -> None:
        """Set training mode, except for the modules that are kept in evaluation mode."""
        self.model.train()
        for module in self.kept_in_eval_mode:
            module.eval()

    def preprocess(self, batch: Batch, epoch: int | None) -> Batch:
        """The batch on the device, with its inputs preprocessed, and augmented if an epoch is given."""
        batch = batch.to(self.device)
        return replace(batch, inputs=self.dataset.prepare(batch.inputs, batch.ids, epoch))

    def mix(self, batch: Batch) -> Batch:
        """The batch after mixup or cutmix, if the job has them; random numbers depend on (seed, step)."""
        if not self.dataset.mixable:
            return batch
        batch = mix(batch, self.dataset.heads, self.job, self.counters.step)
        if not uses_mixing(self.job):
            return batch
        # Mixing needs the whole batch, so only now does this process take its shard.
        return batch.take_rows(self.batch_parts.select_own_samples(np.arange(len(batch))))

    def set_learning_rates(self) -> float:
        """Set the learning rates of the next step; returns that of the first parameter group."""
        return self.rates.set(
            self.counters, self.best_metric.factor(), self.peers.time_share if self.time_target else None
        )

    def step_seed(self, samples: int | None = None) -> int:
        """The seed of this step's dropout: a function of (seed, step, rank), so there is no generator state to save.

        Args:
            samples: the size of the batch over all processes; None if this process computes all of it.
        """
        rank = 0 if samples is None or self.batch_parts.is_whole(samples) else self.ranks.number
        position = (self.counters.step, rank) if rank else (self.counters.step,)
        return stateless_random.derive_key(self.job.train.seed, "step", *position)

    def collect_info(self, epoch: int, **values: Any) -> TrainingInfo:
        """The current state for a callback; `values` are further fields of `TrainingInfo`."""
        return TrainingInfo(self.folder, self.counters.step, self.total_steps, epoch, self.total_epochs, **values)

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
    user_parts: UserParts | None = None,
) -> Run:
    """Assemble a run and apply the plan to it.

    Args:
        epoch: counted from 0; freezes the layers that are frozen in this epoch.
        user_parts: optimizer, schedule, metrics and callbacks of a Python program.
    """
    fault_point("assemble")
    user_parts = user_parts or UserParts()
    events, counters = EventLog(folder), Counters()
    report = partial(_report_event, events, counters)
    device, ranks = _join_processes(job, hardware, report)
    model = network.module.to(device)
    identity = _synchronize_start(ranks, job, hardware, plan, dataset, model)
    # Around a fault of oneDNN, which computes convolutions on CPUs only.
    if device.type == "cpu":
        strided_convolution.rewrite(model)
    # The optimizer gets all parameters that are trained in any epoch, so layers that unfreeze later are in it.
    kept_in_eval_mode = _freeze(model, network, job, epoch)
    rate_groups = lr_groups.make_groups(job, model, network.list_trained())
    optimizer = _build_optimizer(job, model, rate_groups, user_parts)
    batch_parts = BatchParts(ranks, job.train.batch)
    batches = _build_batches(job, dataset, batch_parts, report)
    options = build_options(model, Peers(ranks), batch_parts.part_size, signals, report)
    if _needs_two_samples(network, model, dataset, device):
        options = replace(options, min_samples=2)
        batches.join_single_sample()
    run = Run(
        job=job,
        hardware=hardware,
        plan=plan,
        folder=folder,
        device=device,
        dataset=dataset,
        network=network,
        model=model,
        kept_in_eval_mode=kept_in_eval_mode,
        optimizer=optimizer,
        batches=batches,
        signals=signals,
        clock=clock,
        step=Step(model, optimizer, _build_objective(job, dataset), job.train.clip_norm, device, options),
        events=events,
        counters=counters,
        batch_parts=batch_parts,
        stage=network.unfreezing.stage(epoch),
        lr_groups=rate_groups,
        user_parts=user_parts,
        identity=identity,
    )
    _apply_plan(run)
    return run


def _join_processes(job: Job, hardware: Hardware, report: Callable[[str, str], None]) -> tuple[torch.device, Ranks]:
    """Set up torch and connect to the other processes; returns this process's device and the processes."""
    device = torch.device(f"cuda:{os.environ.get(LOCAL_RANK, 0)}" if hardware.gpu else "cpu")
    for warning in library_variables.list_overrides(os.environ):
        report("precision", warning)
    ranks = join_ranks(device)
    torch_setup.apply_settings(job, hardware, device)
    return device, ranks


def _needs_two_samples(network: Model, model: nn.Module, dataset: Dataset, device: torch.device) -> bool:
    """Whether the network fails on a single sample when everything is unfrozen that is in any epoch."""
    with network.unfreezing.during(model, network.unfreezing.last):
        kept_in_eval_mode = [] if network.freeze.train_mode else list(find_frozen_parts(model))
        return dry_run.needs_two_samples(model, kept_in_eval_mode, dataset, device)


def _synchronize_start(
    ranks: Ranks, job: Job, hardware: Hardware, plan: Plan, dataset: Dataset, model: nn.Module
) -> dict[str, str]:
    """Check that all processes have the same data and plan, and copy rank 0's weights; returns `resume.identity`."""
    identity = resume.collect_identity(hardware, dataset)
    start_checks.check_identical(ranks, job, dataset, model, identity["data"])
    start_checks.check_plan(ranks, plan)
    dataset.notes += start_checks.note_same_samples(ranks, dataset)
    # User code may initialize weights from random numbers that our seed does not control.
    ranks.broadcast([*model.parameters(), *model.buffers()])
    return identity


def _build_optimizer(
    job: Job, model: nn.Module, rate_groups: list[LrGroup], user_parts: UserParts
) -> torch.optim.Optimizer:
    """The optimizer of the Python program, or that of the spec."""
    if user_parts.optimizer:
        return user_parts.optimizer.build(model)
    return optimizer.build(job.train.optimizer, model, {name: g.factor for g in rate_groups for name in g.names})


def _build_batches(job: Job, dataset: Dataset, batch_parts: BatchParts, report: Callable[[str, str], None]) -> Batches:
    """The batches of the training data; this process reads its shard of each, or all of it if batches are mixed."""
    batches = batches_of(dataset, job.train.batch, job.train.seed)
    start_checks.check_divisible(job, dataset, batch_parts.ranks.count)
    if not (dataset.mixable and uses_mixing(job)):
        batches.select_local = batch_parts.select_own_samples
    batches.shared_memory.processes = batch_parts.ranks.count
    batches.report = partial(report, "loader")
    return batches


def _apply_plan(run: Run) -> None:
    """Apply the optimizations of the plan, then decide and check what depends on them, such as the micro-batch size."""
    for optimization in optimizations.every():
        value = run.plan.value(optimization.name)
        if value != optimization.off:
            optimization.apply(run, value)
    on_device = run.device.type == "cuda"
    run.step.state.prefers_device = on_device
    run.step.state.deterministic_only = on_device and run.job.train.is_deterministic(on_gpu=True)
    processes, free_bytes = run.ranks.count, run.hardware.memory.available
    heads = HeadTraining(run.job, run.network, run.readable, run.step, run.user_parts, processes, free_bytes)
    run.solvable_heads, run.unsolved_reason = heads.find_heads()
    start_checks.refuse_single_samples(run.job, run.step, processes)
    sizes = {"processes": processes, "threads": torch.get_num_threads()}
    run.identity |= {name: str(size) for name, size in sizes.items()}


def _freeze(model: nn.Module, network: Model, job: Job, epoch: int) -> list[nn.Module]:
    """Freeze the layers that are frozen in `epoch`; returns the modules that stay in evaluation mode."""
    frozen = freeze(model, network.freeze, job)
    if not epoch:
        return frozen
    network.unfreezing.apply(model, epoch)
    return [] if network.freeze.train_mode else list(find_frozen_parts(model))


def _build_objective(job: Job, dataset: Dataset) -> Objective:
    """The loss of all heads."""
    weighting = job.train.class_weights
    # Only where class weights need them: some datasets read every sample to get the targets.
    targets = dataset.train.targets if losses.need_targets(dataset.heads, weighting) else {}
    return losses.build_objective(job.train.loss, dataset.heads, targets, weighting, dataset.loss)


def _report_event(events: EventLog, counters: Counters, kind: str, text: str) -> None:
    """Record an event at the current step."""
    events.add(kind, text, counters.step)
