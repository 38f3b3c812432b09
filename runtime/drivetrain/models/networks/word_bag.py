"""A linear model for texts: the outputs are sums of one number for each token and each pair of neighbours.

A bag of words and pairs with hashing, as in fastText (Joulin et al. 2016), without its inner layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

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
        self.names, self.output_counts, self.vocabulary = tuple(outputs), tuple(outputs.values()), vocabulary
        self.dropout = nn.Dropout(dropout)
        self.words = nn.ModuleList(nn.Embedding(vocabulary, count) for count in outputs.values())
        self.pairs = nn.ModuleList(nn.Embedding(PAIR_BUCKETS, count) for count in outputs.values())
        self.biases = nn.ParameterList(torch.zeros(count) for count in outputs.values())
        for table in (*self.words, *self.pairs):
            nn.init.zeros_(table.weight)

    def forward(self, *inputs: Tensor) -> Tensor | dict[str, Tensor]:
        ids, pair_ids = inputs[0], _hash_pairs(inputs[0])
        # A word that is dropped is left out for all heads.
        word_weights, pair_weights = (self.dropout(weights).unsqueeze(1) for weights in self._weigh(inputs[-1]))
        outputs: dict[str, Tensor] = {}
        for name, words, pairs, bias in zip(self.names, self.words, self.pairs, self.biases, strict=True):
            sums = word_weights @ words(ids) + pair_weights @ pairs(pair_ids)
            outputs[name] = sums.squeeze(1) + bias
        return outputs.get("", outputs)

    def _weigh(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of tokens (N, tokens) and pairs (N, tokens - 1)."""
        words = mask.to(self.biases[0].dtype)
        pairs = words[:, 1:] * words[:, :-1]
        norm = (words.sum(1, keepdim=True) + pairs.sum(1, keepdim=True)).clamp_min(1).sqrt()
        return words / norm * SHARPNESS, pairs / norm * SHARPNESS

    def read_columns(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs as a product: columns (N, 2 * tokens - 1) of the weights of `load_head`, and their values."""
        columns = torch.cat([inputs[0], self.vocabulary + _hash_pairs(inputs[0])], dim=1)
        return columns, torch.cat(self._weigh(inputs[-1]), dim=1)

    @torch.no_grad()
    def load_head(self, number: int, weight: Tensor, bias: Tensor) -> None:
        """Set the weights of a head, (outputs, vocabulary + PAIR_BUCKETS), and its bias, (outputs,)."""
        parts = weight[:, : self.vocabulary], weight[:, self.vocabulary :]
        for tables, values in zip((self.words, self.pairs), parts, strict=True):
            cast(nn.Embedding, tables[number]).weight.copy_(values.T)
        self.biases[number].copy_(bias)


def _hash_pairs(ids: Tensor) -> Tensor:
    """The row of each pair of neighbours, (N, tokens - 1), of ids (N, tokens)."""
    return (ids[:, :-1] * _FIRST_FACTOR + ids[:, 1:] * _SECOND_FACTOR) % PAIR_BUCKETS


def build(*, vocabulary: int, outputs: Mapping[str, int], dropout: float) -> nn.Module:
    """Build the network. Arguments are plain values, which `model/` stores to build the network again."""
    return WordBag(vocabulary, outputs, dropout)
