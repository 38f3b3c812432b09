"""Saves and restores buffers: tensors that a forward pass changes itself, such as BatchNorm's statistics.

A network may change a buffer in place or assign another tensor to its name: each access looks it up by module and name.
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
    """The buffers of a network, and copies of their last remembered content."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules_buffers: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        """Remembered tensor objects by name, for each module with buffers."""
        self.tensors: list[Tensor] = []
        """Distinct non-empty tensors of `modules_buffers`."""
        self.copies: list[Tensor] = []
        """Copies of `tensors`, with the remembered content."""

    @functools.cached_property
    def modules(self) -> list[nn.Module]:
        """All modules at the first step: walking the module tree takes ten times as long as reading the buffers."""
        return list(self.model.modules())

    @functools.cached_property
    def first_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of persistent buffers at the first step, by name."""
        return _list_shapes(self.model)

    def list_current(self) -> list[Tensor]:
        """List the network's current non-empty buffers, each once."""
        buffers = [b for module in self.modules for b in module._buffers.values() if b is not None and b.numel()]
        return list({id(b): b for b in buffers}.values())

    @torch.no_grad()
    def remember(self) -> None:
        """Remember tensors and content of all buffers.

        Raises:
            SpecError: if a persistent buffer has appeared, disappeared or changed its shape since the first step.
        """
        self.modules_buffers = [(module, dict(module._buffers)) for module in self.modules if module._buffers]
        # The first call notes the shapes of the first step.
        buffers, shapes = self.list_current(), self.first_shapes
        if [id(b) for b in buffers] != [id(b) for b in self.tensors] or not _have_same_layout(buffers, self.copies):
            self._check_shapes(shapes)
            self.tensors, self.copies = buffers, [b.clone() for b in buffers]
        else:
            _copy_tensors(self.copies, buffers)

    def _check_shapes(self, first_shapes: Mapping[str, tuple[int, ...]]) -> None:
        shapes = _list_shapes(self.model)
        for name in {**first_shapes, **shapes}:
            if first_shapes.get(name) != shapes.get(name):
                first_state, state = (f"of shape {s[name]}" if name in s else "missing" for s in (first_shapes, shapes))
                raise SpecError(
                    f"the buffer {name} of the network was {first_state} before the first step and is {state} now",
                    "buffers that keep their names and shapes, so that a checkpoint can be resumed",
                    "register it in __init__ with its final shape, or with persistent=False if no checkpoint needs it",
                )

    @torch.no_grad()
    def rewind(self) -> None:
        """Restore the remembered state: the same tensor objects with the same names and content."""
        for module, buffers in self.modules_buffers:
            module._buffers.clear()
            module._buffers.update(buffers)
        pairs = list(zip(self.tensors, self.copies, strict=True))
        for tensor, saved in pairs:
            if tensor.shape != saved.shape:
                tensor.resize_(saved.shape)
        # A tensor whose elements share memory cannot have been changed in place, only replaced.
        pairs = [pair for pair in pairs if not _has_shared_elements(pair[0])]
        _copy_tensors([tensor for tensor, _ in pairs], [saved for _, saved in pairs])

    @torch.no_grad()
    def remember_content(self) -> None:
        """Remember the content of the buffers, which must be `are_in_place`."""
        _copy_tensors(self.copies, self.tensors)

    def are_in_place(self) -> bool:
        """Return whether the buffers are still the remembered tensors with the same shapes: only content may differ."""
        buffers = self.list_current()
        return (
            [id(b) for b in buffers] == [id(b) for b in self.tensors]
            and _have_same_layout(buffers, self.copies)
            and not any(map(_has_shared_elements, buffers))
        )

    @torch.no_grad()
    def keep_if(self, keep: Tensor) -> None:
        """Restore the remembered content of the buffers, which must be `are_in_place`, if `keep` is false.

        Args:
            keep: a boolean tensor of shape (); the host does not read it, so it does not wait for a GPU.
        """
        for dtype in dict.fromkeys(tensor.dtype for tensor in self.tensors):
            current = [tensor for tensor in self.tensors if tensor.dtype == dtype]
            saved = [tensor for tensor in self.copies if tensor.dtype == dtype]
            # One kernel for all tensors of a dtype instead of one for each.
            flat, flat_saved = (torch.cat([tensor.flatten() for tensor in group]) for group in (current, saved))
            pieces = torch.split(torch.where(keep, flat, flat_saved), [tensor.numel() for tensor in current])
            torch._foreach_copy_(
                current, [piece.view_as(tensor) for piece, tensor in zip(pieces, current, strict=True)]
            )

    @contextlib.contextmanager
    def keep_unchanged(self) -> Iterator[None]:
        """Restore the buffers at the end of the `with` block, also after an exception."""
        self.remember()
        try:
            yield
        finally:
            self.rewind()


def unshare(model: nn.Module) -> None:
    """Replace buffers whose elements share memory, such as results of `expand`, by contiguous copies, in place.

    Neither a checkpoint nor a broadcast could fill the original buffers.
    """
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not is_lazy(buffer) and _has_shared_elements(buffer):
                module._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)


def _copy_tensors(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source onto its target, with one GPU kernel for each dtype: torch copies mixed lists one by one."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in targets):
        pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].dtype == dtype]
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])


def _has_shared_elements(tensor: Tensor) -> bool:
    """Return whether elements of a tensor share memory."""
    return tensor.layout == torch.strided and any(
        size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _have_same_layout(tensors: list[Tensor], copies: list[Tensor]) -> bool:
    """Return whether the tensors of two lists have pairwise the same shape, dtype and device."""
    return all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device for a, b in zip(tensors, copies, strict=True)
    )


def _list_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """List the shapes of the persistent buffers by name."""
    state = model.state_dict(keep_vars=True)
    return {name: tuple(b.shape) for name, b in model.named_buffers(remove_duplicate=False) if name in state}
