"""Implements a linear model for texts: each output is a sum of one number per token and pair of adjacent tokens.

It is a bag of words and pairs with hashing, as in fastText (Joulin et al. 2016), without the inner layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

PAIR_BUCKETS = 2**17
"""Number of rows for pairs in a network with many outputs."""
MORE_PAIR_BUCKETS, FEW_OUTPUTS = 2**18, 64
"""Number of rows for pairs in a network with few outputs, and the largest number of few outputs. On 5,000 and 15,000 texts of
21 and 40 classes, these rows gained 0.3 and 0.5 points, and four times as many hardly more; with 64 outputs they take 67 MB.
"""
_FIRST_FACTOR, _SECOND_FACTOR = 1_000_003, 7_919
"""Primes that spread pairs over the buckets; with a vocabulary of 200,000 the sums stay far below 2**63."""
SHARPNESS = 32.0
"""Factor of the sums, so that a few epochs at the usual learning rate are enough for confident predictions."""


class WordBag(nn.Module):
    """A bag of words. Inputs are token ids, token types if the tokenizer has them, and mask, all (N, tokens) int64.

    The outputs are the same as in `TextNetwork`. A token or pair that occurs c times in a text counts 1 + ln c times
    (sublinear term frequency, Manning et al. 2008, 6.4.1): a second occurrence says less than the first. The squares
    of the counts of a text add up to the square of SHARPNESS. If the network is solved, each count is also multiplied by
    its rarity.

    Args:
        vocabulary: number of token ids.
        outputs: number of outputs of each head.
        dropout: share of tokens and pairs that are dropped in training.
        pair_buckets: number of rows for pairs.
    """

    rarity: Tensor

    INPUT_NAMES: ClassVar = {2: ("ids", "mask"), 3: ("ids", "types", "mask")}
    """Names of the inputs by number of inputs."""

    def __init__(
        self,
        vocabulary: int,
        outputs: Mapping[str, int],
        dropout: float,
        *,
        pair_buckets: int = PAIR_BUCKETS,
    ) -> None:
        super().__init__()
        self.pair_buckets = pair_buckets
        self.names, self.output_counts, self.vocabulary = tuple(outputs), tuple(outputs.values()), vocabulary
        self.dropout = nn.Dropout(dropout)
        self.words = nn.ModuleList(nn.Embedding(vocabulary, count) for count in outputs.values())
        self.pairs = nn.ModuleList(nn.Embedding(pair_buckets, count) for count in outputs.values())
        self.register_buffer("rarity", torch.ones(vocabulary + pair_buckets))
        self.biases = nn.ParameterList(torch.zeros(count) for count in outputs.values())
        for table in (*self.words, *self.pairs):
            nn.init.zeros_(table.weight)

    @property
    def width(self) -> int:
        """Number of weights of an output."""
        return self.vocabulary + self.pair_buckets

    def forward(self, *inputs: Tensor) -> Tensor | dict[str, Tensor]:
        ids, pair_ids = inputs[0], self._hash_pairs(inputs[0])
        # A dropped word is dropped for all heads.
        weights = self._weigh(inputs[0], pair_ids, inputs[-1])
        word_weights, pair_weights = (self.dropout(values).unsqueeze(1) for values in weights)
        outputs: dict[str, Tensor] = {}
        for name, word_table, pair_table, bias in zip(self.names, self.words, self.pairs, self.biases, strict=True):
            sums = word_weights @ word_table(ids) + pair_weights @ pair_table(pair_ids)
            outputs[name] = sums.squeeze(1) + bias
        return outputs.get("", outputs)

    def _weigh(self, ids: Tensor, pair_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the weights of tokens (N, tokens) and pairs (N, tokens - 1)."""
        presence = mask.to(self.biases[0].dtype)
        pair_presence = presence[:, 1:] * presence[:, :-1]
        weights, squares = _damp_repeats(ids, presence, self.rarity[ids])
        pair_weights, pair_squares = _damp_repeats(pair_ids, pair_presence, self.rarity[self.vocabulary + pair_ids])
        total = squares.sum(1, keepdim=True) + pair_squares.sum(1, keepdim=True)
        factor = SHARPNESS * total.clamp_min(torch.finfo(total.dtype).tiny).rsqrt()
        return weights * factor, pair_weights * factor

    def _hash_pairs(self, ids: Tensor) -> Tensor:
        """Compute the row of each pair of adjacent tokens, (N, tokens - 1), from ids (N, tokens)."""
        return (ids[:, :-1] * _FIRST_FACTOR + ids[:, 1:] * _SECOND_FACTOR) % self.pair_buckets

    def read_columns(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of the outputs: columns (N, 2 * tokens - 1) of `load_head`'s weights, and their values."""
        pair_ids = self._hash_pairs(inputs[0])
        columns = torch.cat([inputs[0], self.vocabulary + pair_ids], dim=1)
        return columns, torch.cat(self._weigh(inputs[0], pair_ids, inputs[-1]), dim=1)

    @torch.no_grad()
    def load_head(self, number: int, weight: Tensor, bias: Tensor, rarity: Tensor) -> None:
        """Set the weights of a head for texts of length 1, (outputs, width), its bias, (outputs,), and the rarity."""
        self.rarity.copy_(rarity)
        word_weight, pair_weight = weight[:, : self.vocabulary], weight[:, self.vocabulary :]
        for tables, values in ((self.words, word_weight), (self.pairs, pair_weight)):
            cast(nn.Embedding, tables[number]).weight.copy_(values.T / SHARPNESS)
        self.biases[number].copy_(bias)


def _damp_repeats(ids: Tensor, presence: Tensor, rarity: Tensor) -> tuple[Tensor, Tensor]:
    """Scale the presence (N, tokens), 0 or 1, so that c tokens with the same id add up to (1 + ln c) * rarity.

    Also returns the share of each token in the square of this sum.
    """
    counts = _count_repeats(ids.where(presence > 0, -1)).to(presence.dtype)
    sums = presence * (1 + counts.log()) * rarity
    return sums / counts, sums.square() / counts


def _count_repeats(ids: Tensor) -> Tensor:
    """Count how often each id occurs in its row, (N, tokens)."""
    if torch.compiler.is_compiling():  # also during an export: ONNX has no search
        return (ids[:, :, None] == ids[:, None, :]).sum(2)
    # Comparing all tokens with each other took 4.6 GB and five seconds for 32 texts of 4,096 tokens.
    ordered = ids.sort(dim=1).values
    return torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)


def choose_pair_buckets(outputs: int) -> int:
    """Choose the number of rows for pairs in a new network with this number of outputs."""
    return MORE_PAIR_BUCKETS if outputs <= FEW_OUTPUTS else PAIR_BUCKETS
