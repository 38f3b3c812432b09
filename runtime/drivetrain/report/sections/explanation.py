"""What the model looks at: the importance of its input columns, or heat maps over pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.report.blocks import Section, Table, Text, Tone
from drivetrain.report.formatting import align_numbers, format_json, format_number, shorten
from drivetrain.report.sections.mistakes import MAX_CHARACTERS, make_sample_block, read_photo
from drivetrain.system.printable import printable
from drivetrain.system.run_records import read_integer, read_mapping, read_number, read_objects

MAX_COLUMNS = 40
"""Columns that are listed; explanation.json has all."""


def explanation_sections(explanation: Mapping[str, Any]) -> Iterator[Section]:
    """The sections on the content of explanation.json, as `drivetrain evaluate --explain` writes it."""
    importance = read_mapping(explanation, "importance")
    if columns := read_columns(explanation):
        yield _make_importance_section(importance, columns)
    if photos := [photo for row in read_objects(explanation, "maps") if (photo := read_photo(row))]:
        text = Text(
            "Where the network saw the class that it predicted (LayerCAM of the last convolutions): nothing where the picture is "
            "unchanged, most where it is yellow. First the most confident mistakes, then some right ones."
            + _describe_empty_maps(read_integer(explanation, "empty_maps") or 0),
            Tone.QUIET,
        )
        fits = sum(len(photo.data) for photo in photos) <= MAX_CHARACTERS
        yield Section("heat-maps", "Where the network looked", (text, make_sample_block(photos, fits)))


def _describe_empty_maps(count: int) -> str:
    return f" {count} of the maps are empty: no place speaks for the predicted class." if count else ""


def read_columns(explanation: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Name, importance and its standard deviation of each column; what is damaged is left out."""
    rows = read_objects(read_mapping(explanation, "importance"), "columns")
    columns = [(row.get("column"), read_number(row, "mean"), read_number(row, "spread")) for row in rows]
    return [
        (printable(str(name)), mean, spread)
        for name, mean, spread in columns
        if name is not None and mean is not None and spread is not None
    ]


def _make_importance_section(importance: Mapping[str, Any], columns: list[tuple[str, float, float]]) -> Section:
    metric, listed = format_json(importance.get("metric")), columns[:MAX_COLUMNS]
    rows, count = read_integer(importance, "rows"), read_integer(importance, "of")
    about = (
        f"How much worse {metric} ({format_number(read_number(importance, 'value'))}) gets if the values of a column are permuted: the "
        f"mean and the standard deviation of {format_number(read_integer(importance, 'repetitions'))} permutations, on "
        f"{format_number(rows)} of {format_number(count)} validation rows. Columns that say the same share their importance."
    )
    numbers = align_numbers([mean for _, mean, _ in listed]), align_numbers([spread for _, _, spread in listed])
    names = [shorten(name, 60) for name, _, _ in listed]
    # What is within two deviations of nothing may be chance.
    tones = {index: Tone.QUIET for index, (_, mean, spread) in enumerate(listed) if mean <= 2 * spread}
    hidden = [Text(f"{len(columns) - len(listed):,} more are in explanation.json.", Tone.QUIET)]
    table = Table(("column", "worse by", "deviation"), tuple(zip(names, *numbers, strict=True)), tones)
    blocks = (Text(about, Tone.QUIET), table, *(hidden if len(columns) > len(listed) else ()))
    return Section("importance", "Importance of the columns", blocks)
