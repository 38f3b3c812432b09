"""A perceptron for tables: numbers and embedded categories."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn


class EmbeddingTable(nn.Embedding):
    """A table of vectors; on a CPU its gradient takes a quarter of the time that torch's embedding needs for it."""

    def forward(self, places: Tensor) -> Tensor:
        if places.is_cuda:
            return super().forward(places)
        return self.weight.index_select(0, places.flatten()).view(*places.shape, self.embedding_dim)


class Mlp(nn.Module):
    """Layers of linear map, ReLU and dropout over numbers and the vectors of categories.

    Inputs are numbers (N, numbers) float32 and categories (N, len(categories)) of whole numbers, each only if there are
    any; the output is (N, outputs). All categories share one table of vectors, in which each column has its own part:
    one lookup for all columns. Place 0 of a column, the unknown category, is zero and stays so, because no training
    row has it.
    """

    offsets: Tensor

    def __init__(
        self,
        numbers: int,
        categories: Sequence[int],
        outputs: int,
        hidden: Sequence[int],
        embedding: int,
        dropout: float,
    ) -> None:
        super().__init__()
        starts = [0, *accumulate(categories)]
        self.numbers = numbers
        self.register_buffer("offsets", torch.tensor(starts[:-1]), persistent=False)
        if categories:
            self.embeddings = EmbeddingTable(starts[-1], embedding)
        widths = [numbers + len(categories) * embedding, *hidden]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(inside, outside), nn.ReLU(), nn.Dropout(dropout) if dropout else nn.Identity())
            for inside, outside in pairwise(widths)
        )
        self.classifier = nn.Linear(widths[-1], outputs)
        self._initialize(starts[:-1])

    def forward(self, *inputs: Tensor) -> Tensor:
        parts = list(inputs)
        if len(self.offsets):
            parts[-1] = self.embeddings(parts[-1] + self.offsets).flatten(1)
        x = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        for layer in self.layers:
            x = layer(x)
        return self.classifier(x)  # type: ignore[no-any-return]

    def _initialize(self, unknown: list[int]) -> None:
        """Kaiming normal for layers (He et al. 2015), truncated normal (0.02) for the outputs, normal for vectors."""
        for layer in self.layers:
            linear = layer[0]  # type: ignore[index]
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
        nn.init.trunc_normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
        if unknown:
            nn.init.normal_(self.embeddings.weight, std=1.0)
            with torch.no_grad():
                self.embeddings.weight[unknown] = 0


def build(
    *,
    numbers: int,
    categories: Sequence[int],
    outputs: int,
    hidden: Sequence[int] = (256, 256),
    embedding: int = 8,
    dropout: float = 0.1,
) -> nn.Module:
    """The network; plain arguments, so that `model/` can store them and `predict` can call again."""
    return Mlp(numbers, categories, outputs, hidden, embedding, dropout)
