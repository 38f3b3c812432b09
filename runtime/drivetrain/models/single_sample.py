"""Finds out before the first step whether a network can train on a single sample, as the last batch of an epoch can be.

BatchNorm cannot if a sample has one value per channel: torch refuses to compute a variance of one number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from drivetrain.data.dataset import Batch, Dataset
from drivetrain.models import dry_run
from drivetrain.models.buffers import Buffers

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def needs_two_samples(model: nn.Module, evaluated: Sequence[nn.Module], dataset: Dataset, device: torch.device) -> bool:
    """Whether a forward pass in training mode fails with one sample, but not with two. The network is not changed.

    Args:
        model: the network, on `device`.
        evaluated: its modules that stay in evaluation mode, since they are frozen.
        dataset: provides two samples.
        device: device of the computation.
    """
    if len(dataset.train) < 2 or not any(isinstance(module, _NORMS) for module in model.modules()):
        return False
    batch = dry_run.take_first_batch(dataset, dataset.train, device)
    with _in_training_mode(model, evaluated):
        return not _accepts(model, batch.between(0, 1)) and _accepts(model, batch)


def _accepts(model: nn.Module, batch: Batch) -> bool:
    try:
        model(*batch.inputs)
    except Exception:  # a network may raise anything; the first step raises it again, and explains it
        return False
    return True


@contextlib.contextmanager
def _in_training_mode(model: nn.Module, evaluated: Sequence[nn.Module]) -> Iterator[None]:
    """A block in training mode, without gradients, after which modes, buffers and generators are restored."""
    modes = {module: module.training for module in model.modules()}
    with Buffers(model).keep_unchanged(), torch.random.fork_rng(), torch.no_grad():
        model.train()
        for module in evaluated:
            module.eval()
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode
