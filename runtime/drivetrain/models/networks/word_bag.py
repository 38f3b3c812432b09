"""A linear model for texts: the outputs are sums of one number for each token and each pair of neighbours.

A bag of words and pairs with hashing, as in fastText (Joulin et al. 2016), without its inner layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

PAIR_BUCKETS = 2**17
"""Rows for pairs; of the pairs of 100,000 texts few that count share one."""
_FIRST_FACTOR, _SECOND_FACTOR = 1_000_003, 7_919
"""Primes that spread pairs over the buckets; with a vocabulary of 200,000 the sums stay far below 2**63."""
SHARPNESS = 32.0
"""Factor of the sums: outputs of sure predictions are reached within a few epochs at the usual learning rate."""


class WordBag(nn.Module):
    """Token ids, token types if the tokenizer has them, and mask, all (N, tokens) int64; outputs as `TextNetwork`.

    A text's tokens and pairs have a weight so that its squared weights add up to one, whatever its length.
    """

    INPUT_NAMES: ClassVar = {2: ("ids", "mask"), 3: ("ids", "types", "mask")}
    """Names of the inputs, by their number."""

    def __init__(self, vocabulary: int, outputs: Mapping[str, int], dropout: float) -> None:
        super().__init__()
        self.names = tuple(outputs)
        self.dropout = nn.Dropout(dropout)
        self.words = nn.ModuleList(nn.Embedding(vocabulary, count) for count in outputs.values())
        self.pairs = nn.ModuleList(nn.Embedding(PAIR_BUCKETS, count) for count in outputs.values())
        self.biases = nn.ParameterList(torch.zeros(count) for count in outputs.values())
        for table in (*self.words, *self.pairs):
            nn.init.zeros_(table.weight)

    def forward(self, *inputs: Tensor) -> Tensor | dict[str, Tensor]:
        ids, mask = inputs[0], inputs[-1]
        pair_ids = _hash_pairs(ids)
        word_weights = mask.to(self.biases[0].dtype)
        pair_weights = word_weights[:, 1:] * word_weights[:, :-1]
        norm = (word_weights.sum(1, keepdim=True) + pair_weights.sum(1, keepdim=True)).clamp_min(1).sqrt()
        # A word that is dropped is left out for all heads.
        word_weights = self.dropout(word_weights / norm * SHARPNESS).unsqueeze(1)
        pair_weights = self.dropout(pair_weights / norm * SHARPNESS).unsqueeze(1)
        outputs: dict[str, Tensor] = {}
        for name, words, pairs, bias in zip(self.names, self.words, self.pairs, self.biases, strict=True):
            sums = word_weights @ words(ids) + pair_weights @ pairs(pair_ids)
            outputs[name] = sums.squeeze(1) + bias
        return outputs.get("", outputs)


def _hash_pairs(ids: Tensor) -> Tensor:
    """The row of each pair of neighbours, (N, tokens - 1), of ids (N, tokens)."""
    return (ids[:, :-1] * _FIRST_FACTOR + ids[:, 1:] * _SECOND_FACTOR) % PAIR_BUCKETS


def build(*, vocabulary: int, outputs: Mapping[str, int], dropout: float) -> nn.Module:
    """Build the network. Arguments are plain values, which `model/` stores to build the network again."""
    return WordBag(vocabulary, outputs, dropout)
