"""Turns the samples of a task into the columns that a simple model learns from.

table    the numbers; categories one column each for trees, one column a category for linear models
series   mean, deviation, extremes, first and last value, slope and mean step of each channel
images   the pixels of the picture, scaled down to 16 x 16
texts    how often each token and each pair of neighbours occurs, weighted by rarity (TF-IDF); letters and runs of up to five
         of them where words are long or unknown, so that a tokenizer that cannot read a text does not blind both models
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from torch import Tensor

from drivetrain.data.dataset import Dataset, Preprocessing, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.data.text.encoded import Ragged
from drivetrain.data.text.split import TextSplit

SAMPLES_PER_CHUNK = 256
"""Samples that are read together: decoded pictures of a whole data set need not fit into memory."""
PICTURE_SIDE = 16
"""Pixels; a linear model gains nothing from more of them, and takes longer."""
HASHED_COLUMNS = 2**18
"""Columns for tokens and pairs; with the 20,000 to 100,000 that occur in small data few collide."""
LONG_WORDS = 20
"""Letters of a word, on average, from which letters say more than words: no spaces (DNA, formulas, Chinese)."""
MAX_UNKNOWN_SHARE = 0.01
"""Largest share of unknown tokens of the training texts with which tokens are read."""
MAX_LETTERS = 5000
"""Letters of a text that are read, from its start."""
LETTER_RUN = 5
"""Letters of the longest runs that are counted."""
LEAST_TEXTS = 2
"""Training texts in which a token or pair must occur."""
MAX_TREE_CATEGORIES = 255
"""scikit-learn's trees take no more categories a column; a longer column is left to them as a number."""

Matrix = Any
"""(samples, columns) float32, as a NumPy array or a sparse matrix of scipy."""


class Features:
    """The columns of some kind of samples."""

    looseness = 1.0
    """scikit-learn's `C` of logistic regression: 1 is its default; rows of TF-IDF have the length 1 and need more."""
    has_unit_rows = False
    """Whether rows have the length 1, so that a few passes of stochastic gradient descent solve a logistic regression."""
    suits_trees = True
    """Whether boosted trees can learn from them; pixels and thousands of word counts are not for them."""

    def fit(self, split: Split, ids: Ids) -> None:
        """Compute what the columns need from the training samples: nothing where they are prepared as for the network."""

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Read the columns for a linear model."""
        raise NotImplementedError

    def read_trees(self, split: Split, ids: Ids) -> tuple[Matrix, list[int]]:
        """Read the columns for trees, and the numbers of those that are categories."""
        return self.read_linear(split, ids), []


def choose_features(dataset: Dataset) -> Features | None:
    """Choose the columns for this kind of data; None where only its makers know what an input means."""
    kind = dataset.preprocessing.get("kind")
    if kind == "table":
        return TableFeatures(dataset.preprocessing)
    if kind == "texts":
        return TextFeatures(dataset.facts.get("unknown_words", {}).get("share", 0.0))
    if kind == "series":
        return SeriesFeatures(dataset.prepare)
    return ImageFeatures(dataset.prepare) if kind == "images" else None


def _read_prepared(split: Split, ids: Ids, prepare: Preprocessing) -> Iterator[Tensor]:
    """Yield the first input of these samples, some samples at a time, prepared as for an evaluation."""
    for part in _chunks(ids):
        yield prepare(split.gather(part), part, None)[0].float()


@dataclass
class TableFeatures(Features):
    """Numbers (already scaled) and categories of rows."""

    preprocessing: dict[str, Any]

    @property
    def _sizes(self) -> list[int]:
        """Indices of each category column: unknown, perhaps empty, and the categories."""
        return [1 + row["missing"] + len(row["values"]) for row in self.preprocessing["categorical"]]

    def _read(self, split: Split, ids: Ids) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        inputs = split.gather(ids)
        numbers = next((x.numpy() for x in inputs if x.is_floating_point()), np.zeros((len(ids), 0), np.float32))
        categories = next((x.numpy() for x in inputs if not x.is_floating_point()), np.zeros((len(ids), 0), np.int32))
        return numbers, categories

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Numbers, and one column a category."""
        numbers, categories = self._read(split, ids)
        rows, parts = np.arange(len(ids)), [sparse.csr_array(numbers)]
        for column, size in enumerate(self._sizes):
            ones = np.ones(len(ids), np.float32)
            parts.append(sparse.csr_array((ones, (rows, categories[:, column])), shape=(len(ids), size)))
        return sparse.hstack(parts, format="csr") if len(parts) > 1 else numbers

    def read_trees(self, split: Split, ids: Ids) -> tuple[Matrix, list[int]]:
        """Numbers, then one column for each column of categories."""
        numbers, categories = self._read(split, ids)
        columns = [numbers.shape[1] + i for i, size in enumerate(self._sizes) if size <= MAX_TREE_CATEGORIES]
        return np.hstack([numbers, categories.astype(np.float32)]), columns


