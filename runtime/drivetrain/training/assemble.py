"""Assembles a run from job, hardware, plan, data and network."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from drivetrain import optimizations
from drivetrain.data.custom.iterables import batches_of
from drivetrain.data.dataset import Dataset
from drivetrain.data.loader.batches import Batches
from drivetrain.data.mixup import uses_mixing
from drivetrain.distributed.batch_sharding import BatchSharding
from drivetrain.distributed.ranks import Ranks, join_ranks
from drivetrain.distributed.world import LOCAL_RANK
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.models import dry_run, lr_groups, strided_convolution
from drivetrain.models.build import BuiltModel
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.models.freeze import find_frozen_parts, freeze
from drivetrain.models.lr_groups import LrGroup
from drivetrain.plan.plan import Plan
from drivetrain.system import library_variables
from drivetrain.system.console import say
from drivetrain.system.fault_points import fault_point
from drivetrain.system.signals import Signals
from drivetrain.tracking.event_log import EventLog
from drivetrain.training import losses, optimizer, start_checks, torch_setup
from drivetrain.training.checkpoints import resume
from drivetrain.training.lockstep import Lockstep
from drivetrain.training.losses import Objective
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.run import Run, report_event
from drivetrain.training.solvable_heads import HeadTraining
from drivetrain.training.step import Step
from drivetrain.training.time_target import Counters
from drivetrain.training.updater import Updater
from drivetrain.training.user_parts import UserParts


@dataclass(frozen=True)
class Assembly:
    """Everything that a run is made of; `assemble` makes the run. The tuner replaces the plan."""

    job: Job
    hardware: Hardware
    plan: Plan
    folder: Path
    dataset: Dataset
    built_model: BuiltModel
    signals: Signals
    facts: Workload = field(default_factory=Workload)
    """Properties of model and data, which measurements use."""
    say: Callable[[str], None] = say
    user_parts: UserParts = field(default_factory=UserParts)
    """Optimizer, schedule, metrics and callbacks of a Python program."""

    def assemble(self, timer: PhaseTimer | None = None, epoch: int = 0) -> Run:
        """Assemble the run and apply the plan to it, with the layers frozen as in `epoch`, counted from 0."""
        fault_point("assemble")
        job, hardware, dataset, built_model = self.job, self.hardware, self.dataset, self.built_model
        events, counters = EventLog(self.folder), Counters()
        report = partial(report_event, events, counters)
        device, ranks = _join_processes(job, hardware, report)
        model = built_model.module.to(device)
        plan = start_checks.adopt_plan(ranks, self.plan) if ranks.world_size > 1 else self.plan
        identity = _synchronize_start(ranks, job, hardware, dataset, model)
        if device.type == "cpu":  # oneDNN's strided convolutions are wrong
            strided_convolution.rewrite(model)
        # The optimizer gets all parameters that are trained in any epoch, including layers that unfreeze later.
        kept_in_eval_mode = _freeze(model, built_model, job, epoch)
        rate_groups = lr_groups.make_groups(job, model, built_model.list_trained())
        output_sizes = {head.outputs for head in dataset.heads.values()}
        optimizer = _build_optimizer(job, model, rate_groups, self.user_parts, output_sizes)
        batch_sharding = BatchSharding(ranks, job.train.batch)
        batches = _build_batches(job, dataset, batch_sharding, report)
        objective = _build_objective(job, dataset)
        forward = ForwardPass(model, objective, device)
        forward.usual_size = batch_sharding.local_size
        forward.min_samples = _count_min_samples(built_model, model, dataset, device)
        if forward.min_samples > 1:
            batches.join_single_sample()
        step = Step(forward, Updater(model, optimizer, job.train.clip_norm), Lockstep(ranks))
        step.interruptible, step.report = self.signals.allow_interruption, report
        run = Run(
            job=job,
            hardware=hardware,
            plan=plan,
            folder=self.folder,
            device=device,
            dataset=dataset,
            built_model=built_model,
            model=model,
            kept_in_eval_mode=kept_in_eval_mode,
            optimizer=optimizer,
            batches=batches,
            signals=self.signals,
            clock=timer or PhaseTimer(),
            objective=objective,
            step=step,
            events=events,
            counters=counters,
            batch_sharding=batch_sharding,
            stage=built_model.unfreezing.stage(epoch),
            lr_groups=rate_groups,
            user_parts=self.user_parts,
            identity=identity,
        )
        _apply_plan(run)
        return run

    def assemble_copy(self, plan: Plan, epoch: int = 0) -> Run:
        """Assemble a run with a copy of the network and another plan, for measurements."""
        model_copy = replace(self.built_model, module=copy.deepcopy(self.built_model.module))
        return replace(self, plan=plan, built_model=model_copy).assemble(epoch=epoch)


def _join_processes(job: Job, hardware: Hardware, report: Callable[[str, str], None]) -> tuple[torch.device, Ranks]:
    """Set up torch and connect to the other processes; returns this process's device and the processes."""
    device = torch.device(f"cuda:{os.environ.get(LOCAL_RANK, 0)}" if hardware.gpu else "cpu")
    for warning in library_variables.list_overrides(os.environ):
        report("precision", warning)
    ranks = join_ranks(device)
    torch_setup.apply_settings(job, hardware, device)
    return device, ranks


