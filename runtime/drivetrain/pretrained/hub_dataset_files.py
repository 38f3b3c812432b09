"""Finds the files of each split of a dataset on the hub: by the `configs:` of README.md, else by names of files and folders.

The rules are those of the hub: a split is a word such as train, valid or test between dots, dashes, underscores, digits
and slashes; files without such a word are for training. Only names and the YAML at the top of README.md are read.
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

from drivetrain.pretrained.hub_error import HubError

README = "README.md"
TABLES = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl")
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
PARQUET_BRANCH = "refs/convert/parquet"
"""The branch on which the hub keeps datasets as Parquet: CONFIG/SPLIT/0000.parquet."""
MAX_LISTED_FILES = 6
_WORDS = re.compile(r"[-._ 0-9/]+")
_MERGE = re.compile(r"<<['\"]?\s*:")
_HEADER = re.compile(r"\A---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)
_MAX_HEADER_CHARACTERS = 1 << 20

Files = dict[str, list[str]]
"""Paths by split."""


@dataclass(frozen=True)
class DatasetName:
    """The dataset that the job names, and the path in it, for messages."""

    name: str
    revision: str
    path: str = ""

    def at(self, path: str) -> str:
        """The address of a path."""
        revision = "" if self.revision == "main" else f"@{self.revision.replace('/', '%2F')}"
        return f"hf://datasets/{self.name}{revision}/{path}"


def read_header(readme: str) -> dict[str, Any]:
    """The YAML at the top of a README; empty if there is none that can be read."""
    match = _HEADER.match(readme[:_MAX_HEADER_CHARACTERS].replace("\r\n", "\n"))
    # Nested merge keys (`<<`) copy their mappings each time, so a short header could fill the memory.
    if match and _MERGE.search(match[1]):
        return {}
    try:
        content = yaml.safe_load(match[1]) if match else None
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def find_splits(paths: Sequence[str], readme: str, dataset: DatasetName, *, images: bool) -> Files:
    """Find the files of each split of a dataset, or of a folder in it; a single file has the empty split.

    Args:
        paths: paths of all files of the repository.
        readme: content of its README.md.
        dataset: the dataset and the path in it.
        images: whether files can be images.

    Raises:
        HubError: if there are none, or if the dataset has several configurations.
    """
    if dataset.path in paths:
        return {"": [dataset.path]}
    folder_paths = [path for path in paths if not dataset.path or path.startswith(f"{dataset.path}/")]
    if not folder_paths:
        raise HubError(
            f"has no file or folder {dataset.path}",
            f"its files: {_list_names(sorted({path.split('/')[0] for path in paths}))}",
            "correct the path",
        )
    if not dataset.path and (configured := _read_configured(paths, readme, dataset)):
        return _choose_formats(configured, dataset, images=images)
    start = f"{dataset.path}/" if dataset.path else ""
    by_split = _split_by_name(folder_paths, start, dataset, images=images)
    return _choose_formats(by_split, dataset, images=images)


def _read_configured(paths: Sequence[str], readme: str, dataset: DatasetName) -> Files:
    """Read the splits of the only configuration that README.md declares; empty if it declares none."""
    rows = [
        row for row in _select_mappings(read_header(readme).get("configs")) if "data_files" in row or "data_dir" in row
    ]
    configs = {str(row.get("config_name", "default")): _list_config_files(paths, row) for row in rows}
    if len(configs) > 1:
        default = [str(row.get("config_name")) for row in rows if row.get("default") is True]
        raise _several_error(configs, dataset, f"; its page shows {default[0]} first" if default else "")
    files = next(iter(configs.values()), {})
    if configs and not any(files.values()):
        raise HubError(
            f"has none of the files that its {README} names", "a complete dataset", "name a file of it as the path"
        )
    return files


def _several_error(configs: Mapping[str, Files], dataset: DatasetName, hint: str) -> HubError:
    lines = []
    for name, files in list(configs.items())[:MAX_LISTED_FILES]:
        first = {split: dataset.at(split_files[0]) for split, split_files in files.items() if split_files}
        lines.append(f"\n            {name}: " + ", ".join(f"{split}: {path}" for split, path in first.items()))
    unlisted = len(configs) - MAX_LISTED_FILES
    return HubError(
        f"has {len(configs)} configurations: {_list_names(list(configs))}{hint}",
        "one of them",
        f"name its files in data.train, data.validation and data.test{''.join(lines)}"
        + (f"\n            and {unlisted} more" if unlisted > 0 else ""),
    )


def _select_mappings(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _list_config_files(paths: Sequence[str], row: Mapping[str, Any]) -> Files:
    """List the files by split of an entry of `configs:`, whose patterns are alone, in a list, or with the split."""
    folder = str(row.get("data_dir") or "").strip("/")
    data_files = row.get("data_files")
    if data_files is None:
        folder_paths = [path for path in paths if path.startswith(f"{folder}/")] if folder else list(paths)
        return _split_by_words(folder_paths, f"{folder}/" if folder else "", TABLES)
    by_split: Files = {}
    for item in data_files if isinstance(data_files, list) else [data_files]:
        split, patterns = (item.get("split", "train"), item.get("path")) if isinstance(item, dict) else ("train", item)
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            full_pattern = f"{folder}/{pattern}" if folder else str(pattern).removeprefix("./")
            by_split.setdefault(_find_split(str(split)) or str(split), []).extend(_match_paths(paths, full_pattern))
    return {split: list(dict.fromkeys(files)) for split, files in by_split.items()}


def _match_paths(paths: Iterable[str], pattern: str) -> list[str]:
    """The paths that match a pattern, in which ** stands for folders, and * for a part of a name."""
    depth = None if "**" in pattern else pattern.count("/")
    # The * of fnmatch also matches slashes.
    flat_pattern = pattern.replace("**/", "*")
    return sorted(path for path in paths if fnmatch(path, flat_pattern) and (depth is None or path.count("/") == depth))


def _split_by_name(folder_paths: Sequence[str], start: str, dataset: DatasetName, *, images: bool) -> Files:
    """Find splits by words in names; on the hub's own branch of Parquet files each top folder is a configuration."""
    if dataset.revision == PARQUET_BRANCH and not dataset.path:
        names = sorted({path.split("/")[0] for path in folder_paths if path.count("/") > 1})
        if len(names) > 1:
            examples = ", ".join(dataset.at(name) for name in names[:MAX_LISTED_FILES])
            raise HubError(
                f"has {len(names)} configurations: {_list_names(names)}",
                "one of them",
                f"name one as the path: {examples}",
            )
        start = f"{names[0]}/" if names else start
    script = f"{dataset.name.rsplit('/', 1)[-1]}.py"
    kinds = (*TABLES, *IMAGES) if images else TABLES
    by_split = _split_by_words(folder_paths, start, kinds)
    if not dataset.path and script in folder_paths:
        raise HubError(
            f"is made by a script, {script}, which is code that is not run",
            "datasets whose files are data: Parquet, CSV, TSV, JSONL" + (", images" if images else ""),
            f"try the Parquet files that the hub has made of it: hf://datasets/{dataset.name}@{PARQUET_BRANCH.replace('/', '%2F')}"
            + (f"; or name a file: {dataset.at(next(iter(by_split.values()))[0])}" if by_split else ""),
        )
    if not by_split:
        kinds_there = Counter(PurePosixPath(path).suffix or path for path in folder_paths)
        raise HubError(
            f"has no data that can be read{f' in {dataset.path}' if dataset.path else ''}; "
            f"it has {_list_names([f'{count} {kind}' for kind, count in kinds_there.most_common()])}",
            "Parquet, Arrow, CSV, TSV, JSONL" + (", or images in folders" if images else ""),
            f"use another dataset; of many the hub has Parquet files: hf://datasets/{dataset.name}@"
            f"{PARQUET_BRANCH.replace('/', '%2F')}",
        )
    return by_split


