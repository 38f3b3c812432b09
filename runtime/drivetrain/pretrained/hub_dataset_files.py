"""Finds the files of each split of a dataset on the hub: by the `configs:` of README.md, else by names of files and folders.

The rules are those of the hub: a split is a word such as train, valid or test between dots, dashes, underscores, digits
and slashes; files without such a word are for training. Only names and the YAML at the top of README.md are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

import yaml

from drivetrain.job.hub_address import HubAddress
from drivetrain.pretrained.hub_error import DATASET, HubError

README = DATASET.readme
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
_TABLE_KINDS = "Parquet, Arrow, CSV, TSV, JSONL"
_WORDS = re.compile(r"[-._ 0-9/]+")
_MERGE = re.compile(r"<<['\"]?\s*:")
_HEADER = re.compile(r"\A---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)
_MAX_HEADER_CHARACTERS = 1 << 20

Files = dict[str, list[str]]
"""Paths by split."""


def read_header(readme: str) -> dict[str, Any]:
    """Read the YAML at the top of a README; empty if there is none that can be read."""
    match = _HEADER.match(readme[:_MAX_HEADER_CHARACTERS].replace("\r\n", "\n"))
    # Nested merge keys (`<<`) copy their mappings each time, so a short header could fill the memory.
    if match and _MERGE.search(match[1]):
        return {}
    try:
        content = yaml.safe_load(match[1]) if match else None
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def find_splits(paths: Sequence[str], readme: str, address: HubAddress, *, images: bool) -> Files:
    """Find the files of each split of a dataset, or of a folder in it; a single file has the empty split.

    Args:
        address: the dataset and the path in it.
        images: whether files can be images.

    Raises:
        HubError: if there are none, or if the dataset has several configurations.
    """
    if address.path in paths:
        return {"": [address.path]}
    start = f"{address.path}/" if address.path else ""
    folder_paths = [path for path in paths if path.startswith(start)]
    if not folder_paths:
        raise HubError(
            f"has no file or folder {address.path}",
            f"its files: {_list_names(sorted({path.split('/')[0] for path in paths}))}",
            "correct the path",
        )
    configured = {} if start else _read_configured(paths, readme, address)
    return _choose_formats(configured or _split_by_name(folder_paths, start, address, images=images), images=images)


def _read_configured(paths: Sequence[str], readme: str, address: HubAddress) -> Files:
    """Read the splits of the only configuration that README.md declares; empty if it declares none."""
    rows = [
        row for row in _select_mappings(read_header(readme).get("configs")) if "data_files" in row or "data_dir" in row
    ]
    configs = {str(row.get("config_name", "default")): _list_config_files(paths, row) for row in rows}
    if len(configs) > 1:
        default = [str(row.get("config_name")) for row in rows if row.get("default") is True]
        raise _several_error(configs, address, f"; its page shows {default[0]} first" if default else "")
    files = next(iter(configs.values()), {})
    if configs and not any(files.values()):
        raise HubError(
            f"has none of the files that its {README} names", "a complete dataset", "name a file of it as the path"
        )
    return files


def _several_error(configs: Mapping[str, Files], address: HubAddress, hint: str) -> HubError:
    lines = ["name its files in data.train, data.validation and data.test"]
    for name, files in list(configs.items())[:MAX_LISTED_FILES]:
        examples = (f"{split}: {address.below(paths[0])}" for split, paths in files.items() if paths)
        lines.append(f"{name}: {', '.join(examples)}")
    if len(configs) > MAX_LISTED_FILES:
        lines.append(f"and {len(configs) - MAX_LISTED_FILES} more")
    description = f"has {len(configs)} configurations: {_list_names(list(configs))}{hint}"
    return HubError(description, "one of them", "\n            ".join(lines))


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
    """Return the paths that match a pattern, where ** stands for folders, and * for a part of a name."""
    depth = None if "**" in pattern else pattern.count("/")
    # The * of fnmatch also matches slashes.
    flat_pattern = pattern.replace("**/", "*")
    return sorted(path for path in paths if fnmatch(path, flat_pattern) and (depth is None or path.count("/") == depth))


def _split_by_name(folder_paths: Sequence[str], start: str, address: HubAddress, *, images: bool) -> Files:
    """Find splits by words in names; on the hub's own branch of Parquet files each top folder is a configuration."""
    if address.revision == PARQUET_BRANCH and not start:
        names = sorted({path.split("/")[0] for path in folder_paths if path.count("/") > 1})
        if len(names) > 1:
            examples = ", ".join(str(address.below(name)) for name in names[:MAX_LISTED_FILES])
            raise HubError(
                f"has {len(names)} configurations: {_list_names(names)}",
                "one of them",
                f"name one as the path: {examples}",
            )
        start = f"{names[0]}/" if names else start
    script = f"{address.name.rsplit('/', 1)[-1]}.py"
    by_split = _split_by_words(folder_paths, start, (*TABLES, *IMAGES) if images else TABLES)
    possible, parquet = f"{_TABLE_KINDS}{', or images in folders' if images else ''}", address.at(PARQUET_BRANCH).root
    if script in folder_paths and not address.path:
        example = f"; or name a file: {address.below(next(iter(by_split.values()))[0])}" if by_split else ""
        raise HubError(
            f"is made by a script, {script}, which is code that is not run",
            f"datasets whose files are data: {possible}",
            f"try the Parquet files that the hub has made of it: {parquet}{example}",
        )
    if not by_split:
        counts = Counter(PurePosixPath(path).suffix or path for path in folder_paths).most_common()
        raise HubError(
            f"has no data that can be read{f' in {address.path}' if address.path else ''}; "
            f"it has {_list_names([f'{count} {kind}' for kind, count in counts])}",
            possible,
            f"use another dataset; of many the hub has Parquet files: {parquet}",
        )
    return by_split


