"""Layers that network.py imports: files in the same folder can be imported."""

from torch import nn


def stage(inside, outside):
    """Convolution, norm, ReLU and pooling."""
    return nn.Sequential(
        nn.Conv1d(inside, outside, 7, padding=3, bias=False), nn.BatchNorm1d(outside), nn.ReLU(), nn.MaxPool1d(2)
    )
