"""Implements TabM for tables (Gorishniy et al. 2025): many perceptrons with shared weights, trained as one network.

As in BatchEnsemble (Wen et al. 2020), each member scales the inputs and outputs of a shared layer by its own vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain.data.dataset import Head
from drivetrain.models.networks.mlp import EmbeddedColumns


class MemberLayer(nn.Module):
    """A linear layer with shared weights: (N, 1 or members, width_in) to (N, members, width_out).

    Parameters of single members are stored as vectors of all members, because the optimizer has no weight decay for
    vectors: a factor should not decay to 0.
    """

    def __init__(self, width_in: int, width_out: int, members: int) -> None:
        super().__init__()
        self.members = members
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.input_factors = nn.Parameter(torch.ones(members * width_in))
        self.output_factors = nn.Parameter(torch.ones(members * width_out))
        self.bias = nn.Parameter(torch.zeros(members * width_out))
        nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x * self._divide(self.input_factors, x))
        return torch.addcmul(self._divide(self.bias, x), x, self._divide(self.output_factors, x))

    def _divide(self, vectors: Tensor, x: Tensor) -> Tensor:
        # Keeps half precision: float32 factors would make all activations float32.
        return vectors.view(self.members, -1).to(x.dtype)


class MemberOutputs(nn.Module):
    """A separate linear layer for each member: (N, members, width) to (N, members, outputs)."""

    def __init__(self, width: int, outputs: int, members: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, width, outputs))
        self.bias = nn.Parameter(torch.zeros(members * outputs))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.bmm(x.transpose(0, 1), self.weight).transpose(0, 1)
        return outputs + self.bias.view(len(self.weight), -1).to(outputs.dtype)


class TabM(EmbeddedColumns):
    """An ensemble whose members differ at first by their random signs of the columns and by their output layers.

    In training it returns the outputs of all members, (N, members, outputs), whose losses are averaged. In evaluation
    it returns (N, outputs): the mean of the members' numbers, or the logarithms or log odds of mean probabilities.
    `edges` are the same as for `Mlp`.
    """

    def __init__(
        self,
        numbers: int,
        categories: Sequence[int],
        outputs: int,
        kind: Literal["numbers", "labels", "classes"],
        members: int,
        hidden: Sequence[int],
        embedding: int,
        dropout: float,
        edges: Sequence[Sequence[float]] = (),
        number_embedding: int = 0,
        skip: bool = False,
    ) -> None:
        super().__init__(numbers, categories, embedding, edges, number_embedding)
        self.kind = kind
        widths = [self.width, *hidden]
        layers = [MemberLayer(width_in, width_out, members) for width_in, width_out in pairwise(widths)]
        self.layers = nn.ModuleList(
            nn.Sequential(layer, nn.ReLU(), nn.Dropout(dropout) if dropout else nn.Identity()) for layer in layers
        )
        self.classifier = MemberOutputs(widths[-1], outputs, members)
        self._draw_signs(layers[0])
        self.initialize_categories()
        if skip:
            self.add_skip(categories, outputs, self.classifier.weight)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = self.embed(*inputs).unsqueeze(1)
        for layer in self.layers:
            x = layer(x)
        outputs: Tensor = self.classifier(x)
        if self.skip is not None:
            outputs = outputs + self.compute_skip(*inputs).unsqueeze(1)
        return outputs if self.training else average_members(outputs, self.kind)

    @torch.no_grad()
    def _draw_signs(self, layer: MemberLayer) -> None:
        """Draw a sign for each member and column, not for each number of an embedding, which would blur the column."""
        signs = torch.randint(2, (layer.members, len(self.column_widths))) * 2.0 - 1
        by_column = [signs[:, [column]].expand(-1, width) for column, width in enumerate(self.column_widths)]
        layer.input_factors.copy_(torch.cat(by_column, dim=1).flatten())


def average_members(outputs: Tensor, kind: str) -> Tensor:
    """Average the outputs of an ensemble's members, (N, members, outputs); `kind` is a result of `choose_kind`."""
    outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
    if kind == "numbers":
        return outputs.mean(1)
    if kind == "labels":
        # The 1/members of both means cancel.
        return functional.logsigmoid(outputs).logsumexp(1) - functional.logsigmoid(-outputs).logsumexp(1)
    return outputs.log_softmax(2).logsumexp(1) - math.log(outputs.shape[1])


def choose_kind(head: Head) -> str:
    """Return the meaning of a head's outputs: exclusive `classes`, `labels` that can be true together, or `numbers`."""
    if not head.classes:
        return "numbers"
    return "labels" if head.several else "classes"
