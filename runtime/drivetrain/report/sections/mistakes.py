"""The worst mistakes, those with the highest probability, with pictures or texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.report.blocks import Block, Gallery, SamplePicture, Section, Table, Text, Tone
from drivetrain.report.formatting import format_json, format_share, shorten
from drivetrain.system.printable import printable
from drivetrain.system.run_records import read_objects

_BASE64 = re.compile(r"[A-Za-z0-9+/]{8,60000}={0,2}")
_KINDS = {"iVBORw0KGgo": "image/png", "/9j/": "image/jpeg"}
"""The first characters of these file types in base64."""
MAX_CHARACTERS = 600_000
"""Limit for all pictures together, in characters of the page."""


def worst_sections(mistakes: Mapping[str, object]) -> Iterator[Section]:
    """A section for each head that has mistakes."""
    bytes_left = MAX_CHARACTERS
    for head in mistakes:
        photos = [photo for row in read_objects(mistakes, head) if (photo := read_photo(row))]
        bytes_left -= sum(len(photo.data) for photo in photos)
        if not photos:
            continue
        name = f" of {format_json(head)}" if head else ""
        text = Text("Misclassified samples of the best evaluation, most confident first.", Tone.QUIET)
        blocks = (text, make_sample_block(photos, bytes_left >= 0))
        yield Section(f"mistakes{name.replace(' ', '-')}", f"Most confident mistakes{name}", blocks)


def make_sample_block(photos: list[SamplePicture], fits: bool) -> Block:
    """Samples as pictures; as a table if some have none, or if they do not fit on the page."""
    if fits and all(photo.data for photo in photos):
        return Gallery(tuple(photos))
    rows = tuple((photo.title, photo.truth, photo.answer, photo.probability) for photo in photos)
    return Table(("sample", "true class", "predicted", "probability"), rows)


def read_photo(row: Mapping[str, Any]) -> SamplePicture | None:
    """A stored sample; None if it is damaged. What is no picture is left out."""
    try:
        truth, answer = (shorten(printable(str(row[key])), 40) for key in ("truth", "answer"))
        title, probability = shorten(printable(str(row["title"])), 160), format_share(float(row["probability"]))
    except (KeyError, TypeError, ValueError):
        return None
    data = str(row.get("picture", ""))
    kind = next((kind for start, kind in _KINDS.items() if data.startswith(start)), "")
    is_valid = kind and _BASE64.fullmatch(data)
    return SamplePicture(title, truth, answer, probability, f"data:{kind};base64,{data}" if is_valid else "")