def _split_by_words(folder_paths: Iterable[str], start: str, kinds: tuple[str, ...]) -> Files:
    by_split: Files = {}
    for path in sorted(folder_paths):
        is_hidden = any(part.startswith((".", "_")) for part in path.split("/"))
        if path.lower().endswith(kinds) and not is_hidden:
            by_split.setdefault(_find_split(path.removeprefix(start)), []).append(path)
    without_split = by_split.pop("", None)
    return by_split or ({"train": without_split} if without_split else {})


def _find_split(path: str) -> str:
    """Find the split that the name of a file contains, or else the nearest of its folders; empty if none does."""
    for part in reversed(path.lower().split("/")):
        name_words = set(_WORDS.split(part))
        for split, split_words in SPLITS.items():
            if name_words & set(split_words):
                return split
    return ""


def _choose_formats(by_split: Files, *, images: bool) -> Files:
    """Choose the files of each split that have its most frequent format; of equally frequent ones, the first of TABLES.

    Raises:
        HubError: if no file can be read.
    """
    files_by_split: Files = {}
    for split, paths in by_split.items():
        counts = Counter(PurePosixPath(path).suffix.lower() for path in paths)
        table_kinds = [kind for kind in TABLES if counts[kind]]
        if images and sum(counts[kind] for kind in IMAGES) > max((counts[kind] for kind in table_kinds), default=0):
            files_by_split[split] = [path for path in paths if path.lower().endswith(IMAGES)]
        elif table_kinds:
            best = max(table_kinds, key=lambda kind: (counts[kind], -TABLES.index(kind)))
            files_by_split[split] = [path for path in paths if path.lower().endswith(best)]
    if not files_by_split:
        names = sorted(path for paths in by_split.values() for path in paths)
        raise HubError(f"has {_list_names(names)}, which cannot be read", _TABLE_KINDS, "use another dataset")
    return files_by_split


def _list_names(names: Sequence[str]) -> str:
    unlisted = len(names) - MAX_LISTED_FILES
    return ", ".join(names[:MAX_LISTED_FILES]) + (f" and {unlisted} more" if unlisted > 0 else "")
