"""Determines the properties of a network and its data that decisions depend on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from drivetrain.data.custom.iterables import StreamSplit
from drivetrain.data.dataset import ChangesByEpoch, Dataset, Inputs
from drivetrain.job.workload import MIN_CACHED_FLOP_PER_BYTE, Workload
from drivetrain.models import dry_run, feature_cache, forward, packed_attention, recompute, strided_convolution
from drivetrain.models.freeze import Unfreezing
from drivetrain.models.frozen_split import CacheSaving, evaluating, give_same_outputs, list_outputs

NO_UNFREEZING = Unfreezing()
"""An unfreezing that keeps all frozen parameters frozen."""


def inspect_network(model: nn.Module) -> Workload:
    """Determine the properties of a network without data."""
    # Attention modules count although they have submodules.
    modules = [m for m in model.modules() if not list(m.children()) or "Attention" in type(m).__name__]
    parameters = sum(p.numel() for p in model.parameters())
    embedded = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Embedding))
    return Workload(
        layers=dict(Counter(type(module).__name__ for module in modules)),
        parameters=parameters,
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        blocks=len(recompute.find_repeated_blocks(model)),
        token_work=6.0 * max(0, parameters - embedded),
    )


def inspect_workload(dataset: Dataset, model: nn.Module, unfreezing: Unfreezing = NO_UNFREEZING) -> Workload:
    """Determine the properties of network and data that decisions depend on.

    The frozen prefix is the prefix of the first epoch; its bytes are the largest of all epochs. Parameters that are
    trained in any epoch count as trainable.
    """
    inputs = dataset.train.gather(torch.arange(1).numpy())
    with unfreezing.during(model, unfreezing.last):
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    saving = feature_cache.measure_saving(dataset, model)
    savings: list[CacheSaving] = [saving] if saving else []
    for epoch in unfreezing.epochs if saving else ():
        with unfreezing.during(model, epoch):
            later_saving = feature_cache.measure_saving(dataset, model)
        if later_saving and later_saving.work >= MIN_CACHED_FLOP_PER_BYTE:
            savings.append(later_saving)
    return replace(
        inspect_network(model),
        trainable=trainable,
        sample_bytes=sum(x[0].numel() * x.element_size() for x in inputs),
        samples=len(dataset.train) + len(dataset.validation),
        decoded=dataset.decoded,
        varies=isinstance(dataset.train, ChangesByEpoch),
        streams=isinstance(dataset.train, StreamSplit),
        indivisible=dataset.loss.division.obstacle if dataset.loss else "",
        ragged=hasattr(dataset.train, "lengths"),
        tokens=float(np.mean(getattr(dataset.train, "lengths", 0.0))),
        padding=dataset.facts.get("padding", {}).get("longest", 0.0),
        numeric=any(not head.classes for head in dataset.heads.values()),
        layout_obstacle=find_layout_obstacle(model, dataset),
        token_bytes=measure_token_bytes(model),
        prefix=saving.name if saving else "",
        prefix_ragged=saving.ragged if saving else False,
        prefix_bytes=max((feature_cache.count_bytes(dataset, measured) for measured in savings), default=0),
        prefix_share=saving.share if saving else 0.0,
        prefix_work=saving.work if saving else 0.0,
    )


def find_layout_obstacle(model: nn.Module, dataset: Dataset) -> str:
    """Find the error of a forward and backward pass of two samples that fails only in channels_last layout.

    It is empty if the pass does not fail, or if the network has no layer of the user. Weights, buffers, gradients and
    random generators are unchanged.
    """
    layers = list(model.modules())
    if not any(isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) for layer in layers):
        return ""
    # Tests run the libraries' layers in both layouts. In channels_last the values of a sample are not in the order of
    # its axes, so `x.view(x.size(0), -1)`, as in many tutorials, fails.
    if not forward.has_own_layers(model):
        return ""
    inputs = dry_run.take_first_batch(dataset, dataset.train).inputs
    if all(x.ndim != 4 for x in inputs):
        return ""
    with torch.random.fork_rng(), torch.enable_grad(), strided_convolution.rewriting(model):
        problem = _try_layout(model, inputs, torch.channels_last)
        return problem if problem and not _try_layout(model, inputs, torch.contiguous_format) else ""


def _try_layout(model: nn.Module, inputs: Inputs, layout: torch.memory_format) -> str:
    """Run a pass with copies in this layout; returns its error, empty if there is none."""

    def copy_to_layout(tensor: Tensor) -> Tensor:
        values = tensor.detach().clone()
        return values.to(memory_format=layout) if values.ndim == 4 else values

    state = {name: copy_to_layout(p).requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
    state |= {name: copy_to_layout(buffer) for name, buffer in model.named_buffers()}
    try:
        outputs: Any = torch.func.functional_call(model, state, tuple(map(copy_to_layout, inputs)))
        floats = [x.float().sum() for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
        torch.stack(floats).sum().backward()  # type: ignore[no-untyped-call]
    # A network may raise anything; the caller compares with the pass in the usual layout.
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


MAX_DIFFERENCE = 0.05
"""Largest allowed relative or absolute difference between outputs in a 16-bit number format."""


def measure_token_bytes(network: Any) -> int:
    """Measure the bytes that the backward pass needs per packed token; 0 if the texts cannot be packed.

    Args:
        network: network that takes ids and mask, both (N, tokens), and has a method `packed` with the same arguments.
    """
    config: Any = getattr(getattr(network, "encoder", None), "config", None)
    is_packable = getattr(config, "model_type", None) in packed_attention.PACKABLE_ENCODERS
    if not is_packable or getattr(config, "is_decoder", False):
        return 0
    if network not in _token_bytes_by_network:
        _token_bytes_by_network[network] = _try_packing(network, config)
    return _token_bytes_by_network[network]


_token_bytes_by_network: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Cached results, as a trial of a large encoder takes a third of a second, and there are several callers."""


