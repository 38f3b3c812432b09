"""Small files that arguments of a user's network or loss name, such as its configuration: they are copied with its code."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from urllib.parse import quote, unquote

LARGEST = 16 << 20
"""Bytes of a file, or of a folder, that is copied; larger ones are data or weights."""
MOST = 100
"""Files of a folder that is copied."""
LONGEST = 240
"""Letters of a file name."""
OUTSIDE = "_outside/"


def name_of(text: str) -> str:
    """The name of the copy of the file at a path; from a path that leads out of the job's folder, the original is found."""
    path = Path(os.path.normpath(text))
    return f"{OUTSIDE}{quote(text, safe='')}" if path.is_absolute() or ".." in path.parts else path.as_posix()


def original(folder: Path, name: str) -> Path:
    """The file of which there is a copy of this name: in the folder of the job, or else in the working folder."""
    text = unquote(name.removeprefix(OUTSIDE)) if name.startswith(OUTSIDE) else name
    return folder / text if os.path.exists(folder / text) else Path.cwd() / text


def names_below(place: Path, name: str) -> list[str]:
    """The names of the copies of a file, or of the files in a folder; none if they are too many or too large."""
    if any(len(part) > LONGEST for part in name.split("/")):
        return []
    if os.path.isfile(place):
        return [name] if os.path.getsize(place) <= LARGEST else []
    if name == "." or not os.path.isdir(place):
        return []
    paths = [Path(folder, file) for folder, _, files in islice(os.walk(place), MOST) for file in files[: MOST + 1]]
    fits = len(paths) <= MOST and sum(os.path.getsize(path) for path in paths if path.is_file()) <= LARGEST
    return [f"{name}/{path.relative_to(place).as_posix()}" for path in paths if path.is_file()] if fits else []
