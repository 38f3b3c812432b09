"""Several labels in one cell: finds the separator and splits cells; refuses cells that can be read in two ways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from drivetrain.data.labels import list_names
from drivetrain.errors import DataError
from drivetrain.job.formatting import printable

SEPARATORS = {"|": "a bar", ";": "a semicolon", ",": "a comma"}
"""Separators that are recognized. A space is reported too, but never assumed, since labels can have spaces."""
MAX_FRACTION_CLASSES = 10
"""Up to this many distinct numbers with fractions are accepted as classes."""
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)
_ITEM = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,]*?))\s*(?:,|$)""", re.DOTALL)
_DECIMAL = re.compile(r"[-+]?\d+,\d+")
_FRACTION = re.compile(r"[-+]?\d*[.,]\d+")
_WHOLE = re.compile(r"[-+]?\d+")


def separator(cells: Iterable[str], column: str, path: Path, declared: str) -> str:
    """Find what separates the labels of a cell; empty if no cell has several.

    Args:
        cells: the text of each row; empty without a label.
        declared: as the job says; `auto` to find it.

    Raises:
        DataError: if it is not clear what the separator is.
    """
    if declared != "auto":
        return declared
    filled = [cell for cell in cells if cell and not _LIST.fullmatch(cell)]
    cells_by_mark = {mark: [cell for cell in filled if mark in cell] for mark in SEPARATORS}
    cells_by_mark = {mark: matching_cells for mark, matching_cells in cells_by_mark.items() if matching_cells}
    if len(cells_by_mark) > 1:
        examples = " and ".join(
            f"{_quote(matching_cells[0])} with {SEPARATORS[mark]}" for mark, matching_cells in cells_by_mark.items()
        )
        raise _unclear(f'column "{column}" of {path} has {examples}', "one separator", *cells_by_mark)
    if "," in cells_by_mark and all(_DECIMAL.fullmatch(cell) for cell in cells_by_mark[","]):
        description = (
            f'column "{column}" of {path} has {_quote(cells_by_mark[","][0])}: two labels, or a decimal number?'
        )
        raise DataError(
            f"data.label_column: {description}",
            "labels that are declared, or numbers",
            'add `label_separator: ","` for labels; for numbers use the task image-regression, without multi_label',
        )
    if cells_by_mark:
        return next(iter(cells_by_mark))
    spaced = [cell for cell in filled if " " in cell]
    if spaced:
        description = (
            f'column "{column}" of {path} has {_quote(spaced[0])}: labels with a space between them, or one label?'
        )
        raise _unclear(description, "a separator that is declared", " ", "|")
    return ""


def split(cell: str, mark: str) -> tuple[str, ...]:
    """The labels of a cell, without blanks around them, each once; `["cat", "dog"]` and `['cat', 'dog']` are lists."""
    if (inner := _LIST.fullmatch(cell)) is not None:
        parts = ["".join(groups) for groups in _ITEM.findall(inner[1])]
    else:
        parts = cell.split(mark) if mark else [cell]
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def check_classes(cells: Sequence[str], column: str, path: Path) -> None:
    """Check that a column of classes holds neither several labels in a cell nor numbers.

    Raises:
        DataError: if it looks like one of these and `data.multi_label` is not set.
    """
    counts = Counter(cells)
    if cell := example(counts):
        number = ", or a decimal number" if _DECIMAL.fullmatch(cell) else ""
        numbers_hint = "; for numbers the task image-regression" if number else ""
        raise DataError(
            f'data.label_column: column "{column}" of {path} has {_quote(cell)} ({counts[cell]:,} rows), and other rows '
            f"with the same parts: several labels, or one class{number}?",
            f"multi_label: true for several labels in a cell, false for one class{numbers_hint}",
            "add `multi_label: true` to data, or `multi_label: false`",
        )
    numbers = all(_FRACTION.fullmatch(cell) or _WHOLE.fullmatch(cell) for cell in counts)
    fractions = [cell for cell in counts if _FRACTION.fullmatch(cell)]
    if numbers and fractions and len(counts) > MAX_FRACTION_CLASSES:
        raise DataError(
            f'data.label_column: column "{column}" of {path} has {len(counts):,} different numbers such as {fractions[0]}',
            "classes: text or whole numbers",
            "use the task image-regression, or add `multi_label: false` to data if each number is a class",
        )


def example(cells: Collection[str]) -> str:
    """A cell that looks like several labels, since its parts come back in other cells; empty if there is none."""
    for mark in SEPARATORS:
        several = [cell for cell in cells if mark in cell]
        parts = {part for cell in cells for part in split(cell, mark)}
        with_known_part = [cell for cell in several if any(part in cells for part in split(cell, mark))]
        if several and (with_known_part or len(parts) < len(cells)):
            return (with_known_part or several)[0]
    return ""


def _unclear(description: str, possible: str, *marks: str) -> DataError:
    """The error for cells that can be read in several ways; `marks` are the separators to choose from."""
    options = " or ".join(f'`label_separator: "{mark}"`' for mark in marks)
    return DataError(f"data.label_column: {description}", possible, f"add {options} to data")


def _quote(cell: str) -> str:
    return f'"{printable(cell)}"'


def describe(counts: Counter[str], unlabelled_count: int) -> str:
    """How often each label occurs, such as `labels: cat 20, dog 13; 5 images have none`."""
    order = sorted(counts, key=lambda name: (-counts[name], name))
    without_labels = f"; {unlabelled_count:,} images have none" if unlabelled_count else ""
    return f"labels: {list_names([f'{name} {counts[name]:,}' for name in order], 20)}{without_labels}"
