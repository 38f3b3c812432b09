"""Turns the samples of a task into the columns that a simple model learns from.

table    numbers; for trees a column for each categorical column, for linear models a column for each category
texts    counts of tokens and pairs of adjacent tokens, weighted by rarity (TF-IDF); if words are long or unknown, counts of
         letters and runs of up to five letters, so that a tokenizer that cannot read a text does not blind both models
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data.dataset import Dataset, Preprocessing, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.data.text.corpus import TextSplit
from drivetrain.data.text.encoded import Ragged
from drivetrain.training.head_solver import Matrix, RarityScaling, Scaling, Standardization
from drivetrain.training.sparse_rows import SparseRows

SAMPLES_PER_CHUNK = 256
"""Number of samples that are read together, because the decoded images of a whole data set may not fit into memory."""
TEXT_PENALTY = 0.02
"""On one of four sets of texts, 0.3 was worse by 3 points, and 0.1 by half a point."""
HASHED_COLUMNS = 2**18
"""Number of columns for tokens and pairs; few collide among the 20,000 to 100,000 of small data sets."""
LONG_WORDS = 20
"""Mean number of letters of a word from which on letters say more than words: texts without spaces (DNA, Chinese)."""
MAX_UNKNOWN_SHARE = 0.01
"""Largest share of unknown tokens in the training texts for reading tokens."""
MAX_LETTERS = 5000
"""Number of letters that are read from the start of a text."""
LETTER_RUN = 5
"""Number of letters of the longest counted runs."""
MAX_TREE_CATEGORIES = 255
"""Largest number of categories of a column in scikit-learn's trees; a column with more is treated as a number."""

Array = npt.NDArray[np.float32]


class SampleFeatures:
    """Reads the columns of one kind of samples."""

    penalty = 1.0
    """Penalty of a linear model; scikit-learn's default is C = 1."""
    scaling: ClassVar[type[Standardization | RarityScaling] | None] = Standardization
    """Scaling of the columns for a linear model; None if they are already scaled."""
    suits_trees = True
    """Whether boosted trees can learn from the columns; pixels and thousands of word counts do not suit them."""

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Read the columns for a linear model."""
        raise NotImplementedError

    def read_trees(self, split: Split, ids: Ids) -> tuple[Array, list[int]]:
        """Read the columns for trees, and the indices of the categorical columns."""
        columns = self.read_linear(split, ids)
        assert isinstance(columns, Tensor)
        return columns.numpy(), []

    def fit_scaling(self, columns: Matrix) -> Scaling | None:
        """Fit the scaling of a linear model to the columns of its training samples."""
        return self.scaling(columns) if self.scaling else None


def read_prepared(split: Split, ids: Ids, prepare: Preprocessing) -> Iterator[Tensor]:
    """Yield the first input of these samples, some samples at a time, prepared as for an evaluation."""
    for chunk in _chunks(ids):
        yield prepare(split.gather(chunk), chunk, None)[0].float()


@dataclass
class TableFeatures(SampleFeatures):
    """Reads numbers (already scaled) and categories of rows."""

    dataset: Dataset
    scaling = None  # numbers are scaled already, and a rare category must not count more

    @property
    def _sizes(self) -> list[int]:
        """Number of indices of each categorical column: unknown, perhaps empty, and the categories."""
        return [1 + row["missing"] + len(row["values"]) for row in self.dataset.preprocessing["categorical"]]

    def _read(self, split: Split, ids: Ids) -> tuple[Tensor, Tensor]:
        inputs = split.gather(ids)
        numbers = next((x.float() for x in inputs if x.is_floating_point()), torch.zeros(len(ids), 0))
        categories = next((x.long() for x in inputs if not x.is_floating_point()), torch.zeros(len(ids), 0).long())
        return numbers, categories

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Read the numbers, and one column for each category."""
        numbers, categories = self._read(split, ids)
        if not self._sizes:
            return numbers
        starts = numbers.shape[1] + torch.tensor([0, *self._sizes]).cumsum(0)
        columns = torch.arange(numbers.shape[1]).expand_as(numbers), categories + starts[:-1]
        values = torch.cat([numbers, torch.ones(categories.shape)], dim=1)
        return SparseRows.from_padded(torch.cat(columns, dim=1), values, int(starts[-1]))

    def read_trees(self, split: Split, ids: Ids) -> tuple[Array, list[int]]:
        """Read the numbers, then one column for each categorical column."""
        numbers, categories = self._read(split, ids)
        columns = [numbers.shape[1] + i for i, size in enumerate(self._sizes) if size <= MAX_TREE_CATEGORIES]
        return torch.cat([numbers, categories.float()], dim=1).numpy(), columns


