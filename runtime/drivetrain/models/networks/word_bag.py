"""A linear model for texts: the outputs are sums of one number for each token and each pair of neighbours.

A bag of words and pairs with hashing, as in fastText (Joulin et al. 2016), without its inner layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

PAIR_BUCKETS = 2**17
"""Rows for the pairs of a network with many outputs."""
MORE_PAIR_BUCKETS, FEW_OUTPUTS = 2**18, 64
"""Rows of one with few outputs. On 5,000 and 15,000 texts of 21 and 40 classes fewer pairs that share a row were worth 0.3 and 0.5
points, and four times the rows hardly more; with 64 outputs they are 67 MB.
"""
_FIRST_FACTOR, _SECOND_FACTOR = 1_000_003, 7_919
"""Primes that spread pairs over the buckets; with a vocabulary of 200,000 the sums stay far below 2**63."""
SHARPNESS = 32.0
"""Factor of the sums: outputs of sure predictions are reached within a few epochs at the usual learning rate."""


class WordBag(nn.Module):
    """Token ids, token types if the tokenizer has them, and mask, all (N, tokens) int64; outputs as `TextNetwork`.

    A text's tokens and pairs have a weight so that the squares add up to that of SHARPNESS, whatever its length, if none of
    them is there twice.

    Args:
        vocabulary: number of token ids.
        outputs: number of outputs of each head.
        dropout: share of tokens and pairs that are left out in training.
        damps_repeats: whether a token that is c times in a text counts 1 + ln c times, and a pair as well (sublinear term
            frequency, Manning et al. 2008, 6.4.1): the second time says less than the first.
        pair_buckets: rows for pairs. Models of earlier versions have neither of these two.
    """

    INPUT_NAMES: ClassVar = {2: ("ids", "mask"), 3: ("ids", "types", "mask")}
    """Names of the inputs, by their number."""

    def __init__(
        self,
        vocabulary: int,
        outputs: Mapping[str, int],
        dropout: float,
        *,
        damps_repeats: bool = False,
        pair_buckets: int = PAIR_BUCKETS,
    ) -> None:
        super().__init__()
        self.damps_repeats, self.pair_buckets = damps_repeats, pair_buckets
        self.names, self.output_counts, self.vocabulary = tuple(outputs), tuple(outputs.values()), vocabulary
        self.dropout = nn.Dropout(dropout)
        self.words = nn.ModuleList(nn.Embedding(vocabulary, count) for count in outputs.values())
        self.pairs = nn.ModuleList(nn.Embedding(pair_buckets, count) for count in outputs.values())
        self.biases = nn.ParameterList(torch.zeros(count) for count in outputs.values())
        for table in (*self.words, *self.pairs):
            nn.init.zeros_(table.weight)

    @property
    def width(self) -> int:
        """Weights of an output."""
        return self.vocabulary + self.pair_buckets

    def forward(self, *inputs: Tensor) -> Tensor | dict[str, Tensor]:
        ids, pair_ids = inputs[0], self._hash_pairs(inputs[0])
        # A word that is dropped is left out for all heads.
        weights = self._weigh(inputs[0], pair_ids, inputs[-1])
        word_weights, pair_weights = (self.dropout(part).unsqueeze(1) for part in weights)
        outputs: dict[str, Tensor] = {}
        for name, words, pairs, bias in zip(self.names, self.words, self.pairs, self.biases, strict=True):
            sums = word_weights @ words(ids) + pair_weights @ pairs(pair_ids)
            outputs[name] = sums.squeeze(1) + bias
        return outputs.get("", outputs)

    def _weigh(self, ids: Tensor, pair_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of tokens (N, tokens) and pairs (N, tokens - 1)."""
        words = mask.to(self.biases[0].dtype)
        pairs = words[:, 1:] * words[:, :-1]
        norm = (words.sum(1, keepdim=True) + pairs.sum(1, keepdim=True)).clamp_min(1).sqrt()
        if self.damps_repeats:
            words, pairs = _damp_repeats(ids, words), _damp_repeats(pair_ids, pairs)
        return words / norm * SHARPNESS, pairs / norm * SHARPNESS

    def _hash_pairs(self, ids: Tensor) -> Tensor:
        """Return the row of each pair of neighbours, (N, tokens - 1), of ids (N, tokens)."""
        return (ids[:, :-1] * _FIRST_FACTOR + ids[:, 1:] * _SECOND_FACTOR) % self.pair_buckets

    def read_columns(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs as a product: columns (N, 2 * tokens - 1) of the weights of `load_head`, and their values."""
        pair_ids = self._hash_pairs(inputs[0])
        columns = torch.cat([inputs[0], self.vocabulary + pair_ids], dim=1)
        return columns, torch.cat(self._weigh(inputs[0], pair_ids, inputs[-1]), dim=1)

    @torch.no_grad()
    def load_head(self, number: int, weight: Tensor, bias: Tensor) -> None:
        """Set the weights of a head, (outputs, width), and its bias, (outputs,)."""
        parts = weight[:, : self.vocabulary], weight[:, self.vocabulary :]
        for tables, values in zip((self.words, self.pairs), parts, strict=True):
            cast(nn.Embedding, tables[number]).weight.copy_(values.T)
        self.biases[number].copy_(bias)


def _damp_repeats(ids: Tensor, presence: Tensor) -> Tensor:
    """Presence (N, places), 0 or 1, so that the c places of a text with the same id add up to 1 + ln c."""
    counts = _count_repeats(ids.where(presence > 0, -1)).to(presence.dtype)
    return presence * (1 + counts.log()) / counts


def _count_repeats(ids: Tensor) -> Tensor:
    """Return how often the id of each place is in its row, (N, places)."""
    if torch.compiler.is_compiling():  # also while the network is exported: ONNX has no search
        return (ids[:, :, None] == ids[:, None, :]).sum(2)
    # Not each place with each other one: 32 texts of 4,096 tokens took 4.6 GB and five seconds.
    ordered = ids.sort(dim=1).values
    return torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)


def choose_pair_buckets(outputs: int) -> int:
    """Choose the rows for pairs of a new network with so many outputs."""
    return MORE_PAIR_BUCKETS if outputs <= FEW_OUTPUTS else PAIR_BUCKETS
