"""Which files of a dataset on the hub are its splits: by the `configs:` of README.md, else by the names of files and folders.

The rules are those of the hub: a split is a word such as train, valid or test between dots, dashes, underscores, digits
and slashes; files that say none are for training. Nothing is read but names and the YAML at the top of README.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

import yaml

from runtime.pretrained.hub_error import HubError

README = "README.md"
TABLES = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl")
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
CONVERTED = "refs/convert/parquet"
"""The branch on which the hub keeps datasets as Parquet: CONFIG/SPLIT/0000.parquet."""
SHOWN = 6
_WORDS = re.compile(r"[-._ 0-9/]+")
_MERGE = re.compile(r"<<['\"]?\s*:")
_HEADER = re.compile(r"\A---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)
_MOST_HEADER = 1 << 20

Files = dict[str, list[str]]
"""Paths by split."""


@dataclass(frozen=True)
class DatasetName:
    """What is asked for, for messages and their way out."""

    name: str
    revision: str
    path: str = ""

    def at(self, path: str) -> str:
        """The address of a path."""
        revision = "" if self.revision == "main" else f"@{self.revision.replace('/', '%2F')}"
        return f"hf://datasets/{self.name}{revision}/{path}"


def header(readme: str) -> dict[str, Any]:
    """The YAML at the top of a README; empty if there is none that can be read."""
    found = _HEADER.match(readme[:_MOST_HEADER].replace("\r\n", "\n"))
    # A mapping that takes in others (`<<`), which take in others, is copied for each of them.
    if found and _MERGE.search(found[1]):
        return {}
    try:
        content = yaml.safe_load(found[1]) if found else None
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def splits(paths: Sequence[str], readme: str, asked: DatasetName, *, images: bool) -> Files:
    """The files of each split of a dataset, or of a folder of it; a single file has the empty name.

    Args:
        paths: of all files of the repository.
        readme: its README.md.
        asked: the dataset and the path in it.
        images: whether files can be images.

    Raises:
        HubError: if there are none, or if the dataset has several configurations.
    """
    if asked.path in paths:
        return {"": [asked.path]}
    inside = [path for path in paths if not asked.path or path.startswith(f"{asked.path}/")]
    if not inside:
        raise HubError(
            f"has no file or folder {asked.path}",
            f"its files: {_listed(sorted({path.split('/')[0] for path in paths}))}",
            "correct the path",
        )
    if not asked.path and (configured := _configured(paths, readme, asked)):
        return _one_format(configured, asked, images=images)
    start = f"{asked.path}/" if asked.path else ""
    found = _by_name(inside, start, asked, images=images)
    return _one_format(found, asked, images=images)


def _configured(paths: Sequence[str], readme: str, asked: DatasetName) -> Files:
    """The splits of the only configuration that README.md declares; none if it declares none."""
    rows = [row for row in _rows(header(readme).get("configs")) if "data_files" in row or "data_dir" in row]
    configs = {str(row.get("config_name", "default")): _of_config(paths, row) for row in rows}
    if len(configs) > 1:
        default = [str(row.get("config_name")) for row in rows if row.get("default") is True]
        raise _several(configs, asked, f"; its page shows {default[0]} first" if default else "")
    files = next(iter(configs.values()), {})
    if configs and not any(files.values()):
        raise HubError(
            f"has none of the files that its {README} names", "a complete dataset", "name a file of it as the path"
        )
    return files


def _several(configs: Mapping[str, Files], asked: DatasetName, more: str) -> HubError:
    shown = []
    for name, files in list(configs.items())[:SHOWN]:
        first = {split: asked.at(each[0]) for split, each in files.items() if each}
        shown.append(f"\n            {name}: " + ", ".join(f"{split}: {path}" for split, path in first.items()))
    left = len(configs) - SHOWN
    return HubError(
        f"has {len(configs)} configurations: {_listed(list(configs))}{more}",
        "one of them",
        f"name its files in data.train, data.validation and data.test{''.join(shown)}"
        + (f"\n            and {left} more" if left > 0 else ""),
    )


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _of_config(paths: Sequence[str], row: Mapping[str, Any]) -> Files:
    """Files by split of a row of `configs:`, in which patterns stand alone, in a list, or with the split."""
    folder = str(row.get("data_dir") or "").strip("/")
    given = row.get("data_files")
    if given is None:
        inside = [path for path in paths if path.startswith(f"{folder}/")] if folder else list(paths)
        return _by_words(inside, f"{folder}/" if folder else "", TABLES)
    found: Files = {}
    for item in given if isinstance(given, list) else [given]:
        split, patterns = (item.get("split", "train"), item.get("path")) if isinstance(item, dict) else ("train", item)
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            whole = f"{folder}/{pattern}" if folder else str(pattern).removeprefix("./")
            found.setdefault(_split_of(str(split)) or str(split), []).extend(_matching(paths, whole))
    return {split: list(dict.fromkeys(files)) for split, files in found.items()}


def _matching(paths: Iterable[str], pattern: str) -> list[str]:
    """Paths that a pattern means; in it ** stands for folders, and * for a part of a name."""
    depth = None if "**" in pattern else pattern.count("/")
    plain = pattern.replace("**/", "*")
    return sorted(path for path in paths if fnmatch(path, plain) and (depth is None or path.count("/") == depth))


def _by_name(inside: Sequence[str], start: str, asked: DatasetName, *, images: bool) -> Files:
    """The splits by words in names; on the hub's own branch of Parquet files each top folder is a configuration."""
    if asked.revision == CONVERTED and not asked.path:
        names = sorted({path.split("/")[0] for path in inside if path.count("/") > 1})
        if len(names) > 1:
            shown = ", ".join(asked.at(name) for name in names[:SHOWN])
            raise HubError(
                f"has {len(names)} configurations: {_listed(names)}", "one of them", f"name one as the path: {shown}"
            )
        start = f"{names[0]}/" if names else start
    script = f"{asked.name.rsplit('/', 1)[-1]}.py"
    kinds = (*TABLES, *IMAGES) if images else TABLES
    found = _by_words(inside, start, kinds)
    if not asked.path and script in inside:
        raise HubError(
            f"is made by a script, {script}, which is code that is not run",
            "datasets whose files are data: Parquet, CSV, TSV, JSONL" + (", images" if images else ""),
            f"try the Parquet files that the hub has made of it: hf://datasets/{asked.name}@{CONVERTED.replace('/', '%2F')}"
            + (f"; or name a file: {asked.at(next(iter(found.values()))[0])}" if found else ""),
        )
    if not found:
        kinds_there = Counter(PurePosixPath(path).suffix or path for path in inside)
        raise HubError(
            f"has no data that can be read{f' in {asked.path}' if asked.path else ''}; "
            f"it has {_listed([f'{count} {kind}' for kind, count in kinds_there.most_common()])}",
            "Parquet, Arrow, CSV, TSV, JSONL" + (", or images in folders" if images else ""),
            f"use another dataset; of many the hub has Parquet files: hf://datasets/{asked.name}@"
            f"{CONVERTED.replace('/', '%2F')}",
        )
    return found


