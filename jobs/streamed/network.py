"""A small convolutional network."""

from torch import nn


def build(outputs):
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(outputs),
    )
