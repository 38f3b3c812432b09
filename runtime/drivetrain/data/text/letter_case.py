"""Notes on labels that depend on letters that a tokenizer does not distinguish: capital letters, accents."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyarrow import compute
from scipy.stats import rankdata

from drivetrain.data import copies
from drivetrain.data.dataset import NO_LABEL, Head
from drivetrain.data.notes import list_names
from drivetrain.data.stateless_random import Ids
from drivetrain.data.text.corpus import TextSplit
from drivetrain.data.text.encoded import Encoded
from drivetrain.data.text.tokenizer import Tokenizer
from drivetrain.job.text import TextJob

MIN_AREA = 0.95
"""Smallest area under the ROC curve for which the share of capital letters separates a class from the others."""
MIN_CLASS_TEXTS = 10
"""Smallest number of texts inside and outside of a class that proves something."""
MAX_COUNTED_TEXTS = 10_000
"""Largest number of texts whose capital letters are counted."""


def note_lost_letters(
    job: TextJob, train: TextSplit, heads: dict[str, Head], encoded: Encoded, text_tokenizer: Tokenizer
) -> list[str]:
    """Return notes on training texts whose labels depend on letters that the tokenizer does not keep."""
    if job.learns_vocabulary:
        cure = "data.lower_case: false keeps capital letters" if job.data.lower_case else "another spelling can"
    else:
        cure = "a network whose tokenizer keeps capital letters and accents can"
    notes = []
    for (name, targets), column in zip(train.targets.items(), job.data.labels, strict=True):
        names, classes = heads[name].classes, targets.numpy()
        notes += _note_merged(train, classes, names, column, encoded, cure)
        if text_tokenizer.inner.normalizer and text_tokenizer.inner.normalizer.normalize_str("A") == "a":
            notes += _note_capitals(train, classes, names, column, cure)
    return notes


def _note_merged(
    train: TextSplit, classes: Ids, names: tuple[str, ...], column: str, encoded: Encoded, cure: str
) -> list[str]:
    """Return a note on texts with the same tokens that differ in writing and label."""
    rows = encoded.sequences()
    bounds = pairwise(rows.offsets.tolist())
    numbers = copies.number_contents(copies.digest_contents(rows.flat[a:b].tobytes() for a, b in bounds))
    repeated = np.flatnonzero((np.bincount(numbers)[numbers] > 1) & (classes != NO_LABEL))
    written = train.table.digest(train.rows[repeated], lower_case=False)
    first: dict[int, tuple[int, int]] = {}
    pairs: dict[int, tuple[int, int]] = {}
    for row, text in zip(repeated.tolist(), written.tolist(), strict=True):
        number = int(numbers[row])
        other, other_text = first.setdefault(number, (row, text))
        if text != other_text and classes[row] != classes[other]:
            pairs.setdefault(number, (other, row))
    titles = [
        " and ".join(f"{train.title(row)} ({names[classes[row]]})" for row in pair)
        for pair in list(pairs.values())[: copies.MAX_LISTED_SAMPLES]
    ]
    titles += [""] * (len(pairs) - len(titles))
    listed = list_names(titles, copies.MAX_LISTED_SAMPLES, "; ")
    return (
        [
            f'{len(pairs):,} pair{"s" * (len(pairs) > 1)} of training texts with different labels, by "{column}", are the same to this tokenizer, which '
            f"cannot tell them apart: {listed}; {cure}"
        ]
        if pairs
        else []
    )


def _note_capitals(train: TextSplit, classes: Ids, names: tuple[str, ...], column: str, cure: str) -> list[str]:
    """Return a note on classes that the share of capital letters separates from all others."""
    rows = np.flatnonzero(classes != NO_LABEL)
    rows = rows[:: -(-len(rows) // MAX_COUNTED_TEXTS)]
    shares, counted = _measure_capitals(train, rows), classes[rows]
    class_names = []
    for number, name in enumerate(names):
        inside = counted == number
        if min(inside.sum(), (~inside).sum()) < MIN_CLASS_TEXTS:
            continue
        ranks = rankdata(shares)[inside]
        area = (ranks.sum() - len(ranks) * (len(ranks) + 1) / 2) / (len(ranks) * int((~inside).sum()))
        if max(area, 1 - area) >= MIN_AREA:
            class_names.append(name)
    return (
        [
            f'the share of capital letters alone tells {list_names(class_names, 5)} from the other classes of "{column}", and this tokenizer '
            f"reads all letters in lower case; {cure}"
        ]
        if class_names
        else []
    )


def _measure_capitals(train: TextSplit, rows: Ids) -> npt.NDArray[np.float64]:
    """Measure the share of capital letters among the letters of some texts."""
    capitals, letters = np.zeros((2, len(rows)))
    for column in train.table.take(train.rows[rows]):
        capitals += compute.count_substring_regex(column, r"\p{Lu}").to_numpy()
        letters += compute.count_substring_regex(column, r"\p{L}").to_numpy()
    return capitals / np.maximum(letters, 1)
