"""Notes codes such as -9999 in the numbers of arrays that a program passes in or a user's function returns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drivetrain.data.custom.map_dataset import ArraySplit, Items
from drivetrain.data.dataset import Head
from drivetrain.data.formats.column_values import Numbers
from drivetrain.data.scales import fit_scale

MAX_CHECKED_NUMBERS = 20_000_000
"""Largest number of input numbers that are searched for codes."""


def note_codes(train: Items, validation: Items, head: Head) -> list[str]:
    """Return notes on numbers in arrays that are codes such as -9999; these arrays are not scaled."""
    if not isinstance(train, ArraySplit) or not isinstance(validation, ArraySplit):
        return []
    notes = []
    columns = zip(_list_columns(train, head), _list_columns(validation, head), strict=False)
    for (name, per_sample, values), (_, _, new_values) in columns:
        scale = fit_scale(values)
        for split, numbers in ((train, values), (validation, new_values)):
            name_row = lambda row, rows=per_sample: f"sample {row // rows}"  # noqa: E731
            codes = scale.note_codes(name, numbers, name_row, effect="the network gets them as they are")
            notes += [f"{split.name}: {note}" for note in codes]
    return notes


def _list_columns(split: ArraySplit, head: Head) -> Iterator[tuple[str, int, Numbers]]:
    """Yield name, values per sample and values of each column of numbers; large arrays and pictures are skipped."""
    arrays = {"target": split.first_targets()} if head.kind == "numbers" else {}
    if sum(x.numel() for x in split.inputs) <= MAX_CHECKED_NUMBERS:
        arrays |= {f"input {number}": x for number, x in enumerate(split.gather(np.arange(len(split))))}
    for name, array in arrays.items():
        if not array.is_floating_point() or array.ndim > 3 or not array.isfinite().all():
            continue
        rows = array.reshape(len(array), -1) if array.ndim < 2 else array.reshape(-1, array.shape[-1])
        for column in range(rows.shape[1]):
            values = rows[:, column].double().numpy()
            yield f"{name}[{column}]" if rows.shape[1] > 1 else name, len(rows) // len(array), values
