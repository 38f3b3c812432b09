"""Turns the samples of a task into the columns that a simple model learns from.

table    the numbers; categories one column each for trees, one column a category for linear models
series   mean, deviation, extremes, first and last value, slope and mean step of each channel
images   the pixels of the picture, scaled down to 16 x 16
texts    how often each token and each pair of neighbours occurs, weighted by rarity (TF-IDF); letters and runs of up to five
         of them where words are long or unknown, so that a tokenizer that cannot read a text does not blind both models
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.data.dataset import Dataset, Preprocessing, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.data.text.encoded import Ragged
from drivetrain.data.text.split import TextSplit
from drivetrain.training.head_solver import Matrix, RarityScaling, Scaling, Standardization
from drivetrain.training.sparse_rows import SparseRows

SAMPLES_PER_CHUNK = 256
"""Samples that are read together: decoded pictures of a whole data set need not fit into memory."""
PICTURE_SIDE = 16
"""Pixels; a linear model gains nothing from more of them, and takes longer."""
TEXT_PENALTY = 0.02
"""Of four sets of texts, 0.3 was worse by 3 points in one, and 0.1 by half a point."""
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
MAX_TREE_CATEGORIES = 255
"""scikit-learn's trees take no more categories a column; a longer column is left to them as a number."""

Array = npt.NDArray[np.float32]


class Features:
    """The columns of some kind of samples."""

    penalty = 1.0
    """Of a linear model: that of scikit-learn's default, C = 1."""
    scaling: ClassVar[type[Standardization | RarityScaling] | None] = Standardization
    """How a linear model scales them; None if they are prepared."""
    suits_trees = True
    """Whether boosted trees can learn from them; pixels and thousands of word counts are not for them."""

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Read the columns for a linear model."""
        raise NotImplementedError

    def read_trees(self, split: Split, ids: Ids) -> tuple[Array, list[int]]:
        """Read the columns for trees, and the numbers of those that are categories."""
        columns = self.read_linear(split, ids)
        assert isinstance(columns, Tensor)
        return columns.numpy(), []

    def fit_scaling(self, columns: Matrix) -> Scaling | None:
        """Fit the scaling of a linear model to the columns of its training samples."""
        return self.scaling(columns) if self.scaling else None


def _read_prepared(split: Split, ids: Ids, prepare: Preprocessing) -> Iterator[Tensor]:
    """Yield the first input of these samples, some samples at a time, prepared as for an evaluation."""
    for part in _chunks(ids):
        yield prepare(split.gather(part), part, None)[0].float()


@dataclass
class TableFeatures(Features):
    """Numbers (already scaled) and categories of rows."""

    dataset: Dataset
    scaling = None  # numbers are scaled already, and a rare category must not count more

    @property
    def _sizes(self) -> list[int]:
        """Indices of each category column: unknown, perhaps empty, and the categories."""
        return [1 + row["missing"] + len(row["values"]) for row in self.dataset.preprocessing["categorical"]]

    def _read(self, split: Split, ids: Ids) -> tuple[Tensor, Tensor]:
        inputs = split.gather(ids)
        numbers = next((x.float() for x in inputs if x.is_floating_point()), torch.zeros(len(ids), 0))
        categories = next((x.long() for x in inputs if not x.is_floating_point()), torch.zeros(len(ids), 0).long())
        return numbers, categories

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Numbers, and one column a category."""
        numbers, categories = self._read(split, ids)
        if not self._sizes:
            return numbers
        starts = numbers.shape[1] + torch.tensor([0, *self._sizes]).cumsum(0)
        columns = torch.arange(numbers.shape[1]).expand_as(numbers), categories + starts[:-1]
        values = torch.cat([numbers, torch.ones(categories.shape)], dim=1)
        return SparseRows.from_padded(torch.cat(columns, dim=1), values, int(starts[-1]))

    def read_trees(self, split: Split, ids: Ids) -> tuple[Array, list[int]]:
        """Numbers, then one column for each column of categories."""
        numbers, categories = self._read(split, ids)
        columns = [numbers.shape[1] + i for i, size in enumerate(self._sizes) if size <= MAX_TREE_CATEGORIES]
        return torch.cat([numbers, categories.float()], dim=1).numpy(), columns


