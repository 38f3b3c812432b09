"""Converts labels, as written in the data, to class names and class indices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from drivetrain.errors import DataError, nearest
from drivetrain.system import spelling
from drivetrain.system.printable import printable


def sort_class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels, sorted as numbers if all are integers, else as text."""
    names = set(labels)
    if all(map(_is_integer, names)):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def have_order(classes: Sequence[str]) -> bool:
    """Whether the distance of two classes means something: of whole numbers in their order, and of two classes."""
    return len(classes) == 2 or (all(map(_is_integer, classes)) and tuple(classes) == sort_class_names(classes))


def _is_integer(name: str) -> bool:
    return name.removeprefix("-").isascii() and name.removeprefix("-").isdigit()


def index_labels(labels: Sequence[str], classes: Sequence[str], key: str) -> npt.NDArray[np.int64]:
    """The class index of each label, shape (N,).

    Blanks around a label and its form of Unicode do not matter, and `2.0` is the class `2`, and the other way round.

    Raises:
        DataError: for a label that is not among the classes; names `key`.
    """
    index_of = {name: i for i, name in enumerate(classes)}
    index_of_code = {_normalize(name): i for i, name in reversed(list(enumerate(classes)))}
    # Labels that are not written as a class is are looked up by their normalized form.
    index_of |= {
        label: index_of_code[code]
        for label in set(labels) - index_of.keys()
        if (code := _normalize(label)) in index_of_code
    }
    unknown = Counter(label for label in labels if label not in index_of)
    if unknown:
        examples = ", ".join(f'"{printable(label)}" ({count:,})' for label, count in sorted(unknown.items())[:5])
        first = min(unknown)
        similar = next((name for name in classes if spelling.find_similar_names([name, first])), None)
        hint = f'did you mean "{printable(similar)}"?' if similar is not None else nearest(first, classes)
        raise DataError(
            f"{key}: classes that are not in the training data: {examples}",
            f"the {len(classes)} classes of the training data: {list_names(classes)}",
            hint or "add samples of these classes to the training data, or remove them here",
        )
    return np.fromiter((index_of[label] for label in labels), np.int64, len(labels))


def _normalize(label: str) -> str:
    """The form in which labels are compared: without blanks around it, in one form of Unicode and of numbers."""
    return spelling.clean_category(label.strip())


def note_similar_names(column: str, classes: Iterable[str]) -> list[str]:
    """A note on classes or categories of a column whose spellings are so similar that they are probably the same."""
    similar = spelling.find_similar_names(classes)
    return (
        [f'"{column}": spellings that are probably the same, and are learned apart: {list_names(similar)}']
        if similar
        else []
    )


_NO_VALUE = {"nan", "na", "n/a", "#n/a", "null"}
"""Names that stand for no value. `none` and `-` are left out: they can be the class of parts without a defect."""


def looks_empty(name: str) -> bool:
    """Whether the name of a class is what spreadsheets and libraries write for no value."""
    return name.strip().lower() in _NO_VALUE


def list_names(names: Sequence[str], max_listed: int = 10, separator: str = ", ") -> str:
    """List the first names, and say how many there are more: `a, b, c and 7 more`."""
    remainder = f" and {len(names) - max_listed:,} more" if len(names) > max_listed else ""
    return separator.join(map(printable, names[:max_listed])) + remainder
