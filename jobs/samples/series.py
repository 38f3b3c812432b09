"""Sample series: six channels of eight machines over time, in one of four regimes, under an unmeasured load.

Regimes differ in how the channels move together, not in their level: each machine has its own levels and gains. A surge
swings pressure and flow in opposite phase, a fault adds short bursts to one vibration and shifts the other's phase. The
load moves frequency and current. Windows in which a regime begins are hard, as in real data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import csv

CHANNELS = ("vibration_x", "vibration_y", "temperature", "pressure", "current", "flow")
REGIMES = ("idle", "steady", "surge", "fault")
MACHINES = 8
START = np.datetime64("2024-03-01T00:00:00", "s")
FAULT = REGIMES.index("fault")
SHORTEST_REGIME, MEAN_REGIME = 60, 160
"""Shortest and mean duration of a regime, in rows."""
NOISE = 0.7
"""Factor of the noise in all channels."""
EMPTY_SHARE = 0.002
"""Share of empty cells."""
NEW_ROWS = 800
"""Rows of the file without targets."""
AMPLITUDE = np.array([[0.3, 0.3, 0.1, 0.2, 0.2, 0.2], *[[1.0, 1.0, 0.2, 0.8, 0.8, 0.8]] * 3])
"""Amplitude of each channel (columns) in each regime (rows). Regimes other than `idle` differ in phase only."""
PHASE = np.pi * np.array(
    [[0, 0.5, 0, 0, 0, 0], [0, 0.5, 0, 0, 0.2, 0], [0, 0.5, 0, 0, 0.2, 1.0], [0, 1.1, 0, 0, 0.2, 0]], np.float64
)
"""Phase of each channel (columns) in each regime (rows), in radians."""
Numbers = npt.NDArray[np.float64]
Generator = np.random.Generator


def write(folder: Path, size: int, seed: int) -> list[Path]:
    """Write train.csv with the targets `regime` and `load`, and new.csv without targets, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    gains = np.random.default_rng([seed, 2]).lognormal(0.0, 0.3, (MACHINES, len(CHANNELS)))
    levels = np.random.default_rng([seed, 3]).normal(0.0, 1.0, (MACHINES, len(CHANNELS)))
    rows = -(-size // MACHINES)
    table = _draw_table(rows, np.random.default_rng(seed), gains, levels, START).slice(0, size)
    csv.write_csv(table, folder / "train.csv")
    # The new rows begin an hour after the last one of training.
    new_table = _draw_table(
        -(-NEW_ROWS // MACHINES), np.random.default_rng([seed, 1]), gains, levels, START + rows + 3600
    )
    csv.write_csv(new_table.drop_columns(["regime", "load"]), folder / "new.csv")
    return [folder / "train.csv", folder / "new.csv"]


def _draw_table(rows: int, rng: Generator, gains: Numbers, levels: Numbers, start: np.datetime64) -> pyarrow.Table:
    """`rows` rows of every machine, one per second, machine after machine."""
    regimes, loads, values = [], [], []
    for machine in range(MACHINES):
        regime, load = _draw_regimes(rows, rng), _draw_smooth_curve(rows, rng, 80)
        regimes.append(regime)
        loads.append(load)
        values.append(levels[machine] + gains[machine] * _draw_channels(regime, load, rng))
    table: dict[str, Any] = {"time": np.tile(start + np.arange(rows), MACHINES)}
    table["machine"] = np.repeat([f"machine-{i + 1}" for i in range(MACHINES)], rows)
    for name, column in zip(CHANNELS, np.concatenate(values).T, strict=True):
        table[name] = pyarrow.array(column.round(4), mask=rng.random(len(column)) < EMPTY_SHARE)
    table["regime"] = np.array(REGIMES)[np.concatenate(regimes)]
    table["load"] = np.concatenate(loads).round(4)
    return pyarrow.table(table)


def _draw_regimes(rows: int, rng: Generator) -> npt.NDArray[np.int64]:
    """The regime of each row; consecutive regimes differ."""
    count = rows // SHORTEST_REGIME + 1  # enough even if all are the shortest
    durations = SHORTEST_REGIME + rng.geometric(1 / (MEAN_REGIME - SHORTEST_REGIME), count)
    jumps = rng.integers(1, len(REGIMES), count)  # from 1 to 3, so that the next regime is another one
    return np.repeat(np.cumsum(jumps) % len(REGIMES), durations)[:rows]


def _draw_smooth_curve(rows: int, rng: Generator, width: int) -> Numbers:
    """A random curve between 0 and 1 that varies over about `width` rows."""
    kernel = np.hanning(2 * width + 3)  # two more than needed, since both ends are zero
    # The window keeps the variance of the noise at 1; the logistic function then spreads it over 0 to 1.
    curve = np.convolve(rng.normal(size=rows + len(kernel) - 1), kernel / np.sqrt((kernel**2).sum()), "valid")
    return np.asarray(1 / (1 + np.exp(-1.5 * curve)))


def _draw_channels(regime: npt.NDArray[np.int64], load: Numbers, rng: Generator) -> Numbers:
    """Shape (rows, channels), before levels and gains."""
    rows = len(regime)
    # Cycles per row: more under load, and never quite regular.
    cycle = np.cumsum(2 * np.pi * (0.06 + 0.10 * load + 0.01 * rng.normal(size=rows)))
    wave = AMPLITUDE[regime] * np.sin(cycle[:, None] + PHASE[regime])
    # A moving average, so that the noise of neighbouring rows is correlated.
    white_noise = rng.normal(size=(rows + 4, len(CHANNELS)))
    noise = NOISE * sum(white_noise[lag : lag + rows] * weight for lag, weight in enumerate((0.2, 0.3, 0.5, 0.6, 0.5)))
    bursts = (regime == FAULT) * (rng.random(rows) < 0.06) * rng.normal(0.0, 2.5, rows)
    wave[:, CHANNELS.index("vibration_x")] += bursts
    wave[:, CHANNELS.index("temperature")] += 0.8 * _draw_smooth_curve(rows, rng, 200)
    wave[:, CHANNELS.index("current")] += 1.2 * load**2
    return np.asarray(wave + noise)
