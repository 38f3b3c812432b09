"""Computes the output of a frozen prefix once per sample, caches it, and trains only the rest of the network on it.

The prefix runs in evaluation mode, as frozen modules do, so its outputs are the same in every epoch. They are kept in
fp32; `prefix_precision` sets the format of their computation. Only the rounding changes, because the prefix is
computed in other groups of samples than the batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain.distributed import world
from drivetrain.job.model import Freeze
from drivetrain.job.workload import MIN_CACHED_FLOP_PER_BYTE
from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload
from drivetrain.system.units import format_bytes

if TYPE_CHECKING:
    from drivetrain.data.dataset import Dataset, Inputs, Split
    from drivetrain.data.stateless_random import Ids
    from drivetrain.models.frozen_split import FrozenSplit

STAGE = Stage.MODEL
EFFECT = Effect.ROUNDING
OFF = False
UNMEASURED = "the saving is computed from FLOPs and bytes"
Values = bool

SPACE_DIVISOR = 4
"""The cache may use 1/SPACE_DIVISOR of the free memory, or of the free disk space."""
WORK = {"memory": MIN_CACHED_FLOP_PER_BYTE, "disk": 5 * MIN_CACHED_FLOP_PER_BYTE}
"""FLOPs per cached byte; above, reading is certainly cheaper than computing again."""


WITHOUT = "they are computed in every step; results may no longer be bit-identical to those of a run that has kept them"


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on if a prefix is frozen, its outputs are constant and fit, and reading them costs less."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    epochs, views = job.train.epochs, _views(job)
    if epochs < 2:
        return Choice(False, "in a single epoch nothing is computed twice")
    if epochs <= views:
        return Choice(False, f"in {epochs} epochs each of the {views} views is used at most once (data.augment.views)")
    if workload is None:
        return Choice(True, "compute frozen layers once, if they come first and their outputs fit")
    where = _place(job, hardware, workload.prefix_bytes)
    assert where is not None
    if workload.prefix_work < WORK[where]:
        return Choice(False, f"computing {workload.prefix} is as fast as reading their outputs from {where}")
    return Choice(
        True,
        f"{workload.prefix} are computed {f'in {views}' if views else 'once instead of in each'} of {epochs} epochs{_until(job)}: saves "
        f"{workload.prefix_share:.0%} of the computation per step, needs {format_bytes(workload.prefix_bytes)} "
        f"{'of memory' if where == 'memory' else 'of disk space'}",
    )


def _until(job: Job) -> str:
    """Name the epoch until which the frozen layers stay the same."""
    later = getattr(getattr(job, "model", None), "unfreeze", ())
    return f", fewer of them from epoch {min(unfreeze.epoch for unfreeze in later)} on" if later else ""


def lacks(job: Job, hardware: Hardware) -> str | None:
    """Name the missing condition, or None: it applies only if parts of the network are frozen."""
    return None if _get_freeze(job) else "nothing frozen"


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: without a frozen prefix in evaluation mode, with random
    augmentation, or without space for the outputs.
    """
    frozen = _get_freeze(job)
    if frozen is None:
        return "no part of the network is frozen (model.freeze)"
    if frozen.train_mode:
        return "with model.freeze.train_mode the outputs of frozen layers change from step to step"
    obstacle = describe_changing_inputs(job)
    if obstacle:
        return obstacle
    if job.optimize.get("loader_workers", "auto") not in ("auto", 0):
        return "optimize.loader_workers needs inputs to load, and cached features need none"
    return None if workload is None else _no_room(job, hardware, workload)


def _views(job: Job) -> int:
    """Return after how many epochs the augmentation repeats; 0 if it never does, or there is none."""
    return getattr(getattr(job.data, "augment", None), "views", None) or 0


def describe_changing_inputs(job: Job) -> str | None:
    """Name the setting that changes the inputs in every epoch; None if none does."""
    views = _views(job)
    for name, requested in getattr(job.data, "augment", None) or ():
        if not requested or name == "views":
            continue
        if name in ("mixup", "cutmix"):
            return f"data.augment.{name} changes the inputs in every step"
        if not views:
            hint = "; data.augment.views makes that repeat" if hasattr(job.data.augment, "views") else ""  # type: ignore[attr-defined]
            return f"data.augment.{name} changes the inputs in every epoch{hint}"
    return None