def _try_packing(network: Any, config: Any) -> int:
    device = next(network.parameters()).device
    ids, mask = _make_texts(config, device)
    with evaluating(network), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            is_same = give_same_outputs(network, network.packed, (ids, mask))
            return _count_saved_bytes(network, ids, mask) if is_same else 0
        except Exception:  # a third-party network can raise anything here; it can be trained with padding
            return 0


def find_packing_obstacle(network: Any, dtype: torch.dtype | None) -> str:
    """Find the reason why packed texts cannot be trained on this device with autocast to `dtype`; empty if they can."""
    weights = [p for p in network.parameters() if p.requires_grad]
    device = weights[0].device
    ids, mask = _make_texts(network.encoder.config, device)
    cast = torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)
    with evaluating(network), torch.enable_grad():
        try:
            with cast:
                padded, packed = (torch.cat(list_outputs(call(ids, mask)), dim=1) for call in (network, network.packed))
            gradients = torch.autograd.grad(packed.float().sum(), weights, allow_unused=True)
        except RuntimeError as error:
            return f"{str(error).splitlines()[0][:160]} ({device.type})"
    is_same = torch.allclose(padded.float(), packed.float(), rtol=MAX_DIFFERENCE, atol=MAX_DIFFERENCE)
    is_finite = all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)
    return "" if is_same and is_finite else "the outputs differ from the outputs of padded texts"


def _make_texts(config: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Make ids and mask of two texts of different lengths."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], device=device)
    real_ids = [number for number in range(config.vocab_size) if number != config.pad_token_id][: mask.numel()]
    return torch.tensor(real_ids, device=device).view_as(mask).where(mask > 0, config.pad_token_id or 0), mask


def _count_saved_bytes(network: Any, ids: Tensor, mask: Tensor) -> int:
    """Count the bytes of tensors, except weights and buffers, that a forward pass saves per packed token."""
    storages: dict[int, Tensor] = {}
    network_storages = {x.untyped_storage()._cdata for x in (*network.parameters(), *network.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in network_storages:
            storages[tensor.untyped_storage()._cdata] = tensor.detach()
        return tensor

    network.train()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.packed(ids, mask)
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values()) // packed_attention.lay_out(mask).size
