"""Splits a batch of texts into micro-batches of similar length, which saves padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from drivetrain.data.dataset import Batch, Lengths, onto, read_lengths
from drivetrain.job.text import PASS_TOKENS


@dataclass(frozen=True)
class TokenSplitter:
    """Splitter of batches into micro-batches of at most `tokens` tokens."""

    tokens: int
    """Largest number of tokens in a micro-batch, padding included unless texts keep their order."""
    pass_cost: int = PASS_TOKENS
    """Cost of one more pass through the network, in tokens."""
    in_order: bool = False
    """Whether texts keep their order, for packed batches; else texts of similar length are grouped."""

    def __call__(self, batch: Batch, most: int) -> Iterator[Batch]:
        """Yield micro-batches of at most `most` samples; a text of more than `tokens` tokens gets its own.

        Args:
            batch: inputs (N, tokens, ...). The last input is the mask (N, tokens) of real tokens, which come first.
                Batches with a single input (one row per sample) and empty batches are split in their given order.
        """
        if len(batch.inputs) == 1 or not len(batch):
            return batch.split(most)
        lengths = read_lengths(batch.inputs[-1])
        return self._keep_order(batch, most, lengths) if self.in_order else self._group(batch, most, lengths)

    def _group(self, batch: Batch, most: int, lengths: Lengths) -> Iterator[Batch]:
        """Yield micro-batches, longest texts first, each padded only to its longest text."""
        for rows in pieces(lengths, most, self.tokens, self.pass_cost):
            index = onto(batch.inputs[0].device, rows)
            longest = int(lengths[rows].max())
            yield Batch(
                batch.ids[rows],
                tuple(x[index, :longest] for x in batch.inputs),
                {name: y[index] for name, y in batch.targets.items()},
                lengths[rows],
            )

    def _keep_order(self, batch: Batch, most: int, lengths: Lengths) -> Iterator[Batch]:
        """Yield micro-batches without changing the order of the samples; padding does not count as tokens."""
        first, token_count = 0, 0
        ends = []
        for position, length in enumerate(lengths.tolist()):
            if position > first and (token_count + length > self.tokens or position - first == most):
                ends.append(position)
                first, token_count = position, 0
            token_count += length
        for start, end in pairwise([0, *ends, len(lengths)]):
            part, longest = batch.between(start, end), int(lengths[start:end].max())
            yield replace(part, inputs=tuple(x[:, :longest] for x in part.inputs), lengths=lengths[start:end])


def pieces(lengths: Lengths, most: int, tokens: int, pass_cost: int = PASS_TOKENS) -> list[Lengths]:
    """Group rows into micro-batches: neighbors in the order of length, cut for the least total cost in tokens.

    The result depends on the lengths only; rows of equal length keep their order.
    """
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order].tolist()
    # Dynamic programming from the end: the cost of all rows from each row on, and the end of its micro-batch.
    cost, ends = [0] * (len(sizes) + 1), [0] * len(sizes)
    for first in reversed(range(len(sizes))):
        count = max(1, min(most, tokens // max(1, sizes[first])))
        cost[first], ends[first] = min(
            (pass_cost + (end - first) * sizes[first] + cost[end], end)
            for end in range(first + 1, min(len(sizes), first + count) + 1)
        )
    groups, first = [], 0
    while first < len(sizes):
        groups.append(order[first : ends[first]])
        first = ends[first]
    return groups


def count_computed(lengths: Lengths, most: int, tokens: int, pass_cost: int = PASS_TOKENS) -> int:
    """Count the tokens computed for a batch that `pieces` splits, padding included."""
    return sum(len(rows) * int(lengths[rows].max()) for rows in pieces(lengths, most, tokens, pass_cost))
