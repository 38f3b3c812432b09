"""Implements a CNN-LSTM for time series: convolutions over time, then an LSTM (Hochreiter & Schmidhuber 1997)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from drivetrain.models.frozen_split import FrozenSplit, count_leading_frozen

STATISTICS = 8
"""Number of statistics of a channel."""


def compute_statistics(windows: Tensor) -> Tensor:
    """Compute eight statistics of each channel of windows (N, time, channels): (N, 8 * channels)."""
    time = torch.linspace(-1, 1, windows.shape[1], device=windows.device).view(1, -1, 1)
    slope = (windows * time).sum(1) / (time**2).sum().clamp_min(1e-9)
    steps = windows.diff(dim=1).abs().mean(1) if windows.shape[1] > 1 else torch.zeros_like(slope)
    spread = windows.std(1, correction=0)
    first_and_last = (windows[:, 0], windows[:, -1])
    return torch.cat([windows.mean(1), spread, windows.amin(1), windows.amax(1), *first_and_last, slope, steps], dim=1)


class CnnLstm(nn.Module):
    """Convolutions with ReLU and max pooling detect short patterns, the LSTM models their order.

    Input (N, T, channels) float32, output (N, outputs): a linear map of the LSTM's last hidden state, of both
    directions if it is bidirectional.
    """

    def __init__(
        self,
        channels: int,
        outputs: int,
        cnn_channels: Sequence[int] = (64, 64),
        kernel: int = 5,
        pool: PositiveInt = 2,
        lstm_hidden: int = 128,
        lstm_layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.1,
        skip: bool = False,
    ) -> None:
        super().__init__()
        widths = [channels, *cnn_channels]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels_in, channels_out, kernel, padding=kernel // 2)
            for channels_in, channels_out in pairwise(widths)
        )
        self.pool = nn.MaxPool1d(pool) if pool > 1 else nn.Identity()
        # torch warns about dropout in an LSTM with a single layer, where it has no effect.
        lstm_dropout = dropout if lstm_layers > 1 else 0.0
        self.lstm = nn.LSTM(
            widths[-1], lstm_hidden, lstm_layers, batch_first=True, bidirectional=bidirectional, dropout=lstm_dropout
        )
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.classifier = nn.Linear(lstm_hidden * (1 + bidirectional), outputs)
        self._initialize()
        # A linear model of statistics; the other outputs begin at 0.
        self.skip = nn.Linear(STATISTICS * channels, outputs) if skip else None
        if self.skip is not None:
            for tensor in (*self.skip.parameters(), self.classifier.weight):
                nn.init.zeros_(tensor)

    def forward(self, windows: Tensor) -> Tensor:
        outputs = self.outputs(self.state(self.convolve(windows.transpose(1, 2), self.convolutions)))
        return outputs if self.skip is None else outputs + self.skip(compute_statistics(windows))

    def convolve(self, x: Tensor, convolutions: Iterable[nn.Module]) -> Tensor:
        """Convolve and pool in turn: (N, channels, T) to (N, channels of the last convolution, remaining T)."""
        for convolution in convolutions:
            x = self.pool(torch.relu(convolution(x)))
        return x

    def state(self, x: Tensor) -> Tensor:
        """Return the LSTM's last hidden state, (N, hidden), of both directions if it is bidirectional."""
        _, (last, _) = self.lstm(x.transpose(1, 2))
        return torch.cat((last[-2], last[-1]), dim=1) if self.lstm.bidirectional else last[-1]

    def outputs(self, state: Tensor) -> Tensor:
        """Return the outputs (N, outputs) from states (N, hidden)."""
        return self.classifier(self.dropout(state))  # type: ignore[no-any-return]

    def split_at_frozen(self, windows: Tensor) -> FrozenSplit | None:
        """Split before the first trainable convolution, or after the LSTM if it is frozen too."""
        if self.skip is not None:
            return None  # the windows are needed again
        convolutions = list(self.convolutions)
        count = count_leading_frozen(convolutions)
        frozen, trainable = convolutions[:count], convolutions[count:]
        # A prefix returns a tuple: the inputs of the rest.
        if not trainable and not any(p.requires_grad for p in self.lstm.parameters()):
            return FrozenSplit(
                "the convolutions and the LSTM",
                lambda x: (self.state(self.convolve(x.transpose(1, 2), frozen)),),
                self.outputs,
            )
        if not frozen:
            return None
        return FrozenSplit(
            f"{count} of {len(convolutions)} convolutions",
            lambda x: (self.convolve(x.transpose(1, 2), frozen),),
            lambda x: self.outputs(self.state(self.convolve(x, trainable))),
        )

    def _initialize(self) -> None:
        """Initialize convolutions with Kaiming normal (He et al. 2015), the outputs with truncated normal (0.02).

        The LSTM gets Xavier uniform input weights, orthogonal recurrent weights, and a forget gate bias of 1
        (Jozefowicz et al. 2015).
        """
        for convolution in self.convolutions:
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")  # type: ignore[arg-type]
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        hidden = self.lstm.hidden_size
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(parameter)
            elif name.startswith("weight_hh"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
                # torch adds both biases, so one of them is enough. It orders the gates as input, forget, cell, output.
                if name.startswith("bias_ih"):
                    nn.init.ones_(parameter[hidden : 2 * hidden])
        nn.init.trunc_normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
