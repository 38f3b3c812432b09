"""Finds the tables in a folder, and the splits that their names say: train.csv, val.csv, test.csv; shards; save_to_disk.

A split is named by its first file. Nothing is read but names and the small JSON files of the datasets library.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from runtime.data.formats.shards import SHARD
from runtime.data.images import leftovers
from runtime.data.images.split_folders import TEST, TRAIN, VALIDATION
from runtime.errors import DataError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
WORDS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
SCRIPT = ".py"


def find(folder: Path, key: str) -> dict[str, str]:
    """Paths in a folder by split: `train`, `validation`, `test`; a single table has the empty name.

    Raises:
        DataError: if it has no table, or several whose names say no split; names `key`.
    """
    try:
        saved = _saved(folder)
        tables = saved if saved is not None else _named(folder) or _named(folder, "data")
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DataError(
            f"{key}: the dataset in {folder} cannot be read: {type(error).__name__}: {str(error)[:200]}",
            "a folder that save_to_disk of the datasets library wrote",
            "write it again",
        ) from None
    splits: dict[str, str] = {}
    for split, words in WORDS.items():
        same = [name for name in tables if os.path.splitext(name.lower())[0] in words]
        if len(same) > 1:
            raise DataError(
                f"{key}: {folder} has {' and '.join(tables[name] for name in same)} for one split",
                "one table for each split",
                "name the tables: data.train, data.validation, data.test",
            )
        if same:
            splits[split] = tables[same[0]]
    if "train" in splits:
        return splits
    if len(tables) == 1:
        return {"": next(iter(tables.values()))}
    scripts = [name for name in sorted(os.listdir(folder)) if name.endswith(SCRIPT)] if not tables else []
    raise DataError(
        f"{key}: {folder} is a folder without a table{f'; its {scripts[0]} is code, which is not run' if scripts else ''}"
        if not tables
        else f"{key}: {folder} is a folder with {len(tables)} tables, and none is called train: {', '.join(sorted(tables)[:6])}",
        "one table, or train, validation and test: CSV, TSV, JSONL, Parquet, or a folder of save_to_disk",
        "name one file",
    )


def has_images(folder: Path) -> bool:
    """Whether a folder given for images holds tables with them, and no folders of images: what the datasets library wrote."""
    if any(os.path.isfile(folder / name) for name in ("dataset_dict.json", "state.json")):
        return True
    try:
        folders = {entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
        folders = {name for name in folders if not leftovers.is_leftover(name)}
        tables = {**_named(folder), **_named(folder, "data")}
    except OSError:
        return False
    return folders <= {"data"} and any(path.lower().endswith((".parquet", ".arrow")) for path in tables.values())


def table(folder: Path, key: str) -> Path:
    """The only table in a folder.

    Raises:
        DataError: if there are several, or none; names `key`.
    """
    found = find(folder, key)
    if "" not in found:
        raise DataError(
            f"{key}: {folder} is a folder with the splits {', '.join(found)}",
            "one table",
            f"name one: {folder / next(iter(found.values()))}",
        )
    return folder / found[""]


def _saved(folder: Path) -> dict[str, str] | None:
    """The splits of a folder that save_to_disk wrote; None if it did not."""
    if (folder / "dataset_dict.json").is_file():
        names = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        return {str(name): os.path.join(name, _first(folder / name)) for name in names}
    return {"": _first(folder)} if (folder / "state.json").is_file() else None


def _first(folder: Path) -> str:
    """The first file of a split, which stands for all."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return str(sorted(row["filename"] for row in state["_data_files"])[0])


def _named(folder: Path, inside: str = "") -> dict[str, str]:
    """Tables by the stem of their names; of several files of a table the first."""
    found: dict[str, str] = {}
    place = folder / inside
    for name in sorted(os.listdir(place)) if place.is_dir() else ():
        stem, suffix = os.path.splitext(name)
        if name.startswith(".") or suffix.lower() not in SUFFIXES or not (place / name).is_file():
            continue
        shard = SHARD.fullmatch(name)
        if shard is None or not int(shard["number"]):
            same = shard["stem"] if shard else stem
            found[name if same in found else same] = os.path.join(inside, name)
    return found
