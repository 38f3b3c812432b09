"""Converts labels, as written in the data, to class names and class indices, also several labels in one cell.

Cells that can be read in two ways are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drivetrain.data.notes import list_counts, list_names
from drivetrain.errors import DataError, nearest
from drivetrain.job import formatting
from drivetrain.system import spelling
from drivetrain.system.printable import printable


def sort_class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort the distinct labels: as numbers if all are integers, else as text."""
    names = set(labels)
    if all(map(_is_integer, names)):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def have_order(classes: Sequence[str]) -> bool:
    """Return whether the distance between classes is meaningful: for two classes, or whole numbers in order."""
    return len(classes) == 2 or (all(map(_is_integer, classes)) and tuple(classes) == sort_class_names(classes))


def _is_integer(name: str) -> bool:
    return name.removeprefix("-").isascii() and name.removeprefix("-").isdigit()


def index_labels(labels: Sequence[str], classes: Sequence[str], key: str) -> npt.NDArray[np.int64]:
    """Return the class index of each label, shape (N,).

    Blanks around a label and its Unicode form do not matter, and `2.0` and `2` are the same class.

    Raises:
        DataError: if a label is not among the classes; names `key`.
    """
    index_of = match_labels(labels, classes)
    unknown = Counter(label for label in labels if label not in index_of)
    if unknown:
        examples = ", ".join(f'"{printable(label)}" ({count:,})' for label, count in sorted(unknown.items())[:5])
        label = min(unknown)
        similar = next((name for name in classes if spelling.find_similar_names([name, label])), None)
        hint = f'did you mean "{printable(similar)}"?' if similar is not None else nearest(label, classes)
        raise DataError(
            f"classes that are not in the training data: {examples}",
            f"the {len(classes)} classes of the training data: {list_names(classes)}",
            hint or "add samples of these classes to the training data, or remove them here",
            key=key,
        )
    return np.fromiter((index_of[label] for label in labels), np.int64, len(labels))


def match_labels(labels: Iterable[str], classes: Sequence[str]) -> dict[str, int]:
    """Return the class index of each class, and of labels in another spelling, by their normalized form."""
    index_of = {name: i for i, name in enumerate(classes)}
    # Of two classes with one normalized form, the first counts.
    index_of_code = {_normalize(name): i for i, name in reversed(list(enumerate(classes)))}
    for label in set(labels) - index_of.keys():
        code = _normalize(label)
        if code in index_of_code:
            index_of[label] = index_of_code[code]
    return index_of


def _normalize(label: str) -> str:
    """Normalize a label for comparison: without blanks around it, in one form of Unicode and of numbers."""
    return spelling.clean_category(label.strip())


def note_similar_names(column: str, classes: Iterable[str]) -> list[str]:
    """Return a note on classes or categories of a column with spellings so similar that they are probably the same."""
    similar = spelling.find_similar_names(classes)
    return (
        [f'"{column}": spellings that are probably the same, and are learned apart: {list_names(similar)}']
        if similar
        else []
    )


_NO_VALUE = {"nan", "na", "n/a", "#n/a", "null"}
"""Names for a missing value. `none` and `-` are not among them: they can be the class of objects without a defect."""


def looks_empty(name: str) -> bool:
    """Return whether spreadsheets and libraries write this class name for a missing value."""
    return name.strip().lower() in _NO_VALUE