def _count_min_samples(built_model: BuiltModel, model: nn.Module, dataset: Dataset, device: torch.device) -> int:
    """Count the samples, 1 or 2, that the network needs once all layers of `model.unfreeze` are unfrozen."""
    with built_model.unfreezing.during(model, built_model.unfreezing.last):
        kept_in_eval_mode = [] if built_model.freeze.train_mode else list(find_frozen_parts(model))
        return 2 if dry_run.needs_two_samples(model, kept_in_eval_mode, dataset, device) else 1


def _synchronize_start(
    ranks: Ranks, job: Job, hardware: Hardware, dataset: Dataset, model: nn.Module
) -> dict[str, str]:
    """Check that all ranks have the same data and network, and copy rank 0's weights; returns `collect_identity`."""
    identity = resume.collect_identity(hardware, dataset)
    start_checks.check_identical(ranks, job, dataset, model, identity["data"])
    dataset.notes += start_checks.note_same_samples(ranks, dataset)
    # User code may initialize weights from random numbers that our seed does not control.
    for tensor in (*model.parameters(), *model.buffers()):
        ranks.start_broadcast([tensor])()
    return identity


def _build_optimizer(
    job: Job, model: nn.Module, rate_groups: list[LrGroup], user_parts: UserParts, output_sizes: set[int]
) -> torch.optim.Optimizer:
    """Build the optimizer of the spec, or take the Python program's optimizer."""
    if user_parts.optimizer:
        return user_parts.optimizer.build(model)
    factors = {name: group.factor for group in rate_groups for name in group.names}
    return optimizer.build(job, model, factors, output_sizes)


def _build_batches(
    job: Job, dataset: Dataset, batch_sharding: BatchSharding, report: Callable[[str, str], None]
) -> Batches:
    """Build the batches of the training data; a process reads its shard of each batch, or the whole batch for mixing."""
    batches = batches_of(dataset, job.train.batch, job.train.seed)
    start_checks.check_divisible(job, dataset, batch_sharding.ranks.world_size)
    if not (dataset.mixable and uses_mixing(job)):
        batches.select_local = batch_sharding.select_local
    batches.shared_memory.processes = batch_sharding.ranks.world_size
    batches.report = partial(report, "loader")
    return batches


def _apply_plan(run: Run) -> None:
    """Apply the optimizations of the plan, then set and check values that depend on them, such as the solved heads."""
    for optimization in optimizations.every():
        value = run.plan.value(optimization.name)
        if value != optimization.off:
            optimization.apply(run, value)
    on_device = run.device.type == "cuda"
    run.step.updater.prefers_device = on_device
    run.step.forward.deterministic_only = on_device and run.job.train.is_deterministic(on_gpu=True)
    processes, free_bytes = run.ranks.world_size, run.hardware.memory.available
    heads = HeadTraining(
        run.job, run.built_model, run.readable, run.step.forward, run.user_parts, processes, free_bytes
    )
    run.solvable_heads, run.unsolved_reason = heads.find_heads()
    start_checks.refuse_single_samples(run.job, run.step.forward, processes)
    sizes = {"processes": processes, "threads": torch.get_num_threads()}
    run.identity |= {name: str(size) for name, size in sizes.items()}


def _freeze(model: nn.Module, built_model: BuiltModel, job: Job, epoch: int) -> list[nn.Module]:
    """Freeze the layers that are frozen in `epoch`; returns the modules that stay in evaluation mode."""
    frozen = freeze(model, built_model.freeze, job)
    if not epoch:
        return frozen
    built_model.unfreezing.apply(model, epoch)
    return [] if built_model.freeze.train_mode else list(find_frozen_parts(model))


def _build_objective(job: Job, dataset: Dataset) -> Objective:
    """Build the loss of all heads."""
    weighting = job.train.class_weights
    # Only if class weights need them, because some datasets read every sample to get the targets.
    targets = dataset.train.targets if losses.need_targets(dataset.heads, weighting) else {}
    return losses.build_objective(job.train.loss, dataset.heads, targets, weighting, dataset.loss)
