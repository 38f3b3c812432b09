"""Sample series: six channels of eight machines over time, in one of four regimes, under an unmeasured load.

Regimes differ in how the channels move together, not in their level: each machine has its own levels and gains. A surge
swings pressure and flow in opposite phase, a fault adds short bursts to one vibration and shifts the other's phase. The
load moves frequency and current. Windows in which a regime begins are hard, as in real data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow

CHANNELS = ("vibration_x", "vibration_y", "temperature", "pressure", "current", "flow")
REGIMES = ("idle", "steady", "surge", "fault")
MACHINES = 8
START = np.datetime64("2024-03-01T00:00:00", "s")
SHORTEST, MEAN = 60, 160
"""Shortest and mean duration of a regime, in rows."""
NOISE = 0.7
EMPTY = 0.002
"""Share of empty cells."""
NEW = 800
"""Rows of the file without targets."""
# Rows by regime, columns by channel: amplitude and phase of each channel.
SWING = np.array(
    [
        [0.3, 0.3, 0.1, 0.2, 0.2, 0.2],
        [1.0, 1.0, 0.2, 0.8, 0.8, 0.8],
        [1.0, 1.0, 0.2, 0.8, 0.8, 0.8],
        [1.0, 1.0, 0.2, 0.8, 0.8, 0.8],
    ]
)
PHASE = (
    np.array(
        [
            [0.0, 0.5, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.5, 0.0, 0.0, 0.2, 0.0],
            [0.0, 0.5, 0.0, 0.0, 0.2, 1.0],
            [0.0, 1.1, 0.0, 0.0, 0.2, 0.0],
        ]
    )
    * np.pi
)

Numbers = npt.NDArray[np.float64]
Draws = np.random.Generator


def write(folder: Path, size: int, seed: int) -> list[Path]:
    """Write train.csv with the targets `regime` and `load`, and new.csv without targets; the same for the same seed.

    Args:
        folder: created if it does not exist.
        size: rows of train.csv, over all machines.
        seed: of all random numbers.

    Returns:
        The files.
    """
    from pyarrow import csv

    folder.mkdir(parents=True, exist_ok=True)
    gains = np.random.default_rng([seed, 2]).lognormal(0.0, 0.3, (MACHINES, len(CHANNELS)))
    levels = np.random.default_rng([seed, 3]).normal(0.0, 1.0, (MACHINES, len(CHANNELS)))
    rows = -(-size // MACHINES)
    made = _table(rows, np.random.default_rng(seed), gains, levels, START).slice(0, size)
    csv.write_csv(made, folder / "train.csv")
    fresh = _table(-(-NEW // MACHINES), np.random.default_rng([seed, 1]), gains, levels, START + rows + 3600)
    csv.write_csv(fresh.drop_columns(["regime", "load"]), folder / "new.csv")
    return [folder / "train.csv", folder / "new.csv"]


def _table(rows: int, drawn: Draws, gains: Numbers, levels: Numbers, start: np.datetime64) -> pyarrow.Table:
    """`rows` rows of every machine, one per second, machine after machine."""
    import pyarrow

    regimes, loads, values = [], [], []
    for machine in range(MACHINES):
        regime, load = _regimes(rows, drawn), _smooth(rows, drawn, 80)
        regimes.append(regime)
        loads.append(load)
        values.append(levels[machine] + gains[machine] * _channels(regime, load, drawn))
    table: dict[str, Any] = {"time": np.tile(start + np.arange(rows), MACHINES)}
    table["machine"] = np.repeat([f"machine-{i + 1}" for i in range(MACHINES)], rows)
    for name, column in zip(CHANNELS, np.concatenate(values).T, strict=True):
        table[name] = pyarrow.array(column.round(4), mask=drawn.random(len(column)) < EMPTY)
    table["regime"] = np.array(REGIMES)[np.concatenate(regimes)]
    table["load"] = np.concatenate(loads).round(4)
    return pyarrow.table(table)


def _regimes(rows: int, drawn: Draws) -> npt.NDArray[np.int64]:
    """The regime of each row; consecutive regimes differ."""
    count = rows // SHORTEST + 1
    lasting = SHORTEST + drawn.geometric(1 / (MEAN - SHORTEST), count)
    steps = drawn.integers(1, len(REGIMES), count)
    return np.repeat(np.cumsum(steps) % len(REGIMES), lasting)[:rows]


def _smooth(rows: int, drawn: Draws, width: int) -> Numbers:
    """A random curve between 0 and 1 that varies over about `width` rows."""
    kernel = np.hanning(2 * width + 3)
    curve = np.convolve(drawn.normal(size=rows + len(kernel) - 1), kernel / np.sqrt((kernel**2).sum()), "valid")
    return np.asarray(1 / (1 + np.exp(-1.5 * curve)))


def _channels(regime: npt.NDArray[np.int64], load: Numbers, drawn: Draws) -> Numbers:
    """Shape (rows, channels), before levels and gains."""
    rows = len(regime)
    cycle = np.cumsum(2 * np.pi * (0.06 + 0.10 * load + 0.01 * drawn.normal(size=rows)))
    wave = SWING[regime] * np.sin(cycle[:, None] + PHASE[regime])
    white = drawn.normal(size=(rows + 4, len(CHANNELS)))
    noise = NOISE * sum(white[lag : lag + rows] * weight for lag, weight in enumerate((0.2, 0.3, 0.5, 0.6, 0.5)))
    bursts = (regime == 3) * (drawn.random(rows) < 0.06) * drawn.normal(0.0, 2.5, rows)
    wave[:, 0] += bursts
    wave[:, 2] += 0.8 * _smooth(rows, drawn, 200)
    wave[:, 4] += 1.2 * load**2
    return np.asarray(wave + noise)
