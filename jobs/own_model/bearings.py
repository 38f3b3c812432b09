"""Made-up readings of a vibration sensor on a bearing, as a map-style torch Dataset."""

import numpy as np
import torch
from torch.utils.data import Dataset

READINGS = 128
IMPACTS = (0, 6, 12)
"""How often damage knocks within the readings: never, on the inner ring, on the outer ring."""


class Bearings(Dataset):
    """One item: ((readings (1, READINGS), load (1,)), kind of damage)."""

    def __init__(self, readings, loads, kinds):
        self.readings, self.loads, self.kinds = readings, loads, kinds

    @property
    def targets(self):
        # With all targets at hand, nobody has to read every item to count the classes.
        return self.kinds

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        return (self.readings[index], self.loads[index]), self.kinds[index]


def load(samples, seed=0, shuffled=False):
    """Training and validation data: a fifth of as many samples for validation."""
    return made(samples, seed, shuffled), made(samples // 5, seed + 1, shuffled)


def made(samples, seed, shuffled):
    draw = np.random.default_rng(seed)
    kinds = draw.integers(0, len(IMPACTS), samples)
    loads = draw.uniform(0.4, 1.0, samples)
    time = np.linspace(0, 1, READINGS)
    shaft = np.sin(2 * np.pi * (5 * time + draw.random((samples, 1))))
    phase = time * np.array(IMPACTS)[kinds][:, None] + draw.random((samples, 1))
    # Damage knocks, rings and fades; under load it is louder.
    knocks = np.exp(-8 * (phase % 1)) * np.sin(2 * np.pi * 40 * time) * (kinds > 0)[:, None] * loads[:, None]
    readings = shaft + 1.5 * knocks + draw.normal(0, 0.2, (samples, READINGS))
    if shuffled:
        draw.shuffle(kinds)
    return Bearings(as_tensor(readings)[:, None], as_tensor(loads)[:, None], torch.from_numpy(kinds))


def read(paths):
    """New readings for `predict`: .npz files with `readings` (N, READINGS) and `loads` (N,), without kinds."""
    files = [np.load(path) for path in paths]
    readings, loads = (np.concatenate([file[name] for file in files]) for name in ("readings", "loads"))
    return as_tensor(readings)[:, None], as_tensor(loads)[:, None]


def as_tensor(values):
    return torch.from_numpy(values.astype(np.float32))
