"""Texts: the data of a text-classification job, tokenized once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.data import bad, corpus, labels, lengths, stratify, tokenizer
from runtime.data.corpus import Corpus
from runtime.data.dataset import Dataset, Head, Inputs, New, Targets, as_it_is
from runtime.data.ragged import Ragged
from runtime.data.tokenizer import Tokenizer
from runtime.draws import Ids
from runtime.errors import DataError, SpecError
from runtime.job.texts import TextEncoder, TextJob, TextPretrained

Classes = dict[str, npt.NDArray[np.int64]]
"""By head the class index of each row."""
VOCABULARY = TextEncoder.model_fields["vocabulary"].default


class TextSplit:
    """Some texts of a corpus, as tokens in memory."""

    def __init__(self, source: Corpus, rows: Ids, tokens: Ragged, classes: Classes, pad: int) -> None:
        self.source, self.rows, self.tokens, self.pad = source, rows, tokens, pad
        self.targets: Targets = {name: torch.from_numpy(found[rows]) for name, found in classes.items()}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each text; for batches of texts of like length."""
        return self.tokens.lengths

    def gather(self, ids: Ids) -> Inputs:
        """Token ids and attention mask of these texts, both (N, longest of these) int64."""
        ids, mask = self.tokens.padded(ids, self.pad)
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def title(self, index: int) -> str:
        """Row and beginning of one text."""
        return self.source.title(int(self.rows[index]))


def load(job: TextJob) -> Dataset:
    """Read, check and tokenize the texts of a job.

    Raises:
        DataError: if they cannot be used.
        SpecError: if the job's network does not fit them.
    """
    train, notes = _usable(job, job.data.train, "data.train")
    heads, classes, more = _heads(job, train)
    notes += more
    if isinstance(job.data.validation, str):
        held, more = _usable(job, job.data.validation, "data.validation")
        known = {name: _indices(held, head, column) for (name, head), column in zip(heads.items(), held.labels, strict=True)}
        kept, rest = np.arange(len(train)), np.arange(len(held))
        notes += more
    else:
        held, known = train, classes
        kept, rest, more = _divided(job, classes, heads, train)
        notes += more
    notes += _shared(train, kept, held, rest)
    words, most, more = _tokenizer(job, train.texts.take(kept))
    notes += more
    encoded = [words.encode(part.texts.take(rows)) for part, rows in ((train, kept), (held, rest))]
    longest, more = _length(job, encoded[0], most)
    notes += [*more, *_unknown(words, encoded[1])]
    cut = [words.cut(tokens, part.texts.take(rows), longest)
           for tokens, part, rows in zip(encoded, (train, held), (kept, rest), strict=True)]  # fmt: skip
    parts = TextSplit(train, kept, cut[0], classes, words.pad), TextSplit(held, rest, cut[1], known, words.pad)
    notes.append(lengths.padding(parts[0].lengths, longest, job.train.batch_size, job.train.seed))
    counts = f"{len(parts[0]):,} training and {len(parts[1]):,} validation texts"
    return Dataset(*parts, heads=heads, preprocessing={}, mixable=False, notes=[counts, *notes])