def _get_freeze(job: Job) -> Freeze | None:
    """Return the parts that the job freezes; None if it freezes nothing."""
    frozen: Freeze | None = getattr(getattr(job, "model", None), "freeze", None)
    return frozen if frozen and frozen.any else None


def _no_room(job: Job, hardware: Hardware, workload: Workload) -> str | None:
    if not workload.prefix:
        return "this network has no frozen layers that all come before the trained ones"
    if _place(job, hardware, workload.prefix_bytes) is None:
        free, together = hardware.storage.runs_free, world.count_local_ranks(job, hardware)
        in_processes = f" in each of {together} processes" if together > 1 else ""
        return (
            f"the outputs of {workload.prefix} take {format_bytes(workload.prefix_bytes)}{in_processes}, more than a quarter of the free "
            f"memory ({format_bytes(hardware.memory.available)}) and of the free disk ({format_bytes(free)})"
        )
    return None


def _place(job: Job, hardware: Hardware, needed: int) -> str | None:
    """Choose where the outputs fit, given that every process stores them: `memory`, `disk`, or None."""
    needed *= world.count_local_ranks(job, hardware)
    if needed * SPACE_DIVISOR <= hardware.memory.available:
        return "memory"
    return "disk" if needed * SPACE_DIVISOR <= (hardware.storage.runs_free or 0) else None


def apply(run: AssembledRun, value: Value) -> None:
    """Replace the samples by cached activations, and the network by its rest."""
    from drivetrain.models import feature_cache
    from drivetrain.system import torch_settings

    saving = feature_cache.measure_saving(run.dataset, run.model)
    if saving is None:  # frozen layers have been unfrozen
        return
    if run.stage and saving.work < MIN_CACHED_FLOP_PER_BYTE and run.job.optimize.get("feature_cache") is not True:
        return
    storage = _place(run.job, run.hardware, feature_cache.count_bytes(run.dataset, saving))
    if storage is None:
        run.events.add("feature_cache", f"there is no more room for the outputs of {saving.name}: {WITHOUT}")
        return
    samples = run.dataset
    # The tuner works on the same dataset object, so activations it computed under the same settings are reused.
    run.dataset, split = feature_cache.cache_activations(
        samples,
        run.model,
        run.device,
        key=f"{run.step.forward.memory_format} {run.plan.value('prefix_precision')} TF32 {torch_settings.read_tf32()}",
        batch_size=run.job.train.batch,
        folder=run.folder if storage == "disk" else None,
        compute=lambda found, split, ids, epoch: _compute(run, samples, found, split, ids, epoch),
        report=lambda text: run.events.add("feature_cache", text),
    )
    run.uncached_dataset, run.cached_prefix = samples, split.name
    run.batches.split = run.dataset.train
    run.step.forward.compute, run.step.forward.packed_compute = split.rest, split.packed


def _compute(
    run: AssembledRun, dataset: Dataset, division: FrozenSplit, split: Split, ids: Ids, epoch: int | None
) -> Inputs:
    """Compute the prefix for a group of samples, in its own precision whatever the step uses."""
    import torch

    from drivetrain.models import frozen_split

    short = run.prefix_dtype
    cast = torch.autocast(run.device.type, short or torch.bfloat16, enabled=short is not None)
    # Whoever asks first, even before the training has set the modes: dropout would stay in the features.
    with run.clock.phase("features"), torch.no_grad(), cast, frozen_split.evaluating(run.model):
        inputs = dataset.prepare(tuple(x.to(run.device) for x in split.gather(ids)), ids, epoch)
        outputs: Inputs = division.prefix(*run.step.forward.lay_out(inputs))
        return outputs


def effective(run: AssembledRun) -> Value:
    """Return whether the step computes only the layers after the cached prefix."""
    return run.uncached_dataset is not None
