"""Finds operations that combine outputs (N, 1) with targets (N,): torch pairs every sample with every other."""

from __future__ import annotations

import contextlib
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from drivetrain.data.custom.user_errors import list_user_frames

TRIAL_ROWS = 12
"""Smallest number of rows in a trial: losses on pairs, triplets and groups of four work with its multiples, too."""
_EXPANDING: frozenset[Any] = frozenset(
    [torch.broadcast_tensors, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss]
)
"""Functions that expand their arguments before they call an operation."""
SAME_SHAPE = (
    "outputs and targets of the same shape in every operation, such as (N, 1) and (N, 1)",
    "write targets.reshape(outputs.shape), or outputs.squeeze(-1), there; if all pairs are meant, write both dimensions, as in "
    "a[:, None] - b[None, :]",
)
"""Second and third part of the error for such an operation."""
Look = Callable[[Iterable[object]], None]


class _WatchFunctions(TorchFunctionMode):
    """Mode that passes the arguments of functions that expand them to `look`."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _EXPANDING:
            self.look((*args, *(kwargs or {}).values()))
        return func(*args, **(kwargs or {}))


class _WatchOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that passes the arguments of elementwise operations to `look`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If torch.compile may skip a mode, it imports the compiler, which takes seconds.
        return False

    def __init__(self, look: Look) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.look = look

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.pointwise in func.tags:
            self.look(args)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def watch_broadcasts(rows: int) -> Iterator[list[str]]:
    """List the broadcasts between samples inside the block; no other dimension should have the size `rows`."""
    broadcast_texts: list[str] = []
    depth = len(traceback.extract_stack()) - 2  # without this function and the function that enters the block

    def look(arguments: Iterable[object]) -> None:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        for longer, shorter in itertools.permutations(tensors, 2):
            if _pairs_samples(longer.shape, shorter.shape, rows) and not _are_same_values(longer, shorter):
                lines = list_user_frames(traceback.extract_stack()[depth:])[-1:]
                texts = [_format_shape(tensor.shape, rows) for tensor in (longer, shorter)]
                broadcast_texts.append(
                    "\n".join([f"combines {texts[0]} with {texts[1]}, every sample with every other", *lines])
                )
                return

    # The modes also see the cases that torch warns about, so its warnings are silenced.
    with warnings.catch_warnings(), _WatchFunctions(look), _WatchOperations(look):
        warnings.simplefilter("ignore")
        yield broadcast_texts


def _pairs_samples(longer: Sequence[int], shorter: Sequence[int], rows: int) -> bool:
    """Return whether the samples of a tensor meet a dimension of size 1 of another one, behind its samples."""
    added = len(longer) - len(shorter)
    return added > 0 and len(shorter) > 0 and longer[0] == shorter[0] == rows and longer[added] == 1


def _are_same_values(longer: Tensor, shorter: Tensor) -> bool:
    """Return whether a tensor meets itself, as in `a[:, None] - a`, which is intended."""
    return longer.numel() == shorter.numel() and longer.data_ptr() == shorter.data_ptr()


def _format_shape(shape: Sequence[int], rows: int) -> str:
    sizes = ["N" if size == rows else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def tile_rows(outputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield an example with its rows repeated, twice: with two numbers of rows that no other dimension has."""
    sizes = {*outputs.shape[1:], *targets.shape[1:]}
    counts = (count for count in itertools.count(TRIAL_ROWS, TRIAL_ROWS) if count not in sizes)
    for count in itertools.islice(counts, 2):
        rows = torch.arange(count) % len(outputs)
        yield outputs[rows], targets[rows]


def find_broadcast(call: Callable[[Tensor, Tensor], object], outputs: Tensor, targets: Tensor) -> str:
    """Describe a broadcast between samples in a function of (outputs, targets), with the user's line; else empty.

    Raises:
        Exception: any exception of the function for the first number of rows.
    """
    # A constant of the function may have as many elements as there are rows, but not twice.
    descriptions = []
    for rows in tile_rows(outputs, targets):
        with watch_broadcasts(len(rows[0])) as broadcast_texts:
            call(*rows)
        if not broadcast_texts:
            return ""
        descriptions.append(broadcast_texts[0])
    return descriptions[0]
