"""Runs a network on a few samples to find mismatches and requirements before the first training step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune

from drivetrain.data.custom.iterables import StreamSplit
from drivetrain.data.custom.map_dataset import ArraySplit, describe
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.custom.user_loss import Refuse
from drivetrain.data.dataset import Batch, Dataset, Head, Split, Targets
from drivetrain.data.loader.batches import fetch, fetch_in_order
from drivetrain.models.buffers import Buffers
from drivetrain.models.frozen_split import evaluating

TRIAL_SAMPLES = 16
"""Number of samples whose targets are used to try a loss, if the targets are not classes."""

CPU = torch.device("cpu")


def take_first_batch(dataset: Dataset, split: Split, device: torch.device = CPU) -> Batch:
    """Take a batch of the first two samples of a split, preprocessed on `device`."""
    batch = next(fetch_in_order(split, 2)).to(device)
    return Batch(batch.ids, dataset.prepare(batch.inputs, batch.ids, None), batch.targets)


def find_wrapper(module: nn.Module) -> str | None:
    """Find the class name of the first multi-GPU wrapper (DataParallel, DDP, FSDP) in the network; None if there is none."""
    for layer in module.modules():
        name = type(layer).__name__
        is_wrapper = isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel)
        if is_wrapper or name.startswith(("FullyShardedDataParallel", "FSDP")):
            return name
    return None


def check_network(
    module: nn.Module,
    dataset: Dataset,
    name: str,
    refuse: Refuse,
    check_metrics: Callable[[Any, Targets], None] | None = None,
) -> None:
    """Pass samples of both splits through the network and the user's loss, if there is one.

    Args:
        module: network; afterwards it is in evaluation mode, with lazy parameters initialized.
        dataset: dataset that provides the samples.
        name: name of the network, for error messages.
        refuse: function that makes the error.
        check_metrics: function that gets the outputs and targets of a batch.

    Raises:
        SpecError: if network, data and loss do not fit together.
    """
    module.eval()
    first_shapes = _list_shapes(module)
    for split in (dataset.train, dataset.validation):
        batch = take_first_batch(dataset, split)
        outputs = _run_network(module, batch, name, refuse)
        _check_trainable(module, name, refuse)
        for output, head in _pair_with_heads(outputs, dataset.heads, name, refuse):
            _check_output(output, head, len(batch), name, refuse)
            if dataset.loss:
                dataset.loss.check_call(output.float(), batch.targets[head.name])
                dataset.loss.divide(output.float(), _gather_trial_targets(dataset, head))
        if check_metrics:
            check_metrics(outputs, batch.targets)
    _check_same_shapes(first_shapes, _list_shapes(module), name, refuse)
    check_storable(module, name, refuse)


def _gather_trial_targets(dataset: Dataset, head: Head) -> Tensor:
    """Gather different targets to try a loss with: all classes, or targets of samples from all over the data."""
    if head.classes and not head.several:
        return torch.arange(len(head.classes))
    split = dataset.train
    # Only the beginning of an iterable is read.
    count = min(len(split), TRIAL_SAMPLES) if isinstance(split, StreamSplit) else len(split)
    ids = np.linspace(0, count - 1, TRIAL_SAMPLES).astype(np.int64)
    if isinstance(split, ArraySplit):
        # A value that the loss ignores is probably the largest, the smallest, or NaN.
        flat = split.targets[head.name].reshape(len(split), -1).float()
        ids = np.append(ids, [int(flat.amin(dim=1).argmin()), int(flat.amax(dim=1).argmax())])
    return next(fetch(split, [np.unique(ids)])).targets[head.name]


def _run_network(module: nn.Module, batch: Batch, name: str, refuse: Refuse) -> Any:
    call = f"{name}, called with inputs of shape {', '.join(str(tuple(x.shape)) for x in batch.inputs)}, raised"
    kinds = (p.dtype for p in module.parameters() if p.is_floating_point() and p.dtype != torch.float32)
    possible, action = "", None
    kind = next(kinds, None)
    if kind:
        possible = f"float32 weights, as the data; here they are {str(kind).removeprefix('torch.')}"
        action = "call .float() on it" + ("; drivetrain.prepare keeps float64" if kind == torch.float64 else "")
    with blame_user_code(refuse, call, possible, action):
        return module(*batch.inputs)


def _check_trainable(module: nn.Module, name: str, refuse: Refuse) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        raise refuse(
            f"{name} has no trainable parameter",
            "parameters that need a gradient",
            "assign layers to self in __init__, and leave requires_grad of some of them on",
        )
    check_dense_gradients(module, name, refuse)


def check_dense_gradients(module: nn.Module, name: str, refuse: Refuse) -> None:
    """Refuse layers with sparse gradients."""
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise refuse(
                f"{name}: {path} has sparse=True, and therefore sparse gradients",
                "dense gradients, whose norm is measured and which all processes and optimizers can share",
                f"remove sparse=True where {path} is made; drivetrain.prepare accepts sparse gradients",
            )


def _list_shapes(module: nn.Module) -> dict[str, tuple[int, ...] | None]:
    """List the shapes of all entries of the state dict; None for lazy parameters that are not initialized yet."""
    return {
        name: None if is_lazy(value) else tuple(value.shape)
        for name, value in module.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor)
    }


def _check_same_shapes(
    earlier: Mapping[str, tuple[int, ...] | None],
    later: Mapping[str, tuple[int, ...] | None],
    name: str,
    refuse: Refuse,
) -> None:
    """Check that a forward pass does not change the keys and shapes of the state dict.

    A resumed run and `predict` build the network again and load the saved weights into it, so both must match.
    """
    for key in {**earlier, **later}:
        is_lazy_parameter = key in earlier and earlier[key] is None
        if not is_lazy_parameter and earlier.get(key) != later.get(key):
            later_state = f"of shape {later[key]}" if key in later else "missing"
            earlier_state = f"of shape {earlier[key]}" if key in earlier else "missing"
            raise refuse(
                f"{name}: {key} is {later_state} after a forward pass and was {earlier_state} before",
                "parameters and buffers created in __init__, or by a lazy module",
                "create it in __init__; use register_buffer(..., persistent=False) if no checkpoint needs it",
            )


def _pair_with_heads(outputs: object, heads: Mapping[str, Head], name: str, refuse: Refuse) -> list[tuple[Any, Head]]:
    if list(heads) == [""]:
        return [(outputs, heads[""])]
    if not isinstance(outputs, Mapping) or set(outputs) != set(heads):
        kind = f"a mapping of {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else describe(outputs)
        raise refuse(
            f"{name} gives {kind}", f"a mapping of {', '.join(heads)} to (N, outputs)", "return such a mapping"
        )
    return [(outputs[head], heads[head]) for head in heads]


OTHER_TARGETS = 'targets: other (in Python targets="other") and your own loss, which splits them'


def _suggest_shape(output: Tensor, head: Head, size: int) -> str:
    """Suggest how to get outputs of the right shape, for a network whose outputs have another shape."""
    if not head.outputs:
        return (
            "give the first axis a row for each sample, such as outputs[None]; drivetrain.prepare accepts any outputs"
        )
    if head.outputs == 1 and output.shape == (size,):
        return "remove squeeze(-1) from the network; its loss gets targets in the shape that fits, (N,) or (N, 1)"
    if head.kind == "classes" and len(head.classes) == 2 and output.numel() == size:
        return (
            "return two numbers; for one, give the targets as floats 0.0 and 1.0, with a loss such as BCEWithLogitsLoss"
        )
    return f"change the last layer, or the targets that the data defines; for other outputs, {OTHER_TARGETS}"


def _check_output(output: object, head: Head, size: int, name: str, refuse: Refuse) -> None:
    for_head = f" for {head.name}" if head.name else ""
    count = head.outputs
    possible = f"(N, {count}), here ({size}, {count})" if count else f"one row for each of {size} samples"
    if not isinstance(output, Tensor):
        own_loss = OTHER_TARGETS if head.outputs else "a loss that splits them; drivetrain.prepare accepts any outputs"
        raise refuse(
            f"{name} gives {describe(output)}{for_head}",
            f"a tensor of shape {possible}",
            f"return one tensor; several of them as torch.cat([a, b], dim=1), with {own_loss}",
        )
    if tuple(output.shape) != (size, head.outputs) if head.outputs else output.shape[:1] != (size,):
        raise refuse(
            f"{name} gives shape {tuple(output.shape)}{for_head} for {size} samples",
            possible,
            _suggest_shape(output, head, size),
        )
    if not output.is_floating_point() or not output.requires_grad:
        kind = str(output.dtype).removeprefix("torch.")
        raise refuse(
            f"{name} gives {kind} numbers{for_head} without a gradient",
            "outputs of trained layers",
            "remove detach(), argmax() and torch.no_grad()",
        )


_OLD_NORMS = {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}
"""Functions of torch.nn.utils whose hooks store the computed weight as an attribute, by class name of the hook."""


def check_storable(module: nn.Module, name: str, refuse: Refuse) -> None:
    """Check after a forward pass that a network can be copied, optimized and saved.

    Raises:
        SpecError: if one of these is not possible.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise refuse(
            f"{name} is a {type(module).__name__} of torch.jit, whose weights no optimizer here can update",
            "a network in Python",
            "return the module itself; optimize.compile compiles it",
        )
    for key, value in module.state_dict(keep_vars=True).items():
        _check_value(key, value, name, refuse)
    for path, layer in module.named_modules():
        _check_attributes(path, layer, name, refuse)
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    with blame_user_code(refuse, f"{name} cannot be copied: copy.deepcopy raised"):
        copy.deepcopy(module, dict(tensors))  # shares the weights, so it takes no memory


