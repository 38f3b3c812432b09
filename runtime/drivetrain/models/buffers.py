"""Saves and restores buffers, the tensors that a forward pass changes by itself, such as BatchNorm's statistics.

A network may change a buffer in place or assign another tensor to its name, so buffers are looked up by module and name
each time.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from drivetrain.errors import SpecError


class Buffers:
    """The buffers of a network, with their last remembered content."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.held: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        """For each module with buffers: the tensor objects by name."""
        self.tensors: list[Tensor] = []
        """The distinct non-empty tensors among them."""
        self.before: list[Tensor] = []
        """Copies of `tensors`."""

    @functools.cached_property
    def modules(self) -> list[nn.Module]:
        """All modules at the first step, cached: walking the module tree takes ten times as long as reading the
        buffers.
        """
        return list(self.model.modules())

    @functools.cached_property
    def saved(self) -> dict[str, tuple[int, ...]]:
        """Shapes of persistent buffers at the first step, by name."""
        return _list_shapes(self.model)

    def now(self) -> list[Tensor]:
        """The non-empty buffers, each once."""
        buffers = [b for module in self.modules for b in module._buffers.values() if b is not None and b.numel()]
        return list({id(b): b for b in buffers}.values())

    @torch.no_grad()
    def remember(self) -> None:
        """Remember tensors and content of all buffers.

        Raises:
            SpecError: if a persistent buffer has appeared, disappeared or changed its shape since the network was
                built.
        """
        self.held = [(module, dict(module._buffers)) for module in self.modules if module._buffers]
        buffers, shapes = self.now(), self.saved
        if [id(b) for b in buffers] != [id(b) for b in self.tensors] or not _alike(buffers, self.before):
            self._check(shapes)
            self.tensors, self.before = buffers, [b.clone() for b in buffers]
        else:
            _copy(self.before, buffers)

    def _check(self, before: Mapping[str, tuple[int, ...]]) -> None:
        now = _list_shapes(self.model)
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                was, become = (f"of shape {s[name]}" if name in s else "not there" for s in (before, now))
                raise SpecError(
                    f"the buffer {name} of the network was {was} before the first step and is {become} now",
                    "buffers that keep their names and shapes, so that a checkpoint can be resumed",
                    "register it in __init__ with its final shape, or with persistent=False if no checkpoint needs it",
                )

    @torch.no_grad()
    def rewind(self) -> None:
        """Restore the remembered state: the same tensor objects under the same names, with the same content."""
        for module, buffers in self.held:
            module._buffers.clear()
            module._buffers.update(buffers)
        for tensor, before in zip(self.tensors, self.before, strict=True):
            if tensor.shape != before.shape:
                tensor.resize_(before.shape)
        # A tensor whose elements share memory cannot have been changed in place, only replaced.
        filled = [pair for pair in zip(self.tensors, self.before, strict=True) if not _shares(pair[0])]
        _copy([tensor for tensor, _ in filled], [before for _, before in filled])

    @torch.no_grad()
    def remember_content(self) -> None:
        """Remember the content of buffers that `are_in_place`."""
        _copy(self.before, self.tensors)

    def are_in_place(self) -> bool:
        """Whether the buffers are still the remembered tensors, with their shapes: then only their content differs."""
        buffers = self.now()
        return (
            [id(b) for b in buffers] == [id(b) for b in self.tensors]
            and _alike(buffers, self.before)
            and not any(map(_shares, buffers))
        )

    @torch.no_grad()
    def keep_if(self, keep: Tensor) -> None:
        """Restore the remembered content unless `keep`, a boolean tensor of shape () that the host does not read.

        The buffers must be `are_in_place`.
        """
        for dtype in dict.fromkeys(tensor.dtype for tensor in self.tensors):
            now = [tensor for tensor in self.tensors if tensor.dtype == dtype]
            before = [tensor for tensor in self.before if tensor.dtype == dtype]
            # One kernel for all tensors of a dtype instead of one for each.
            flat, old = (torch.cat([tensor.flatten() for tensor in group]) for group in (now, before))
            parts = torch.split(torch.where(keep, flat, old), [tensor.numel() for tensor in now])
            torch._foreach_copy_(now, [part.view(tensor.shape) for part, tensor in zip(parts, now, strict=True)])

    @contextlib.contextmanager
    def keep_unchanged(self) -> Iterator[None]:
        """Restore the buffers at the end of the `with` block, also after an exception."""
        self.remember()
        try:
            yield
        finally:
            self.rewind()


def unshare(model: nn.Module) -> None:
    """Replace buffers whose elements share memory, as `expand` creates them, by contiguous copies, in place.

    Otherwise neither a checkpoint nor a broadcast could fill them.
    """
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not is_lazy(buffer) and _shares(buffer):
                module._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source onto its target, with one GPU kernel for each dtype: torch copies mixed lists one by one."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in targets):
        pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].dtype == dtype]
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])


def _shares(tensor: Tensor) -> bool:
    """Whether elements of a tensor share memory."""
    return tensor.layout == torch.strided and any(
        size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _alike(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether one list of tensors can be copied onto the other."""
    return all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device for a, b in zip(first, second, strict=True)
    )


def _list_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of the persistent buffers, by name."""
    state = model.state_dict(keep_vars=True)
    return {name: tuple(b.shape) for name, b in model.named_buffers(remove_duplicate=False) if name in state}
