"""Whether a network can train on a single sample; BatchNorm cannot where it has one value per channel.

Known before the first step, so that an epoch does not end at its last batch: `torch.nn.functional.batch_norm` refuses to
compute a variance of one number.
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
    """Whether a forward pass in training mode fails with one sample, and not with two. The network is left as it was.

    Args:
        model: the network, on `device`.
        evaluated: its modules that stay in evaluation mode, since they are frozen.
        dataset: provides two samples.
        device: where they are computed.
    """
    if len(dataset.train) < 2 or not any(isinstance(module, _NORMS) for module in model.modules()):
        return False
    batch = dry_run.take_first_batch(dataset, dataset.train, device)
    with _in_training_mode(model, evaluated):
        return not _accepts(model, batch.between(0, 1)) and _accepts(model, batch)


def _accepts(model: nn.Module, batch: Batch) -> bool:
    try:
        model(*batch.inputs)
    except Exception:  # whatever a network raises here, it raises in the first step too, where it is explained
        return False
    return True


@contextlib.contextmanager
def _in_training_mode(model: nn.Module, evaluated: Sequence[nn.Module]) -> Iterator[None]:
    """A block in training mode, without gradients, that leaves modes, buffers and generators as they were."""
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