def _split_by_words(folder_paths: Iterable[str], start: str, kinds: tuple[str, ...]) -> Files:
    files = [path for path in sorted(folder_paths) if path.lower().endswith(kinds) and not _is_hidden(path)]
    by_split: Files = {}
    for path in files:
        by_split.setdefault(_find_split(path.removeprefix(start)) or "", []).append(path)
    with_split = {split: paths for split, paths in by_split.items() if split}
    if with_split:
        return with_split
    return {"train": by_split[""]} if by_split else {}


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _find_split(path: str) -> str:
    """The split that the name of a file contains, or else the nearest of its folders; empty if none does."""
    for part in reversed(path.lower().split("/")):
        name_words = set(_WORDS.split(part))
        for split, split_words in SPLITS.items():
            if name_words & set(split_words):
                return split
    return ""


def _choose_formats(by_split: Files, dataset: DatasetName, *, images: bool) -> Files:
    """Choose the files of each split that have its most frequent format; of equally frequent ones, the first of TABLES.

    Raises:
        HubError: if no file can be read.
    """
    chosen: Files = {}
    for split, paths in by_split.items():
        counts = Counter(PurePosixPath(path).suffix.lower() for path in paths)
        table_kinds = [kind for kind in TABLES if counts[kind]]
        if images and sum(counts[kind] for kind in IMAGES) > max((counts[kind] for kind in table_kinds), default=0):
            chosen[split] = [path for path in paths if path.lower().endswith(IMAGES)]
        elif table_kinds:
            best = max(table_kinds, key=lambda kind: (counts[kind], -TABLES.index(kind)))
            chosen[split] = [path for path in paths if path.lower().endswith(best)]
    if not chosen:
        names = sorted(path for paths in by_split.values() for path in paths)
        raise HubError(
            f"has {_list_names(names)}, which cannot be read", "Parquet, Arrow, CSV, TSV, JSONL", "use another dataset"
        )
    return chosen


def _list_names(names: Sequence[str]) -> str:
    unlisted = len(names) - MAX_LISTED_FILES
    return ", ".join(names[:MAX_LISTED_FILES]) + (f" and {unlisted} more" if unlisted > 0 else "")
