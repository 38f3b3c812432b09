"""Sample table: machines with 10 categorical and 39 numeric columns, missing cells, and whether and when each fails.

The signal is spread: wear from age, hours and load; a fluid that only suits some models; sensors that rise with wear
only on hot sites. The rest is noise, some of it correlated. Failure is sampled from a probability, so no model can be
always right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import csv, parquet

SENSORS = ("bearing", "motor", "gearbox", "oil", "coolant", "casing", "rotor", "intake", "exhaust", "cabinet")
CATEGORIES = {
    "site": [f"site-{i:02d}" for i in range(12)],
    "model": [f"X{100 + 7 * i}" for i in range(30)],
    "supplier": [f"supplier {chr(65 + i)}" for i in range(8)],
    "operator": [f"op-{i:03d}" for i in range(60)],
    "fluid": ["mineral", "synthetic", "semi", "bio", "water"],
    "shift": ["day", "evening", "night"],
    "zone": ["north", "south", "east", "west", "yard", "hall"],
    "contract": ["none", "basic", "full", "leased"],
    "grade": ["A", "B", "C", "D", "E"],
    "region": [*range(1, 10)],
}
"""The values of each categorical column; the regions are numbers."""
EMPTY_SENSORS, EMPTY_OIL, EMPTY_GRADE, EMPTY_OPERATOR = 0.03, 0.2, 0.1, 0.05
"""Shares of empty cells."""
NEW_ROWS = 200
"""Rows of the file without targets."""

Columns = dict[str, npt.NDArray[Any]]
Draws = np.random.Generator


def write(folder: Path, size: int, seed: int) -> list[Path]:
    """Write train.parquet with targets `fails` (yes, no) and `hours_left`, and new.csv without, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = _draw_table(size, np.random.default_rng(seed), _CategoryEffects(seed))
    parquet.write_table(table, folder / "train.parquet")
    fresh = _draw_table(NEW_ROWS, np.random.default_rng([seed, 1]), _CategoryEffects(seed))
    csv.write_csv(fresh.drop_columns(["fails", "hours_left"]), folder / "new.csv")
    return [folder / "train.parquet", folder / "new.csv"]


class _CategoryEffects:
    """The effect of each category; the same in both files."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 2])
        counts = {name: len(values) for name, values in CATEGORIES.items()}
        self.site, self.model = rng.normal(size=counts["site"]), rng.normal(size=counts["model"])
        self.supplier = 0.5 * rng.normal(size=counts["supplier"])
        self.operator = 0.5 * rng.normal(size=counts["operator"])
        self.suits = 1.2 * rng.normal(size=(counts["model"], counts["fluid"]))
        self.sensors = rng.normal(size=len(SENSORS))


def _draw_table(size: int, rng: Draws, effects: _CategoryEffects) -> pyarrow.Table:
    """A pyarrow table; categories as text, missing cells as nulls."""
    codes = _draw_codes(size, rng)
    numbers, wear = _draw_numbers(size, rng, codes, effects)
    score = _compute_score(rng, codes, numbers, wear, effects)
    texts = {name: np.array(values)[codes[name]] for name, values in CATEGORIES.items()}
    empty = {"operator": EMPTY_OPERATOR, "grade": EMPTY_GRADE, "oil_ppm": EMPTY_OIL}
    empty |= {name: EMPTY_SENSORS for name in numbers if name.endswith(("_mean", "_max", "_spread"))}
    fails = np.where(rng.random(size) < 1 / (1 + np.exp(-score)), "yes", "no")
    hours_left = np.round(400 * np.exp(-0.4 * score + 0.25 * rng.normal(size=size)), 1)
    columns = {"id": [f"M{number:07d}" for number in rng.permutation(size)]}
    for name, values in {**texts, **numbers}.items():
        columns[name] = pyarrow.array(values, mask=rng.random(size) < empty[name] if name in empty else None)
    return pyarrow.table(columns | {"fails": fails, "hours_left": hours_left})


def _draw_codes(size: int, rng: Draws) -> Columns:
    """Categories as integers; operators have a long-tailed distribution."""
    codes = {name: rng.integers(len(values), size=size) for name, values in CATEGORIES.items() if name != "operator"}
    operators = len(CATEGORIES["operator"])
    codes["operator"] = np.minimum(rng.exponential(operators / 5, size).astype(np.int64), operators - 1)
    return codes


def _draw_numbers(
    size: int, rng: Draws, codes: Columns, effects: _CategoryEffects
) -> tuple[Columns, npt.NDArray[np.float64]]:
    """Numeric columns, and the wear that some of them depend on."""
    age = rng.gamma(2.0, 30.0, size)
    load = rng.beta(2.0, 3.0, size)
    hours = age * 300 * (0.3 + load) * rng.lognormal(0.0, 0.2, size)
    overhauled = rng.random(size) < 0.3
    wear = np.log1p(hours / 5000) * (0.5 + load) - 0.7 * overhauled
    wear = (wear - wear.mean()) / wear.std()
    columns: Columns = {
        "age_months": age.astype(np.int64),
        "hours": hours.round(),
        "overhauled": overhauled,
        "starts": rng.poisson(20 + 60 * (1 - load)),
        "alarms": rng.poisson(np.exp(0.3 * wear)),
        "humidity": rng.uniform(20, 95, size).round(1),
        "oil_ppm": np.exp(2 + 0.5 * wear + 0.6 * rng.normal(size=size)),
        "pressure_drop": 1.5 + 0.2 * wear**2 + 0.4 * rng.normal(size=size),
        "power": 40 * load + 3 * rng.normal(size=size),
    }
    hot = effects.site[codes["site"]] > 0
    for name, effect in zip(SENSORS, effects.sensors, strict=True):
        mean = 60 + 8 * effects.site[codes["site"]] + 6 * effect * wear * hot + 5 * rng.normal(size=size)
        spread = np.exp(0.7 + 0.3 * rng.normal(size=size))
        columns[f"{name}_mean"], columns[f"{name}_spread"] = mean, spread
        columns[f"{name}_max"] = mean + spread * (2 + np.abs(rng.normal(size=size)))
    return columns, wear


def _compute_score(
    rng: Draws, codes: Columns, numbers: Columns, wear: npt.NDArray[np.float64], effects: _CategoryEffects
) -> npt.NDArray[np.float64]:
    """The logit of failing."""
    logit = 2.0 * wear + effects.site[codes["site"]] + effects.suits[codes["model"], codes["fluid"]]
    logit += effects.supplier[codes["supplier"]] + effects.operator[codes["operator"]]
    logit += 0.9 * np.sin(numbers["humidity"] / 12) * (codes["shift"] == 2)
    logit -= 0.8 * (codes["contract"] == 2) * (wear > 0) + 0.4 * (codes["region"] % 3)
    return np.asarray(1.3 * logit - 1.2 + 0.3 * rng.normal(size=len(wear)))