SEPARATORS = {"|": "a bar", ";": "a semicolon", ",": "a comma"}
"""Recognized separators. A space is reported, too, but never assumed, because labels can contain spaces."""
MAX_FRACTION_CLASSES = 10
"""Largest number of distinct numbers with fractions that are accepted as classes."""
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
_ITEM = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,]*?))\s*(?:,|$)""", re.DOTALL)
_DECIMAL = re.compile(r"[-+]?\d+,\d+")
_FRACTION = re.compile(r"[-+]?\d*[.,]\d+")
_WHOLE = re.compile(r"[-+]?\d+")


def find_separator(cells: Iterable[str], column: str, path: Path, declared: str) -> str:
    """Find the separator of the labels in a cell; empty if no cell has several labels.

    Args:
        cells: text of each row; empty without a label.
        column: name of the column, for messages.
        path: file of the column, for messages.
        declared: separator that the job declares; `auto` to find it.

    Raises:
        DataError: if the separator is not clear.
    """
    if declared != "auto":
        return declared
    filled = [cell for cell in cells if cell and not _LIST.fullmatch(cell)]
    cells_by_separator: dict[str, list[str]] = {}
    for separator in SEPARATORS:
        matching_cells = [cell for cell in filled if separator in cell]
        if matching_cells:
            cells_by_separator[separator] = matching_cells
    if len(cells_by_separator) > 1:
        examples = " and ".join(
            f"{_quote(matching_cells[0])} with {SEPARATORS[separator]}"
            for separator, matching_cells in cells_by_separator.items()
        )
        raise _unclear(f'column "{column}" of {path} has {examples}', "one separator", *cells_by_separator)
    if "," in cells_by_separator and all(_DECIMAL.fullmatch(cell) for cell in cells_by_separator[","]):
        raise DataError(
            f'column "{column}" of {path} has {_quote(cells_by_separator[","][0])}: two labels, or a decimal number?',
            "labels that are declared, or numbers",
            'add `label_separator: ","` for labels; for numbers use the task image-regression, without multi_label',
            key="data.label_column",
        )
    if cells_by_separator:
        return next(iter(cells_by_separator))
    spaced = [cell for cell in filled if " " in cell]
    if spaced:
        description = (
            f'column "{column}" of {path} has {_quote(spaced[0])}: labels with a space between them, or one label?'
        )
        raise _unclear(description, "a separator that is declared", " ", "|")
    return ""


def split_labels(cell: str, separator: str) -> tuple[str, ...]:
    """Split a cell into distinct labels without blanks around them; `["cat", "dog"]` and `['cat', 'dog']` are lists."""
    list_match = _LIST.fullmatch(cell)
    if list_match:
        labels = ["".join(groups) for groups in _ITEM.findall(list_match[1])]
    else:
        labels = cell.split(separator) if separator else [cell]
    return tuple(dict.fromkeys(label.strip() for label in labels if label.strip()))


def check_cells_are_classes(cells: Sequence[str], column: str, path: Path) -> None:
    """Check that a class column contains neither several labels in a cell nor numbers.

    Raises:
        DataError: if it seems to contain one of these and `data.multi_label` is not set.
    """
    counts = Counter(cells)
    cell = find_several_labels(counts)
    if cell:
        number = ", or a decimal number" if _DECIMAL.fullmatch(cell) else ""
        numbers_hint = "; for numbers the task image-regression" if number else ""
        raise DataError(
            f'column "{column}" of {path} has {_quote(cell)} ({counts[cell]:,} rows), and other rows '
            f"with the same parts: several labels, or one class{number}?",
            f"multi_label: true for several labels in a cell, false for one class{numbers_hint}",
            "add `multi_label: true` to data, or `multi_label: false`",
            key="data.label_column",
        )
    numbers = all(_FRACTION.fullmatch(cell) or _WHOLE.fullmatch(cell) for cell in counts)
    fractions = [cell for cell in counts if _FRACTION.fullmatch(cell)]
    if numbers and fractions and len(counts) > MAX_FRACTION_CLASSES:
        raise DataError(
            f'column "{column}" of {path} has {len(counts):,} different numbers such as {fractions[0]}',
            "classes: text or whole numbers",
            "use the task image-regression, or add `multi_label: false` to data if each number is a class",
            key="data.label_column",
        )


def find_several_labels(cells: Collection[str]) -> str:
    """Find a cell that seems to have several labels, because other cells repeat them; empty if there is none."""
    for separator in SEPARATORS:
        several = [cell for cell in cells if separator in cell]
        labels = {label for cell in cells for label in split_labels(cell, separator)}
        with_known_label = [cell for cell in several if any(label in cells for label in split_labels(cell, separator))]
        if several and (with_known_label or len(labels) < len(cells)):
            return (with_known_label or several)[0]
    return ""


def _unclear(description: str, possible: str, *separators: str) -> DataError:
    """Return the error for cells that can be read in several ways, with the separators to choose from."""
    options = " or ".join(f'`label_separator: "{separator}"`' for separator in separators)
    return DataError(description, possible, f"add {options} to data", key="data.label_column")


def _quote(cell: str) -> str:
    return f'"{formatting.printable(cell)}"'


def describe_label_counts(counts: Counter[str], unlabelled_count: int) -> str:
    """Describe how often each label occurs, such as `labels: cat: 20, dog: 13; 5 images have none`."""
    without_labels = f"; {unlabelled_count:,} images have none" if unlabelled_count else ""
    return f"labels: {list_counts(counts)}{without_labels}"