@dataclass
class SeriesFeatures(Features):
    """Simple statistics of windows (N, time, channels)."""

    dataset: Dataset

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Eight statistics a channel, shape (N, 8 * channels)."""
        return torch.cat([_statistics(windows) for windows in _read_prepared(split, ids, self.dataset.prepare)])


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

    dataset: Dataset
    penalty = 10.0
    suits_trees = False
    _rows: dict[int, dict[int, Tensor]] = field(init=False, default_factory=dict)
    """By split and sample, since decoding takes most of the time and each fit reads the samples of all before."""

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """Read the pixels of all channels, scaled down by averaging."""
        rows = self._rows.setdefault(id(split), {})
        missing = np.array([number for number in ids.tolist() if number not in rows], np.int64)
        if len(missing):
            small = torch.cat([_shrink(pictures) for pictures in _read_prepared(split, missing, self.dataset.prepare)])
            rows |= zip(missing.tolist(), small, strict=True)
        return torch.stack([rows[number] for number in ids.tolist()])


def _shrink(pictures: Tensor) -> Tensor:
    height, width = (min(side, PICTURE_SIDE) for side in pictures.shape[-2:])
    return F.adaptive_avg_pool2d(pictures, (height, width)).flatten(1)


class TextFeatures(Features):
    """Tokens and pairs of neighbours, or runs of letters, weighted by TF-IDF."""

    penalty = TEXT_PENALTY
    scaling = RarityScaling
    suits_trees = False

    def __init__(self, dataset: Dataset) -> None:
        split, unknown_share = dataset.train, dataset.facts.get("unknown_words", {}).get("share", 0.0)
        is_unread = unknown_share > MAX_UNKNOWN_SHARE
        self._reads_letters = isinstance(split, TextSplit) and (is_unread or _measure_words(split) > LONG_WORDS)

    def read_linear(self, split: Split, ids: Ids) -> Matrix:
        """One row a text: of the number of times c that something occurs, 1 + ln c."""
        counts = SparseRows.join([self._count(split, part) for part in _chunks(ids)])
        return replace(counts, values=1 + counts.values.log())

    def _count(self, split: Split, ids: Ids) -> SparseRows:
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


def _measure_words(split: TextSplit) -> float:
    """Return the mean number of letters of a word, where words stand between blanks, of some of the texts."""
    ids = np.random.default_rng(0).permutation(len(split))[:SAMPLES_PER_CHUNK]
    letters = _read_letters(split, ids).flat
    blanks = int((letters <= ord(" ")).sum())
    return (len(letters) - blanks) / (blanks + len(ids))


def _count_runs(tokens: npt.NDArray[np.int64], mask: npt.NDArray[np.int64], longest: int) -> SparseRows:
    """Count how often each token, and each run of up to `longest` neighbouring ones, occurs in each text."""
    real = mask.astype(bool)
    runs = tokens.astype(np.uint64)
    rows, columns = [np.nonzero(real)[0]], [tokens[real] % HASHED_COLUMNS]
    for length in range(2, longest + 1):
        runs = runs[:, :-1] * np.uint64(0x9E3779B1) + tokens[:, length - 1 :].astype(np.uint64)
        # The golden ratio spreads neighbouring numbers; the upper bits are the well-mixed ones.
        run_columns = (runs * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - 18)
        real = real[:, :-1] & mask[:, length - 1 :].astype(bool)
        rows.append(np.nonzero(real)[0])
        columns.append(run_columns[real].astype(np.int64))
    places = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(columns))
    return SparseRows.add_up(*places, torch.ones(len(places[0])), (len(mask), HASHED_COLUMNS))


def _chunks(ids: Ids) -> Iterator[Ids]:
    for start in range(0, max(len(ids), 1), SAMPLES_PER_CHUNK):
        yield ids[start : start + SAMPLES_PER_CHUNK]