def _by_words(inside: Iterable[str], start: str, kinds: tuple[str, ...]) -> Files:
    files = [path for path in sorted(inside) if path.lower().endswith(kinds) and not _is_hidden(path)]
    found: Files = {}
    for path in files:
        found.setdefault(_split_of(path.removeprefix(start)) or "", []).append(path)
    said = {split: paths for split, paths in found.items() if split}
    if said:
        return said
    return {"train": found[""]} if found else {}


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _split_of(path: str) -> str:
    """The split that the name of a file says, or the nearest of its folders."""
    for part in reversed(path.lower().split("/")):
        words = set(_WORDS.split(part))
        for split, known in SPLITS.items():
            if words & set(known):
                return split
    return ""


def _one_format(found: Files, asked: DatasetName, *, images: bool) -> Files:
    """Of each split the files of one kind: the kind that most files have; of equally many the first of TABLES.

    Raises:
        HubError: if no file can be read.
    """
    kept: Files = {}
    for split, paths in found.items():
        counts = Counter(PurePosixPath(path).suffix.lower() for path in paths)
        known = [kind for kind in TABLES if counts[kind]]
        if images and sum(counts[kind] for kind in IMAGES) > max((counts[kind] for kind in known), default=0):
            kept[split] = [path for path in paths if path.lower().endswith(IMAGES)]
        elif known:
            best = max(known, key=lambda kind: (counts[kind], -TABLES.index(kind)))
            kept[split] = [path for path in paths if path.lower().endswith(best)]
    if not kept:
        names = sorted(path for paths in found.values() for path in paths)
        raise HubError(
            f"has {_listed(names)}, which cannot be read", "Parquet, Arrow, CSV, TSV, JSONL", "use another dataset"
        )
    return kept


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
