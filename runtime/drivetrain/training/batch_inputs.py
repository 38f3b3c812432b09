"""Prepares a batch for a step: moves it to the device, preprocesses, augments and mixes it, and seeds its dropout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Batch
from drivetrain.data.mixup import mix, uses_mixing
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.training.run import Run


def prepare(run: Run, batch: Batch, epoch: int) -> Batch:
    """Preprocess and augment a batch, and mix its samples if the job asks for it: all work before a training step."""
    return mix_samples(run, preprocess(run, batch, epoch))


def preprocess(run: Run, batch: Batch, epoch: int | None) -> Batch:
    """Move a batch to the device and preprocess its inputs; also augment them if an epoch is given."""
    batch = batch.to(run.device)
    return replace(batch, inputs=run.dataset.prepare(batch.inputs, batch.ids, epoch))


def mix_samples(run: Run, batch: Batch) -> Batch:
    """Apply mixup or cutmix if the job sets them; random numbers depend on (seed, step)."""
    if not run.dataset.mixable:
        return batch
    batch = mix(batch, run.dataset.heads, run.job, run.counters.step)
    if not uses_mixing(run.job):
        return batch
    # Mixing needs the whole batch, so only now does this process take its shard.
    return batch.take_rows(run.batch_sharding.select_local(np.arange(len(batch))))


def share_batch(run: Run, samples: int | None = None) -> BatchShare:
    """Compute this process's share of the next batch, with the seed of its dropout.

    The seed is a function of (seed, step, rank), so there is no generator state to save.

    Args:
        samples: size of the batch over all processes; None if this process computes all of it.
    """
    rank = 0 if samples is None or run.batch_sharding.is_replicated(samples) else run.ranks.rank
    position = (run.counters.step, rank) if rank else (run.counters.step,)
    seed = stateless_random.derive_key(run.job.train.seed, "step", *position)
    return BatchShare(seed=seed) if samples is None else run.batch_sharding.share(samples, seed)
