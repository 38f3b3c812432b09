"""Possible forms of a user's samples, for messages, and their separation into inputs and target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

# Possible forms of data, for messages.
FORMS = "a torch Dataset of (inputs, target), a TensorDataset, or a tuple of arrays of which the last holds the targets"
# Form of an item, for messages.
ITEM = "(inputs, target) or (input, input, target): tensors, arrays or numbers; inputs may be a tuple of them"
OWN_LOOP = "a loop of your own with drivetrain.prepare takes batches of any form"


def describe(value: Any) -> str:
    """Describe a value for messages: `None`, `the class Net`, `an array of shape (3, 4)`, `a list of 3`, `a str`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Tensor | np.ndarray):
        return f"an array of shape {tuple(value.shape)}"
    count = f" of {len(value)}" if isinstance(value, tuple | list | dict) else ""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}{count}"


def split_item(values: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """Split a sample or a batch into inputs and target (last value); a pair may have all inputs in its first value."""
    *inputs, target = values
    if len(inputs) == 1 and isinstance(inputs[0], tuple | list):
        inputs = [*inputs[0]]
    return tuple(inputs), target