def _check_value(key: str, value: object, name: str, refuse: Refuse) -> None:
    """Check an entry of the state dict."""
    if not isinstance(value, Tensor):
        layer = key.removesuffix("_extra_state").rstrip(".") or "itself"
        raise refuse(
            f"{name}: get_extra_state() of {layer} gives {describe(value)}",
            "tensors in the state of every layer: checkpoints hold nothing else",
            "keep it in a buffer: self.register_buffer(NAME, torch.tensor(VALUE))",
        )
    if value.is_complex():
        raise refuse(
            f"{name}: {key} has complex numbers",
            "real parameters and buffers",
            "keep real and imaginary part, (..., 2), and compute with torch.view_as_complex",
        )
    if value.layout != torch.strided or value.is_quantized:
        kind = "quantized" if value.is_quantized else str(value.layout).removeprefix("torch.")
        raise refuse(f"{name}: {key} is {kind}", "dense tensors", "train the dense network, and convert it afterwards")


def _check_attributes(path: str, layer: nn.Module, name: str, refuse: Refuse) -> None:
    """Check that a layer does not keep a tensor whose graph would be copied with it."""
    for key, value in vars(layer).items():
        if not isinstance(value, Tensor) or value.is_leaf:
            continue
        attribute = f"{path}.{key}" if path else key
        hook_names = [type(hook).__name__ for hook in layer._forward_pre_hooks.values()]
        function = next((_OLD_NORMS[hook_name] for hook_name in hook_names if hook_name in _OLD_NORMS), None)
        if function:
            raise refuse(
                f"{name}: {attribute} is kept by torch.nn.utils.{function}, which torch can neither copy nor load",
                "the parametrization of the same name",
                f"use torch.nn.utils.parametrizations.{function}",
            )
        if any(isinstance(hook, prune.BasePruningMethod) for hook in layer._forward_pre_hooks.values()):
            raise refuse(
                f"{name}: {attribute} is computed by torch.nn.utils.prune, and torch cannot copy it",
                "weights that are parameters; or torch.nn.utils.parametrize, with the mask in a parametrization",
                f"prune.remove(model.get_submodule({path!r}), {key!r}) ends the pruning; drivetrain.prepare continues it",
            )
        raise refuse(
            f"{name}: {attribute} is a tensor of the last forward pass, whose graph cannot be copied",
            "attributes without a graph",
            f"keep self.{key} = VALUE.detach(), or do not keep it",
        )


_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def needs_two_samples(model: nn.Module, evaluated: Sequence[nn.Module], dataset: Dataset, device: torch.device) -> bool:
    """Return whether a forward pass in training mode fails with one sample but not with two; the network is unchanged.

    The last batch of an epoch can be a single sample. BatchNorm cannot normalize it if it has one value per channel:
    torch refuses to compute a variance of one number.

    Args:
        model: network on `device`.
        evaluated: modules that stay in evaluation mode because they are frozen.
        dataset: dataset that provides two samples.
        device: device of the computation.
    """
    if len(dataset.train) < 2 or not any(isinstance(module, _NORMS) for module in model.modules()):
        return False
    batch = take_first_batch(dataset, dataset.train, device)
    # `evaluating` restores the modes at its end.
    with evaluating(model), Buffers(model).keep_unchanged(), torch.random.fork_rng(), torch.no_grad():
        model.train()
        for module in evaluated:
            module.eval()
        return not _accepts(model, batch.between(0, 1)) and _accepts(model, batch)


def _accepts(model: nn.Module, batch: Batch) -> bool:
    try:
        model(*batch.inputs)
    except Exception:  # a network may raise anything; the first step will raise and explain it
        return False
    return True
