"""Determines the properties of a network and its data on which decisions depend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from drivetrain.data.dataset import Dataset, Inputs
from drivetrain.job.workload import CACHE_PAYS, Workload
from drivetrain.models import dry_run, feature_cache, forward, packed_attention, recompute, strided_convolution
from drivetrain.models.frozen_split import MAX_SPLIT_DIFFERENCE, CacheSaving, evaluating, tensors
from drivetrain.models.unfreezing import Unfreezing

ALL_ALONG = Unfreezing()
"""What is frozen stays frozen."""


def inspect_network(model: nn.Module) -> Workload:
    """Properties of a network whose data is not known."""
    kinds: dict[str, int] = {}
    for module in model.modules():
        if not list(module.children()) or "Attention" in type(module).__name__:
            kinds[type(module).__name__] = kinds.get(type(module).__name__, 0) + 1
    parameters = sum(p.numel() for p in model.parameters())
    embedded = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Embedding))
    return Workload(
        layers=kinds,
        parameters=parameters,
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        blocks=len(recompute.find_repeated_blocks(model)),
        token_work=6.0 * max(0, parameters - embedded),
    )


def inspect_workload(dataset: Dataset, model: nn.Module, unfreezing: Unfreezing = ALL_ALONG) -> Workload:
    """Properties of model and data that decisions depend on.

    The frozen prefix is that of the first epoch; its bytes are enough for those of all epochs. Trainable are the
    parameters that are trained at any time.
    """
    inputs = dataset.train.gather(torch.arange(1).numpy())
    with unfreezing.during(model, unfreezing.last):
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    saving = feature_cache.saving(dataset, model)
    later = list[CacheSaving]()
    for epoch in unfreezing.epochs if saving else ():
        with unfreezing.during(model, epoch):
            saving_unfrozen = feature_cache.saving(dataset, model)
        later += [saving_unfrozen] if saving_unfrozen and saving_unfrozen.work >= CACHE_PAYS else []
    return replace(
        inspect_network(model),
        trainable=trainable,
        sample_bytes=sum(x[0].numel() * x.element_size() for x in inputs),
        samples=len(dataset.train) + len(dataset.validation),
        decoded=dataset.decoded,
        indivisible=dataset.loss.division.obstacle if dataset.loss else "",
        ragged=hasattr(dataset.train, "lengths"),
        tokens=float(np.mean(getattr(dataset.train, "lengths", 0.0))),
        padding=dataset.facts.get("padding", {}).get("longest", 0.0),
        numeric=any(not head.classes for head in dataset.heads.values()),
        layout_obstacle=layout_obstacle(model, dataset),
        token_bytes=token_bytes(model),
        prefix=saving.name if saving else "",
        prefix_ragged=saving.ragged if saving else False,
        prefix_bytes=max(feature_cache.total(dataset, saving_later) for saving_later in (saving, *later))
        if saving
        else 0,
        prefix_share=saving.share if saving else 0.0,
        prefix_work=saving.work if saving else 0.0,
    )


def layout_obstacle(model: nn.Module, dataset: Dataset) -> str:
    """Why a forward and backward pass of two samples fails in channels_last layout alone.

    Empty if it does not, or if no layer of the user's own could make it fail. Weights, buffers, gradients and generators stay as they are.
    """
    layers = list(model.modules())
    if not any(isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) for layer in layers):
        return ""
    # Those of the libraries are run in both layouts by tests. `x.view(x.size(0), -1)`, as in many tutorials, fails in
    # one of them: the numbers of a sample do not lie one after another.
    if not forward.has_own_layers(model):
        return ""
    inputs = dry_run.first(dataset, dataset.train).inputs
    if all(x.ndim != 4 for x in inputs):
        return ""
    with torch.random.fork_rng(), torch.enable_grad(), strided_convolution.rewritten_for_block(model):
        problem = _layout_problem(model, inputs, torch.channels_last)
        return problem if problem and not _layout_problem(model, inputs, torch.contiguous_format) else ""


def _layout_problem(model: nn.Module, inputs: Inputs, layout: torch.memory_format) -> str:
    """What a pass over copies in this layout raised; empty if nothing."""

    def copy_to_layout(tensor: Tensor) -> Tensor:
        values = tensor.detach().clone()
        return values.to(memory_format=layout) if values.ndim == 4 else values

    state = {name: copy_to_layout(p).requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
    state |= {name: copy_to_layout(buffer) for name, buffer in model.named_buffers()}
    try:
        outputs: Any = torch.func.functional_call(model, state, tuple(map(copy_to_layout, inputs)))
        floats = [x.float().sum() for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
        torch.stack(floats).sum().backward()  # type: ignore[no-untyped-call]
    # A network may raise anything, and the pass in the usual layout explains what is no matter of layout.
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


MAX_DIFFERENCE = 0.05
"""Largest difference between outputs in a short number format."""


def token_bytes(network: Any) -> int:
    """Bytes per packed token that are saved for the backward pass; 0 if a trial shows that packing is not possible.

    Args:
        network: takes ids and mask, both (N, tokens), and has a `packed` method with the same signature.
    """
    config: Any = getattr(getattr(network, "encoder", None), "config", None)
    if getattr(config, "model_type", None) not in packed_attention.PACKABLE_ENCODERS or getattr(
        config, "is_decoder", False
    ):
        return 0
    if network not in _tried:
        _tried[network] = _trial(network, config)
    return _tried[network]


_tried: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Results by network: a trial of a large encoder takes a third of a second, and several callers ask."""


def _trial(network: Any, config: Any) -> int:
    device = next(network.parameters()).device
    ids, mask = _texts(config, device)
    with evaluating(network), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            return _count_kept_bytes(network, ids, mask) if _alike(network, ids, mask) else 0
        except Exception:  # a third-party network can raise anything here; padded, it still trains
            return 0


def packing_obstacle(network: Any, dtype: torch.dtype | None) -> str:
    """Why packed texts cannot be trained on where the network is, under autocast to `dtype`; empty if they can."""
    weights = [p for p in network.parameters() if p.requires_grad]
    device = weights[0].device
    ids, mask = _texts(network.encoder.config, device)
    cast = torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)
    with evaluating(network), torch.enable_grad():
        try:
            with cast:
                padded, packed = (torch.cat(tensors(call(ids, mask)), dim=1) for call in (network, network.packed))
            gradients = torch.autograd.grad(packed.float().sum(), weights, allow_unused=True)
        except RuntimeError as error:
            return f"{str(error).splitlines()[0][:160]} ({device.type})"
    same = torch.allclose(padded.float(), packed.float(), rtol=MAX_DIFFERENCE, atol=MAX_DIFFERENCE)
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)
    return "" if same and finite else "the outputs differ from those of padded texts"


def _texts(config: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask of two texts of different lengths."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], device=device)
    real_ids = [number for number in range(config.vocab_size) if number != config.pad_token_id][: mask.numel()]
    return torch.tensor(real_ids, device=device).view_as(mask).where(mask > 0, config.pad_token_id or 0), mask


@torch.no_grad()
def _alike(network: Any, ids: Tensor, mask: Tensor) -> bool:
    pairs = zip(*(tensors(call(ids, mask)) for call in (network, network.packed)), strict=True)
    return all(
        float((one - two).abs().max()) <= MAX_SPLIT_DIFFERENCE * max(1.0, float(one.abs().max())) for one, two in pairs
    )


def _count_kept_bytes(network: Any, ids: Tensor, mask: Tensor) -> int:
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
