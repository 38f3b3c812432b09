"""Sample texts: Spanish maintenance reports with failure mode, cause and priority; long-tailed lengths and classes.

Reports are made of sentences. Some express the mode, the cause or the priority in one of several ways, the others are
filler as technicians write it. Some labels are wrong or not expressed in the text, so no model can be perfect.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runtime.data.sample_data.phrases import CAUSES, DETAILS, MODES, PARTS, PRIORITIES, SITES, Phrases

WRONG = 0.05
"""Share of labels that are random, whatever the text says."""
UNTOLD = 0.08
"""Share of labels that the text does not express."""
MEDIAN, SPREAD = 18, 1.08
"""Words in a report: median and standard deviation of the logarithm (log-normal distribution)."""
SHORTEST, LONGEST = 5, 320
RARER = 0.72
"""Frequency of a class relative to the one before it."""
LABELS = {"modo": MODES, "causa": CAUSES, "prioridad": PRIORITIES}
EVEN = 16
"""Number of first rows that cycle through the classes."""

Draws = np.random.Generator


def write(folder: Path, size: int, seed: int) -> list[Path]:
    """Write reports.csv with the columns descripcion, modo, causa and prioridad; the same for the same seed.

    Args:
        folder: created if it does not exist.
        size: rows.
        seed: of all random numbers.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "reports.csv"
    drawn = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["descripcion", *LABELS])
        rows.writerows(_row(drawn, number) for number in range(size))
    return [path]


def _row(drawn: Draws, number: int) -> list[str]:
    # The first rows contain every class twice, so that small data sets can be split, too.
    true = [
        list(phrases)[number % len(phrases)] if number < EVEN else _class(drawn, phrases) for phrases in LABELS.values()
    ]
    told = [
        _one(drawn, phrases[name])
        for name, phrases in zip(true, LABELS.values(), strict=True)
        if drawn.random() >= UNTOLD
    ]
    written = [
        _class(drawn, phrases) if number >= EVEN and drawn.random() < WRONG else name
        for name, phrases in zip(true, LABELS.values(), strict=True)
    ]
    return [_report(drawn, told), *written]


def _class(drawn: Draws, phrases: Phrases) -> str:
    names = list(phrases)
    shares = np.cumsum(RARER ** np.arange(len(names)))
    return names[int(np.searchsorted(shares, drawn.random() * shares[-1], side="right"))]


def _report(drawn: Draws, told: list[str]) -> str:
    """The informative sentences in random order, with filler around them until the report is long enough."""
    words = int(np.clip(drawn.lognormal(np.log(MEDIAN), SPREAD), SHORTEST, LONGEST))
    sentences = [_filled(drawn, text) for text in told]
    while sum(text.count(" ") + 1 for text in sentences) < words:
        sentences.insert(int(drawn.integers(len(sentences) + 1)), _filled(drawn, _one(drawn, DETAILS)))
    return _typed(drawn, " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences))


def _filled(drawn: Draws, text: str) -> str:
    """Fill in a random part, place and number."""
    full = text.format(parte=_one(drawn, PARTS), lugar=_one(drawn, SITES), numero=drawn.integers(2, 480))
    return full.replace(" de el ", " del ")


def _one(drawn: Draws, options: Sequence[str]) -> str:
    return options[int(drawn.integers(len(options)))]


def _typed(drawn: Draws, text: str) -> str:
    """Add typing habits: some texts in capital letters, some with two letters swapped."""
    if drawn.random() < 0.03:
        return text.upper()
    if drawn.random() < 0.25:
        place = int(drawn.integers(len(text) - 1))
        text = f"{text[:place]}{text[place + 1]}{text[place]}{text[place + 2 :]}"
    return text
