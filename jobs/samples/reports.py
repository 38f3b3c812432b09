"""Sample texts: Spanish maintenance reports with failure mode, cause and priority; long-tailed lengths and classes.

Reports are made of sentences. Some express the mode, the cause or the priority in one of several ways, the others are
filler as technicians write it; reports.yaml has them. Some labels are wrong or not expressed in the text, so no model can
be perfect.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

PHRASES = yaml.safe_load(Path(__file__).with_name("reports.yaml").read_text(encoding="utf-8"))
LABELS: dict[str, dict[str, list[str]]] = {name: PHRASES[name] for name in ("modo", "causa", "prioridad")}
"""By label: phrases that express each class, most frequent class first."""
WRONG_SHARE = 0.05
"""Share of labels that are random, whatever the text says."""
UNEXPRESSED_SHARE = 0.08
"""Share of labels that the text does not express."""
MEDIAN_WORDS, WORDS_LOG_STD = 18, 1.08
"""Words in a report: median and standard deviation of the logarithm (log-normal distribution)."""
MIN_WORDS, MAX_WORDS = 5, 320
"""Words in the shortest and the longest report."""
CAPITALS_SHARE, SWAPPED_SHARE = 0.03, 0.25
"""Shares of texts in capital letters, and, of the others, with two letters swapped."""
FREQUENCY_RATIO = 0.72
"""Frequency of a class relative to the one before it."""
BALANCED_ROWS = 16
"""Number of first rows that cycle through the classes: each of the 8 causes, which are most, occurs twice."""

Generator = np.random.Generator


def write(folder: Path, size: int, seed: int) -> list[Path]:
    """Write reports.csv with the columns descripcion, modo, causa and prioridad into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "reports.csv"
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["descripcion", *LABELS])
        rows.writerows(_write_row(rng, number) for number in range(size))
    return [path]


def _write_row(rng: Generator, number: int) -> list[str]:
    """The text of a report, and its labels as they were written."""
    # The first rows contain every class twice, so that small data sets can be split, too.
    is_balanced = number < BALANCED_ROWS
    true_classes = [
        list(phrases)[number % len(phrases)] if is_balanced else _draw_class(rng, phrases)
        for phrases in LABELS.values()
    ]
    statements = [
        _choose(rng, phrases[name])
        for name, phrases in zip(true_classes, LABELS.values(), strict=True)
        if rng.random() >= UNEXPRESSED_SHARE
    ]
    written_labels = [
        _draw_class(rng, phrases) if not is_balanced and rng.random() < WRONG_SHARE else name
        for name, phrases in zip(true_classes, LABELS.values(), strict=True)
    ]
    return [_write_report(rng, statements), *written_labels]


def _draw_class(rng: Generator, phrases: dict[str, list[str]]) -> str:
    names = list(phrases)
    shares = np.cumsum(FREQUENCY_RATIO ** np.arange(len(names)))
    return names[int(np.searchsorted(shares, rng.random() * shares[-1], side="right"))]


def _write_report(rng: Generator, statements: list[str]) -> str:
    """The informative sentences in random order, with filler around them until the report is long enough."""
    word_count = int(np.clip(rng.lognormal(np.log(MEDIAN_WORDS), WORDS_LOG_STD), MIN_WORDS, MAX_WORDS))
    sentences = [_fill_placeholders(rng, text) for text in statements]
    while sum(text.count(" ") + 1 for text in sentences) < word_count:
        sentences.insert(
            int(rng.integers(len(sentences) + 1)), _fill_placeholders(rng, _choose(rng, PHRASES["detalles"]))
        )
    return _add_typing_habits(rng, " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences))


def _fill_placeholders(rng: Generator, text: str) -> str:
    """Fill in a random part, place and number."""
    part, site = _choose(rng, PHRASES["partes"]), _choose(rng, PHRASES["lugares"])
    full = text.format(parte=part, lugar=site, numero=rng.integers(2, 480))
    return full.replace(" de el ", " del ")  # Spanish contracts de + el


def _choose(rng: Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def _add_typing_habits(rng: Generator, text: str) -> str:
    """Add typing habits: some texts in capital letters, some with two letters swapped."""
    if rng.random() < CAPITALS_SHARE:
        return text.upper()
    if rng.random() < SWAPPED_SHARE:
        position = int(rng.integers(len(text) - 1))
        text = f"{text[:position]}{text[position + 1]}{text[position]}{text[position + 2 :]}"
    return text