@dataclass
class SeriesFeatures(Features):
    """Simple statistics of windows (N, time, channels)."""

    prepare: Preprocessing

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Eight statistics a channel, shape (N, 8 * channels)."""
        return torch.cat([_statistics(windows) for windows in _read_prepared(split, ids, self.prepare)]).numpy()


def _statistics(windows: Tensor) -> Tensor:
    """Windows (N, time, channels) to statistics (N, 8 * channels)."""
    time = torch.linspace(-1, 1, windows.shape[1]).view(1, -1, 1)
    slope = (windows * time).sum(1) / (time**2).sum().clamp_min(1e-9)
    steps = windows.diff(dim=1).abs().mean(1) if windows.shape[1] > 1 else torch.zeros_like(slope)
    spread = windows.std(1, correction=0)
    first_and_last = (windows[:, 0], windows[:, -1])
    return torch.cat([windows.mean(1), spread, windows.amin(1), windows.amax(1), *first_and_last, slope, steps], dim=1)


@dataclass
class ImageFeatures(Features):
    """Small versions of pictures (N, channels, height, width)."""

    prepare: Preprocessing
    looseness = 0.1
    suits_trees = False
    _rows: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    """By split and sample, since decoding takes most of the time and each fit reads the samples of all before."""

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Read the pixels of all channels, scaled down by averaging."""
        rows = self._rows.setdefault(id(split), {})
        missing = np.array([number for number in ids.tolist() if number not in rows], np.int64)
        if len(missing):
            small = torch.cat([_shrink(pictures) for pictures in _read_prepared(split, missing, self.prepare)])
            rows |= zip(missing.tolist(), small, strict=True)
        return torch.stack([rows[number] for number in ids.tolist()]).numpy()


def _shrink(pictures: Tensor) -> Tensor:
    height, width = (min(side, PICTURE_SIDE) for side in pictures.shape[-2:])
    return F.adaptive_avg_pool2d(pictures, (height, width)).flatten(1)


class TextFeatures(Features):
    """Tokens and pairs of neighbours, or runs of letters, weighted by TF-IDF.

    Args:
        unknown_share: share of unknown tokens of the training texts.
    """

    looseness = 30.0
    has_unit_rows = True
    suits_trees = False

    def __init__(self, unknown_share: float = 0.0) -> None:
        self._weighting = TfidfTransformer(sublinear_tf=True)
        self._columns = np.arange(HASHED_COLUMNS)
        self._unknown_share = unknown_share
        self._reads_letters = False

    def fit(self, split: Split, ids: Ids) -> None:
        """Count in how many training texts each token and pair occurs; what occurs in one alone says nothing of others."""
        if isinstance(split, TextSplit):
            self._reads_letters = self._unknown_share > MAX_UNKNOWN_SHARE or _measure_words(split, ids) > LONG_WORDS
        texts = np.zeros(HASHED_COLUMNS, np.int64)
        for part in _chunks(ids):
            texts += np.bincount(self._count(split, part).indices, minlength=HASHED_COLUMNS)
        self._columns = np.flatnonzero(texts >= LEAST_TEXTS)
        if not len(self._columns):  # which scikit-learn refuses
            self._columns = np.arange(1)
        self._weighting.fit(self._count_all(split, ids))

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """One row a text, of length 1."""
        return self._weighting.transform(self._count_all(split, ids), copy=False)

    def _count_all(self, split: Split, ids: Ids) -> Any:
        """Return the counts in the columns that are used, without ever keeping the others, which are more."""
        return sparse.vstack([self._count(split, part)[:, self._columns] for part in _chunks(ids)], format="csr")

    def _count(self, split: Split, ids: Ids) -> Any:
        """Count the tokens and pairs, or the runs of letters, of each text."""
        if self._reads_letters:
            assert isinstance(split, TextSplit)
            return _count_runs(*_read_letters(split, ids).pad(np.arange(len(ids)), 0), LETTER_RUN)
        tokens, *_, mask = (x.numpy() for x in split.gather(ids))
        return _count_runs(tokens, mask, 2)


def _read_letters(split: TextSplit, ids: Ids) -> Ragged:
    """Read the letters of some texts, as they are written, as numbers."""
    columns = (column.take(split.rows[ids]).to_pylist() for column in split.source.texts)
    texts = [" ".join(cells)[:MAX_LETTERS] for cells in zip(*columns, strict=True)]
    return Ragged.from_chunks([[[ord(letter) for letter in text] for text in texts]])


def _measure_words(split: TextSplit, ids: Ids) -> float:
    """Return the mean number of letters of a word, where words stand between blanks, of some of the texts."""
    letters = _read_letters(split, ids[:SAMPLES_PER_CHUNK]).flat
    blanks = int((letters <= ord(" ")).sum())
    return (len(letters) - blanks) / (blanks + min(len(ids), SAMPLES_PER_CHUNK))


def _count_runs(tokens: npt.NDArray[np.int64], mask: npt.NDArray[np.int64], longest: int) -> Any:
    """Count how often each token, and each run of up to `longest` neighbouring ones, occurs in each text."""
    real = mask.astype(bool)
    runs = tokens.astype(np.uint64)
    rows, columns = np.nonzero(real)[0], tokens[real] % HASHED_COLUMNS
    for length in range(2, longest + 1):
        runs = runs[:, :-1] * np.uint64(0x9E3779B1) + tokens[:, length - 1 :].astype(np.uint64)
        # The golden ratio spreads neighbouring numbers; the upper bits are the well-mixed ones.
        run_columns = (runs * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - 18)
        real = real[:, :-1] & mask[:, length - 1 :].astype(bool)
        rows = np.concatenate([rows, np.nonzero(real)[0]])
        columns = np.concatenate([columns, run_columns[real].astype(np.int64)])
    ones = np.ones(len(rows), np.float32)
    # Stochastic gradient descent refuses indices of 64 bits.
    indices = rows.astype(np.int32), columns.astype(np.int32)
    counts = sparse.csr_array((ones, indices), shape=(len(mask), HASHED_COLUMNS))
    counts.sum_duplicates()
    return counts


def _chunks(ids: Ids) -> Iterator[Ids]:
    for start in range(0, max(len(ids), 1), SAMPLES_PER_CHUNK):
        yield ids[start : start + SAMPLES_PER_CHUNK]
