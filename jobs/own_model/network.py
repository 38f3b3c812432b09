"""A small network over readings and load."""

import torch
from layers import stage
from torch import nn


class Network(nn.Module):
    """Input readings (N, 1, T) and loads (N, 1), output (N, outputs)."""

    def __init__(self, width, outputs):
        super().__init__()
        self.features = nn.Sequential(stage(1, width), stage(width, width), stage(width, 2 * width))
        self.classifier = nn.Linear(2 * width + 1, outputs)

    def forward(self, readings, loads):
        return self.classifier(torch.cat([self.features(readings).mean(dim=2), loads], dim=1))


def build(width, outputs):
    """`width` comes from the job, `outputs` from the data."""
    return Network(width, outputs)
