"""Implements a multilayer perceptron for tables, with embeddings for categories."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class EmbeddingTable(nn.Embedding):
    """An embedding whose backward pass on a CPU takes a quarter of the time of torch's embedding."""

    def forward(self, indices: Tensor) -> Tensor:
        if indices.is_cuda:
            return super().forward(indices)
        return self.weight.index_select(0, indices.flatten()).view(*indices.shape, self.embedding_dim)


MIN_BIN_WIDTH = 1e-6
"""Smallest width of a bin of a scaled number; the slope of a narrower bin could be infinite."""


class BinShares(nn.Module):
    """The share of each bin that is below a number: input (N, numbers), output (N, numbers, bins) from 0 to 1.

    Shares do not change beyond the outer edges, so a value far from all training rows does not give large activations.
    """

    lower_edges: Tensor
    slopes: Tensor

    def __init__(self, edges: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.max_bins = max(map(len, edges)) - 1
        lower_edges, slopes = torch.zeros(len(edges), self.max_bins), torch.zeros(len(edges), self.max_bins)
        for column, column_edges in enumerate(edges):
            bounds, bins = torch.tensor(column_edges), len(column_edges) - 1
            lower_edges[column, :bins] = bounds[:-1]
            slopes[column, :bins] = 1 / bounds.diff().clamp_min(MIN_BIN_WIDTH)
        # Slopes and shares of bins that a column does not have stay 0.
        self.register_buffer("lower_edges", lower_edges, persistent=False)
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        return ((numbers.unsqueeze(2) - self.lower_edges) * self.slopes).clamp(0, 1)


class NumberEmbeddings(nn.Module):
    """Embeds each number as the sum of a piecewise-linear and a linear function of it (Gorishniy et al. 2022).

    Input (N, numbers), output (N, numbers * size). The pieces are between the edges of the column's bins and start at
    zero, so at first the embedding is linear.
    """

    def __init__(self, edges: Sequence[Sequence[float]], size: int) -> None:
        super().__init__()
        self.shares = BinShares(edges)
        self.pieces = nn.Parameter(torch.zeros(len(edges), self.shares.max_bins, size))
        self.weight = nn.Parameter(torch.empty(len(edges), size).uniform_(-(size**-0.5), size**-0.5))
        self.bias = nn.Parameter(torch.empty(len(edges), size).uniform_(-(size**-0.5), size**-0.5))

    def forward(self, numbers: Tensor) -> Tensor:
        pieces = torch.bmm(self.shares(numbers).transpose(0, 1), self.pieces).transpose(0, 1)
        return (pieces + numbers.unsqueeze(2) * self.weight + self.bias).flatten(1)


class EmbeddedColumns(nn.Module):
    """The first part of a network for tables: embeds numbers and categories, and joins all columns to one vector.

    Inputs are numbers (N, numbers) float32 and category indices (N, len(categories)) int64, each only if the table has
    such columns. All categories share one embedding table with a range for each column, so one lookup is enough. The
    first row of each range is for unknown categories. It is zero and stays zero, because no training row uses it.
    Numbers without edges are not embedded.
    """

    offsets: Tensor
    embedded_numbers: Tensor
    plain_numbers: Tensor

    def __init__(
        self,
        numbers: int,
        categories: Sequence[int],
        embedding: int,
        edges: Sequence[Sequence[float]],
        number_embedding: int,
    ) -> None:
        super().__init__()
        starts = [0, *accumulate(categories)]
        self.numbers = numbers
        embedded = [column for column, column_edges in enumerate(edges) if column_edges]
        plain = [column for column in range(numbers) if column not in embedded]
        self.register_buffer("embedded_numbers", torch.tensor(embedded, dtype=torch.int64), persistent=False)
        self.register_buffer("plain_numbers", torch.tensor(plain, dtype=torch.int64), persistent=False)
        if embedded:
            self.number_embeddings = NumberEmbeddings([edges[column] for column in embedded], number_embedding)
        self.register_buffer("offsets", torch.tensor(starts[:-1]), persistent=False)
        if categories:
            self.embeddings = EmbeddingTable(starts[-1], embedding)
        self.column_widths = [1] * len(plain) + [number_embedding] * len(embedded) + [embedding] * len(categories)
        self.width = sum(self.column_widths)
        self.skip: nn.Linear | None = None

    def embed(self, *inputs: Tensor) -> Tensor:
        """Embed the columns as vectors (N, width)."""
        parts = list(inputs)
        if len(self.embedded_numbers):
            numbers = self.number_embeddings(parts[0].index_select(1, self.embedded_numbers))
            plain = [parts[0].index_select(1, self.plain_numbers)] if len(self.plain_numbers) else []
            parts[:1] = [*plain, numbers]
        if len(self.offsets):
            parts[-1] = self.embeddings(parts[-1] + self.offsets).flatten(1)
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def add_skip(self, categories: Sequence[int], outputs: int, other_weight: Tensor) -> None:
        """Add a linear model of the scaled numbers and one-hot categories; the other outputs begin at 0."""
        self.sizes, self.skip = tuple(categories), nn.Linear(self.numbers + sum(categories), outputs)
        for tensor in (*self.skip.parameters(), other_weight):
            nn.init.zeros_(tensor)

    def compute_skip(self, *inputs: Tensor) -> Tensor:
        """Compute the outputs (N, outputs) of the linear model."""
        assert self.skip is not None
        columns = [inputs[0]] if self.numbers else []
        for column, size in enumerate(self.sizes):
            columns.append(functional.one_hot(inputs[-1][:, column].long(), size).to(self.skip.weight.dtype))
        return self.skip(torch.cat(columns, dim=1))  # type: ignore[no-any-return]

    def initialize_categories(self) -> None:
        """Initialize the embeddings of known categories with normal numbers, of unknown categories with 0."""
        if len(self.offsets):
            nn.init.normal_(self.embeddings.weight, std=1.0)
            with torch.no_grad():
                self.embeddings.weight[self.offsets] = 0


class Mlp(EmbeddedColumns):
    """Linear layers with ReLU and dropout over embedded numbers and categories; the output is (N, outputs).

    `edges` are the bounds of each number's bins, ascending; a number without edges is not embedded. Networks that were
    stored by older versions have no edges.
    """

    def __init__(
        self,
        numbers: int,
        categories: Sequence[int],
        outputs: int,
        hidden: Sequence[int] = (256, 256),
        embedding: int = 8,
        dropout: float = 0.1,
        edges: Sequence[Sequence[float]] = (),
        number_embedding: int = 0,
        skip: bool = False,
    ) -> None:
        super().__init__(numbers, categories, embedding, edges, number_embedding)
        widths = [self.width, *hidden]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Dropout(dropout) if dropout else nn.Identity())
            for width_in, width_out in pairwise(widths)
        )
        self.classifier = nn.Linear(widths[-1], outputs)
        self._initialize()
        if skip:
            self.add_skip(categories, outputs, self.classifier.weight)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = self.embed(*inputs)
        for layer in self.layers:
            x = layer(x)
        outputs: Tensor = self.classifier(x)
        return outputs if self.skip is None else outputs + self.compute_skip(*inputs)

    def _initialize(self) -> None:
        """Initialize layers with Kaiming normal (He et al. 2015), outputs with truncated normal (0.02), embeddings."""
        for layer in self.layers:
            linear = layer[0]  # type: ignore[index]
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
        nn.init.trunc_normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
        self.initialize_categories()
