"""Implements a linear model for tables: each output is a sum of one function per column, piecewise linear in numbers.

It is a generalized additive model (Hastie & Tibshirani 1986). Only its output layer is trained, so it is solved quickly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain.models.networks.mlp import BinShares


class LinearTable(nn.Module):
    """A linear layer over numbers, the bin shares of binned numbers, and one-hot categories.

    Inputs are numbers (N, numbers) float32 and category indices (N, len(categories)) int, each only if the table has
    such columns; the output is (N, outputs). `edges` are the ascending bounds of each number's bins; a number without
    edges is not binned.
    """

    binned_numbers: Tensor
    plain_numbers: Tensor

    def __init__(
        self, numbers: int, categories: Sequence[int], outputs: int, edges: Sequence[Sequence[float]] = ()
    ) -> None:
        super().__init__()
        self.numbers, self.sizes = numbers, tuple(categories)
        binned = [column for column, column_edges in enumerate(edges) if column_edges]
        plain = [column for column in range(numbers) if column not in binned]
        self.register_buffer("binned_numbers", torch.tensor(binned, dtype=torch.int64), persistent=False)
        self.register_buffer("plain_numbers", torch.tensor(plain, dtype=torch.int64), persistent=False)
        width = len(plain) + sum(categories)
        if binned:
            self.shares = BinShares([edges[column] for column in binned])
            width += len(binned) * self.shares.max_bins
        self.classifier = nn.Linear(width, outputs)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, *inputs: Tensor) -> Tensor:
        features: list[Tensor] = []
        if self.numbers:
            features.append(inputs[0].index_select(1, self.plain_numbers))
            if len(self.binned_numbers):
                features.append(self.shares(inputs[0].index_select(1, self.binned_numbers)).flatten(1))
        for column, size in enumerate(self.sizes):
            features.append(functional.one_hot(inputs[-1][:, column].long(), size).to(self.classifier.weight.dtype))
        return self.classifier(torch.cat(features, dim=1))  # type: ignore[no-any-return]
