"""Real data for benchmarks/quality.py: three files of a row and a seed, train, validation and test. Nothing is downloaded.

Texts are the short descriptions of Debian packages, from the lists that `apt-get update` left on this machine, with two
labels: the section, and the role in the tags. Tables and digits are the data sets that scikit-learn ships; the digits also
serve as pictures, and as series of eight steps, a line of the picture each. The data stays where it is made: the
descriptions are under the licenses of their packages.
"""

from __future__ import annotations

import csv
import random
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

FEWEST = 40
"""Rows of a class; rarer classes are left out."""
VALIDATION, TEST = 0.1, 0.2
"""Shares of the rows."""
TABLES = {"cancer": "load_breast_cancer", "wine": "load_wine", "digits": "load_digits", "diabetes": "load_diabetes"}
"""The loaders of scikit-learn."""
ARRAYS = ("pictures", "series")
"""Rows of which a sample is an array, in .npz files; those of the others are CSV."""
PARTS = ("train", "validation", "test")

Row = Sequence[object]


def write(row: str, seed: int, folder: Path) -> None:
    """Write the three files; the seed divides the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    if row in ARRAYS:
        return arrays(row, seed, folder)
    names, rows = (("text", "section", "role"), texts(packages())) if row == "texts" else table(row)
    random.Random(f"{row} {seed}").shuffle(rows)
    held, tested = round(len(rows) * VALIDATION), round(len(rows) * TEST)
    divided = rows[held + tested :], rows[:held], rows[held : held + tested]
    for part, chosen in zip(PARTS, divided, strict=True):
        with (folder / f"{part}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *chosen])


def arrays(row: str, seed: int, folder: Path) -> None:
    """Write the handwritten digits: pictures of 8 by 8 in bytes, or series of eight steps of eight numbers."""
    import numpy as np
    from sklearn import datasets

    found = datasets.load_digits()
    order = list(range(len(found.images)))
    random.Random(f"{row} {seed}").shuffle(order)
    held, tested = round(len(order) * VALIDATION), round(len(order) * TEST)
    names, x = ("x", "y"), found.images.astype(np.float32)
    if row == "pictures":
        names, x = ("images", "labels"), (found.images * 255 / 16).round().astype(np.uint8)
    for part, ids in zip(PARTS, (order[held + tested :], order[:held], order[held : held + tested]), strict=True):
        np.savez(folder / f"{part}.npz", **dict(zip(names, (x[ids], found.target[ids]), strict=True)))


def packages() -> str:
    """The package lists of this machine."""
    try:
        return subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"texts: the row needs the package lists of a Debian, and apt-cache failed: {error}") from None


def texts(listed: str, fewest: int = FEWEST) -> list[Row]:
    """Description, section and role: one package of each source, so that no two rows are variants of one text.

    Args:
        listed: as `apt-cache dumpavail` prints it.
        fewest: rows of a class; rarer classes are left out.
    """
    by_source: dict[str, list[Row]] = {}
    for package in map(_fields, listed.split("\n\n")):
        roles = [tag.strip() for tag in package.get("Tag", "").split(",") if tag.strip().startswith("role::")]
        text = package.get("Description", package.get("Description-en", "")).strip()
        if len(roles) == 1 and text:
            source = package.get("Source", package["Package"]).split()[0]
            by_source.setdefault(source, []).append((text, package["Section"], roles[0].removeprefix("role::")))
    if not by_source:
        raise SystemExit("texts: apt-cache lists no packages with tags; on Debian, run `apt-get update` first")
    choice = random.Random("package")
    chosen = {
        str(row[0]).lower(): row for row in (choice.choice(sorted(rows)) for _, rows in sorted(by_source.items()))
    }
    return _frequent(_frequent([*chosen.values()], 1, fewest), 2, fewest)


def _fields(block: str) -> dict[str, str]:
    """The first line of each field, but all lines of the tags."""
    found: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if line.startswith(" "):
            found[name] = found.get(name, "") + line if name == "Tag" else found.get(name, "")
        elif ": " in line:
            name, value = line.split(": ", 1)
            found[name] = value
        else:
            name = line.rstrip(":")
    return found


def _frequent(rows: Iterable[Row], column: int, fewest: int) -> list[Row]:
    kept = list(rows)
    counts = Counter(row[column] for row in kept)
    return [row for row in kept if counts[row[column]] >= fewest]


def table(row: str) -> tuple[Sequence[str], list[Row]]:
    """Names and rows of a data set of scikit-learn, which the environment of the peers has."""
    from sklearn import datasets

    found = getattr(datasets, TABLES[row])()
    names = [*(str(name).replace(" ", "_") for name in found.feature_names), "target"]
    classes = getattr(found, "target_names", None)
    targets = found.target if classes is None else [f"class {classes[label]}" for label in found.target]
    return names, [(*numbers.tolist(), target) for numbers, target in zip(found.data, targets, strict=True)]
