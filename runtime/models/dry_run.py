"""Runs the user's network on a few samples, so that mismatches are found before the first training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from runtime.data.custom.arrays import ArraySplit, described
from runtime.data.custom.loss_division import Refuse
from runtime.data.custom.stream import StreamSplit
from runtime.data.custom.user_errors import blamed
from runtime.data.dataset import Batch, Dataset, Head, Split
from runtime.data.loader.batches import fetch, in_order
from runtime.models import unstorable

TRIED = 16
"""Samples whose targets show how a loss is put together, if these are no classes."""

CPU = torch.device("cpu")


def first(dataset: Dataset, split: Split, device: torch.device = CPU) -> Batch:
    """The first two samples of a split, preprocessed on `device`."""
    batch = next(in_order(split, 2)).to(device)
    return Batch(batch.ids, dataset.prepare(batch.inputs, batch.ids, None), batch.targets)


def wrapper(module: nn.Module) -> str | None:
    """The class name of a multi-GPU wrapper (DataParallel, DDP, FSDP) in the network; None if there is none."""
    kinds = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    found = (
        type(each).__name__
        for each in module.modules()
        if isinstance(each, kinds) or type(each).__name__.startswith(("FullyShardedDataParallel", "FSDP"))
    )
    return next(found, None)


def check(module: nn.Module, dataset: Dataset, name: str, refuse: Refuse) -> None:
    """Pass samples of both splits through the network and through the user's loss, if there is one.

    Args:
        module: the network; it is left in evaluation mode, with lazy parameters initialized.
        dataset: provides the samples.
        name: of the network, for error messages.
        refuse: makes the error.

    Raises:
        SpecError: if network, data and loss do not fit together.
    """
    module.eval()
    before = _saved(module)
    for split in (dataset.train, dataset.validation):
        batch = first(dataset, split)
        outputs = _outputs(module, batch, name, refuse)
        _check_trained(module, name, refuse)
        for found, head in _by_head(outputs, dataset.heads, name, refuse):
            _check_output(found, head, len(batch), name, refuse)
            if dataset.loss:
                dataset.loss.tried(found.float(), batch.targets[head.name])
                dataset.loss.divide(found.float(), _trial_targets(dataset, head))
    _check_saved(before, _saved(module), name, refuse)
    unstorable.check(module, name, refuse)


def _trial_targets(dataset: Dataset, head: Head) -> Tensor:
    """Targets to try a loss with, as unlike as can be: all classes, or samples from all over the data."""
    if head.classes and not head.several:
        return torch.arange(len(head.classes))
    split = dataset.train
    # An iterable is read from its beginning.
    count = min(len(split), TRIED) if isinstance(split, StreamSplit) else len(split)
    ids = np.linspace(0, count - 1, TRIED).astype(np.int64)
    if isinstance(split, ArraySplit):  # values that the loss may leave out are the largest, the smallest, or NaN
        flat = split.targets[head.name].flatten(1)
        ids = np.append(ids, [int(flat.amin(dim=1).argmin()), int(flat.amax(dim=1).argmax())])
    return next(fetch(split, [np.unique(ids)])).targets[head.name]


def _outputs(module: nn.Module, batch: Batch, name: str, refuse: Refuse) -> Any:
    given = f"{name}, called with inputs of shape {', '.join(str(tuple(x.shape)) for x in batch.inputs)}, raised"
    with blamed(lambda told, do: refuse(f"{given} {told}", "", do)):
        return module(*batch.inputs)


def _check_trained(module: nn.Module, name: str, refuse: Refuse) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        raise refuse(
            f"{name} has no trainable parameter",
            "parameters that need a gradient",
            "assign layers to self in __init__, and leave requires_grad of some of them on",
        )
    for where, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise refuse(
                f"{name}: {where} has sparse=True, and so sparse gradients",
                "dense gradients, whose norm is measured and which all processes and optimizers can share",
                f"leave out sparse=True where {where} is made",
            )


def _saved(module: nn.Module) -> dict[str, tuple[int, ...] | None]:
    """Shapes of all entries of the state dict; None for lazy parameters that are not initialized yet."""
    return {
        name: None if is_lazy(value) else tuple(value.shape)
        for name, value in module.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor)
    }


def _check_saved(
    before: Mapping[str, tuple[int, ...] | None], after: Mapping[str, tuple[int, ...] | None], name: str, refuse: Refuse
) -> None:
    """Check that a forward pass leaves the state dict's keys and shapes alone.

    A resumed run and `predict` build the network anew and load the saved weights into it, so the two must match.
    """
    for key in {**before, **after}:
        if (key not in before or before[key] is not None) and before.get(key) != after.get(key):
            found = f"of shape {after[key]}" if key in after else "gone"
            was = f"was of shape {before[key]}" if key in before else "was not there"
            raise refuse(
                f"{name}: {key} is {found} after a forward pass and {was} before",
                "parameters and buffers created in __init__, or by a lazy module",
                "create it in __init__; use register_buffer(..., persistent=False) for what no checkpoint needs",
            )


def _by_head(outputs: object, heads: Mapping[str, Head], name: str, refuse: Refuse) -> list[tuple[Any, Head]]:
    if list(heads) == [""]:
        return [(outputs, heads[""])]
    if not isinstance(outputs, Mapping) or set(outputs) != set(heads):
        given = f"a mapping of {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else described(outputs)
        raise refuse(
            f"{name} gives {given}", f"a mapping of {', '.join(heads)} to (N, outputs)", "return such a mapping"
        )
    return [(outputs[head], heads[head]) for head in heads]


def _check_output(found: object, head: Head, size: int, name: str, refuse: Refuse) -> None:
    to = f" for {head.name}" if head.name else ""
    possible = (
        f"(N, {head.outputs}), here ({size}, {head.outputs})" if head.outputs else f"one row for each of {size} samples"
    )
    if not isinstance(found, Tensor):
        raise refuse(f"{name} gives {described(found)}{to}", f"a tensor of shape {possible}", "return one tensor")
    if tuple(found.shape) != (size, head.outputs) if head.outputs else found.shape[:1] != (size,):
        raise refuse(
            f"{name} gives shape {tuple(found.shape)}{to} for {size} samples",
            possible,
            "change the last layer, or the targets that the data defines",
        )
    if not found.is_floating_point() or not found.requires_grad:
        kind = str(found.dtype).removeprefix("torch.")
        raise refuse(
            f"{name} gives {kind} numbers{to} without a gradient",
            "outputs of trained layers",
            "leave out detach(), argmax() and torch.no_grad()",
        )
