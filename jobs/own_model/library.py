"""Training from Python: a network and a dataset of one's own, no job file. Run it with `python library.py`."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import drivetrain


def circle(samples, seed):
    points = torch.rand(samples, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return TensorDataset(points, (points.norm(dim=1) < 0.75).long())


if __name__ == "__main__":
    network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    result = drivetrain.train(
        network,
        circle(2000, seed=0),
        circle(500, seed=1),
        name="circle",
        names=["outside", "inside"],
        epochs=10,
        batch_size=50,
        optimizer={"name": "adamw", "lr": 1e-2},
        checkpoint={"best": "validation/accuracy"},
    )
    print(f"{result.best:.3f} accuracy, {result.stopped}; everything else is in {result.folder}")
