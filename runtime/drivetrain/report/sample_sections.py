"""Single samples: the worst mistakes, predicted against true numbers, and explanations of predictions."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from drivetrain.report.blocks import Block, Chart, Gallery, SamplePicture, Section, Table, Text, Tone, title_of_head
from drivetrain.report.formatting import align_numbers, format_json, format_number, format_share, shorten
from drivetrain.report.log_series import Point, Series
from drivetrain.report.record import Record
from drivetrain.system.printable import printable
from drivetrain.system.run_records import read_integer, read_mapping, read_number, read_objects

_BASE64 = re.compile(r"[A-Za-z0-9+/]{8,60000}={0,2}")
_KINDS = {"iVBORw0KGgo": "image/png", "/9j/": "image/jpeg"}
"""The first characters of these file types in base64."""
MAX_CHARACTERS = 600_000
"""Limit for all pictures together, in characters of the page."""


def list_sample_sections(record: Record) -> Iterator[Section]:
    """Yield the sections that have content, in reading order."""
    mistakes = read_mapping(record.result, "mistakes")
    yield from list_mistake_sections(mistakes)
    yield from list_number_sections(record.result.get("confusion"), mistakes)
    yield from list_explanation_sections(record.explanation)


def list_mistake_sections(mistakes: Mapping[str, object]) -> Iterator[Section]:
    """Yield a section for each head that has mistakes."""
    bytes_left = MAX_CHARACTERS
    for head in mistakes:
        photos = [photo for row in read_objects(mistakes, head) if (photo := read_photo(row))]
        bytes_left -= sum(len(photo.data) for photo in photos)
        if not photos:
            continue
        text = Text("Misclassified samples of the best evaluation, most confident first.", Tone.QUIET)
        blocks = (text, make_sample_block(photos, bytes_left >= 0))
        yield Section(title_of_head("Most confident mistakes", printable(head)), blocks)


def make_sample_block(photos: list[SamplePicture], fits: bool) -> Block:
    """Make the samples as pictures; as a table if some have none, or if they do not fit on the page."""
    if fits and all(photo.data for photo in photos):
        return Gallery(tuple(photos))
    rows = tuple((photo.title, photo.truth, photo.answer, photo.probability) for photo in photos)
    return Table(("sample", "true class", "predicted", "probability"), rows)


def read_photo(row: Mapping[str, Any]) -> SamplePicture | None:
    """Read a stored sample, without its picture if that is damaged; None if the rest is damaged, too."""
    try:
        truth, answer = (shorten(printable(str(row[key])), 40) for key in ("truth", "answer"))
        title, probability = shorten(printable(str(row["title"])), 160), format_share(float(row["probability"]))
    except (KeyError, TypeError, ValueError):
        return None
    data = str(row.get("picture", ""))
    kind = next((kind for start, kind in _KINDS.items() if data.startswith(start)), "")
    is_valid = kind and _BASE64.fullmatch(data)
    return SamplePicture(title, truth, answer, probability, f"data:{kind};base64,{data}" if is_valid else "")


MAX_PLOTS = 6
"""Columns of numbers that have a plot."""


def list_number_sections(confusion: object, mistakes: Mapping[str, object]) -> Iterator[Section]:
    """Yield a section for each head of numbers in the evaluation whose weights were kept.

    Args:
        confusion: of result.json: by head the columns, and pairs of true and predicted numbers.
        mistakes: of result.json: by head the samples with the largest errors.
    """
    for head, record in confusion.items() if isinstance(confusion, Mapping) else ():
        if not isinstance(record, Mapping) or "pairs" not in record or not isinstance(record.get("columns"), list):
            continue
        columns = [printable(str(name)) for name in record["columns"]]
        blocks: list[Block] = [*_draw_numbers(columns, record["pairs"])]
        error_rows = list(filter(None, (_error_row(mistake, columns) for mistake in read_objects(mistakes, head))))
        if error_rows:
            blocks.append(
                Text("The samples with the largest errors, relative to the spread of the training data.", Tone.QUIET)
            )
            blocks.append(Table(("sample", "column", "true", "predicted", "error"), tuple(error_rows)))
        if blocks:
            yield Section(title_of_head("Predicted against true", printable(str(head))), blocks)


def _draw_numbers(columns: list[str], pairs: object) -> Iterator[Chart]:
    """Draw a chart for each column: each dot is a validation sample of a fixed choice, on the diagonal if it is right."""
    for index, column in enumerate(columns[:MAX_PLOTS]):
        points = list(filter(None, (_read_point(pair, index) for pair in (pairs if isinstance(pairs, list) else ()))))
        if len(points) > 1:
            title = f"{column}: predicted, over the true value"
            xs, ys = (array("d", values) for values in zip(*points, strict=True))
            dots = Series(f"{len(points):,} samples", xs, ys)
            yield Chart(title, "true", (dots,), is_scatter=True)


def _read_point(pair: Any, index: int) -> Point | None:
    try:
        truth, answer = float(pair[0][index]), float(pair[1][index])
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return (truth, answer) if isfinite(truth) and isfinite(answer) else None


def _error_row(row: Any, columns: list[str]) -> tuple[str, ...] | None:
    """Return the column of a sample with the largest relative error, its true and its predicted value."""
    try:
        errors = [
            (float(answer) - float(truth), float(truth), float(answer))
            for truth, answer in zip(row["truth"], row["answer"], strict=True)
        ]
        column = int(row.get("column", 0))
        error, truth, answer = errors[column]
        return (
            shorten(printable(str(row["title"])), 160),
            columns[column],
            f"{truth:.4g}",
            f"{answer:.4g}",
            f"{error:+.4g}",
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None


MAX_COLUMNS = 40
"""Columns that are listed; explanation.json has all."""


def list_explanation_sections(explanation: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the sections on the content of explanation.json, as `drivetrain evaluate --explain` writes it."""
    importance = read_mapping(explanation, "importance")
    if columns := read_columns(explanation):
        yield _make_importance_section(importance, columns)
    if photos := [photo for row in read_objects(explanation, "maps") if (photo := read_photo(row))]:
        empty = read_integer(explanation, "empty_maps")
        text = Text(
            "Where the network saw the class that it predicted (LayerCAM of the last convolutions): nothing where the picture is "
            "unchanged, most where it is yellow. First the most confident mistakes, then some right ones."
            + (f" {empty} of the maps are empty: no place speaks for the predicted class." if empty else ""),
            Tone.QUIET,
        )
        fits = sum(len(photo.data) for photo in photos) <= MAX_CHARACTERS
        yield Section("Where the network looked", (text, make_sample_block(photos, fits)))


def read_columns(explanation: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Read name, importance and its standard deviation of each column; damaged rows are skipped."""
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
    # A mean within two deviations of zero may be chance.
    tones = {index: Tone.QUIET for index, (_, mean, spread) in enumerate(listed) if mean <= 2 * spread}
    hidden = [Text(f"{len(columns) - len(listed):,} more are in explanation.json.", Tone.QUIET)]
    table = Table(("column", "worse by", "deviation"), tuple(zip(names, *numbers, strict=True)), tones)
    blocks = (Text(about, Tone.QUIET), table, *(hidden if len(columns) > len(listed) else ()))
    return Section("Importance of the columns", blocks)