@dataclass
class TextFeatures(SampleFeatures):
    """Counts tokens and pairs of adjacent tokens, or runs of letters, for TF-IDF."""

    penalty = TEXT_PENALTY
    scaling = RarityScaling
    suits_trees = False

    def __init__(self, dataset: Dataset) -> None:
        split, unknown_share = dataset.train, dataset.facts.get("unknown_words", {}).get("share", 0.0)
        is_unread = unknown_share > MAX_UNKNOWN_SHARE
        self._reads_letters = isinstance(split, TextSplit) and (is_unread or _measure_words(split) > LONG_WORDS)

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Return one row for each text; a token, pair or run that occurs c times has the value 1 + ln c."""
        counts = SparseRows.join([self._count(split, chunk) for chunk in _chunks(ids)])
        return replace(counts, values=1 + counts.values.log())

    def _count(self, split: Split, ids: Ids) -> SparseRows:
        """Count the tokens and pairs, or the runs of letters, of each text."""
        if self._reads_letters:
            assert isinstance(split, TextSplit)
            return _count_runs(*_read_letters(split, ids).pad(np.arange(len(ids)), 0), LETTER_RUN)
        tokens, *_, mask = (x.numpy() for x in split.gather(ids))
        return _count_runs(tokens, mask, 2)


def _read_letters(split: TextSplit, ids: Ids) -> Ragged:
    """Read the letters of some texts as numbers, without any preprocessing."""
    columns = (column.take(split.rows[ids]).to_pylist() for column in split.table.texts)
    texts = [" ".join(cells)[:MAX_LETTERS] for cells in zip(*columns, strict=True)]
    return Ragged.from_chunks([[list(map(ord, text)) for text in texts]])


def _measure_words(split: TextSplit) -> float:
    """Measure the mean number of letters of a word, between blanks, in some of the texts."""
    ids = np.random.default_rng(0).permutation(len(split))[:SAMPLES_PER_CHUNK]
    letters = _read_letters(split, ids).flat
    blanks = int((letters <= ord(" ")).sum())
    return (len(letters) - blanks) / (blanks + len(ids))


def _count_runs(tokens: npt.NDArray[np.int64], mask: npt.NDArray[np.int64], longest: int) -> SparseRows:
    """Count how often each token, and each run of up to `longest` adjacent tokens, occurs in each text."""
    real = mask.astype(bool)
    runs = tokens.astype(np.uint64)
    rows, columns = [np.nonzero(real)[0]], [tokens[real] % HASHED_COLUMNS]
    for length in range(2, longest + 1):
        runs = runs[:, :-1] * np.uint64(0x9E3779B1) + tokens[:, length - 1 :].astype(np.uint64)
        # Multiplying by the golden ratio spreads adjacent numbers; its upper bits are well mixed.
        run_columns = (runs * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - 18)
        real = real[:, :-1] & mask[:, length - 1 :].astype(bool)
        rows.append(np.nonzero(real)[0])
        columns.append(run_columns[real].astype(np.int64))
    all_rows, all_columns = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(columns))
    return SparseRows.add_up(all_rows, all_columns, torch.ones(len(all_rows)), (len(mask), HASHED_COLUMNS))


def _chunks(ids: Ids) -> Iterator[Ids]:
    for start in range(0, max(len(ids), 1), SAMPLES_PER_CHUNK):
        yield ids[start : start + SAMPLES_PER_CHUNK]
