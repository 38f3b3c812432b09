"""Finds the tables in a folder and their splits, by names such as train.csv; also shards and folders of save_to_disk.

A split is named by its first file. Only names and the small JSON files of the datasets library are read.
Files in other formats are refused with the command that converts them to a table.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from drivetrain.data import file_paths
from drivetrain.data.file_paths import is_leftover
from drivetrain.data.formats.shards import SHARD
from drivetrain.errors import DataError
from drivetrain.job.formatting import readable
from drivetrain.system.files import is_below, parse_json

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
WORDS = {"train": file_paths.TRAIN, "validation": file_paths.VALIDATION, "test": file_paths.TEST}
"""Table names that stand for each split."""
SCRIPT = ".py"
"""Suffix of files of code, which older datasets contain."""
POSSIBLE = "a CSV or TSV with a header, a JSONL with one object in each line, a Parquet or an Arrow file"
_CSV_OF_OFFICE = '--convert-to "csv:Text - txt - csv (StarCalc):44,34,76"'
"""Options for commas, quotes and UTF-8; without them the machine's language decides."""
_CSV_OF_SHEET = (
    f"libreoffice --headless {_CSV_OF_OFFICE} --outdir FOLDER OLD\n"
    "            or with pandas: python3 -c 'import sys, pandas; pandas.read_excel(sys.argv[1]).to_csv(sys.argv[2], index=False)' OLD NEW"
)
_CSV_OF_PANDAS = (
    "python3 -c 'import sys, pandas; pandas.read_KIND(sys.argv[1]).to_csv(sys.argv[2], index=False)' OLD NEW"
)
_PARQUET_OF_ARROW = (
    "python3 -c 'import sys, pyarrow.KIND as old, pyarrow.parquet as new; "
    "new.write_table(old.read_table(sys.argv[1]), sys.argv[2])' OLD NEW"
)
_CSV_OF_SQLITE = (
    "python3 -c 'import csv, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); "
    """name = db.execute("select name from sqlite_master where type=\\"table\\"").fetchone()[0]; """
    """rows = db.execute(f"select * from [{name}]"); """
    """table = csv.writer(open(sys.argv[2], "x", newline="", encoding="utf-8")); """
    "table.writerow(d[0] for d in rows.description); table.writerows(rows)' OLD NEW"
)
_CONVERSIONS = {
    (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"): ("an archive", "", "python3 -m tarfile -e OLD FOLDER"),
    (".zip",): ("an archive", "", "python3 -m zipfile -e OLD FOLDER"),
    (".gz",): ("compressed with gzip", "", "gunzip -k OLD"),
    (".bz2",): ("compressed with bzip2", "", "bunzip2 -k OLD"),
    (".xz",): ("compressed with xz", "", "unxz -k OLD"),
    (".xlsx", ".xlsm", ".xlsb", ".xls"): ("an Excel file", ".csv", _CSV_OF_SHEET),
    (".ods",): ("an OpenDocument spreadsheet", ".csv", _CSV_OF_SHEET),
    (".dta",): ("a Stata file", ".csv", _CSV_OF_PANDAS.replace("KIND", "stata")),
    (".sav",): ("an SPSS file", ".csv", _CSV_OF_PANDAS.replace("KIND", "spss")),
    (".sas7bdat", ".xpt"): ("a SAS file", ".csv", _CSV_OF_PANDAS.replace("KIND", "sas")),
    (".json",): ("JSON of any layout", ".jsonl", "jq -c 'arrays[] // .' OLD > NEW"),
    (".feather",): ("a Feather file", ".parquet", _PARQUET_OF_ARROW.replace("KIND", "feather")),
    (".orc",): ("an ORC file", ".parquet", _PARQUET_OF_ARROW.replace("KIND", "orc")),
    (".db", ".sqlite", ".sqlite3"): ("an SQLite database; this writes its first table", ".csv", _CSV_OF_SQLITE),
}
"""Kind, suffix of the converted table, and converting command of files in another format, by the end of their names."""
_FIRST_BYTES = {
    b"PK\x03\x04": ".xlsx",
    b"\xd0\xcf\x11\xe0": ".xls",
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
}
"""Suffix of files with these first bytes, which may be called .csv."""


def find_splits(folder: Path, key: str) -> dict[str, str]:
    """Find the tables in a folder by split: `train`, `validation`, `test`; a single table has the empty name.

    Raises:
        DataError: if it has no table, or several and no split in their names; names `key`.
    """
    try:
        saved = _find_saved(folder, key)
        tables = saved if saved is not None else _list_named(folder) or _list_named(folder, "data")
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DataError(
            f"the dataset in {folder} cannot be read: {type(error).__name__}: {str(error)[:200]}",
            "a folder that save_to_disk of the datasets library wrote",
            "write it again",
            key=key,
        ) from None
    splits: dict[str, str] = {}
    for split, split_names in WORDS.items():
        split_tables = [name for name in tables if os.path.splitext(name.lower())[0] in split_names]
        if len(split_tables) > 1:
            raise DataError(
                f"{folder} has {' and '.join(tables[name] for name in split_tables)} for one split",
                "one table for each split",
                "name the tables: data.train, data.validation, data.test",
                key=key,
            )
        if split_tables:
            splits[split] = tables[split_tables[0]]
    if "train" in splits:
        return splits
    if len(tables) == 1:
        return {"": next(iter(tables.values()))}
    scripts = [name for name in sorted(os.listdir(folder)) if name.endswith(SCRIPT)] if not tables else []
    raise DataError(
        f"{folder} is a folder without a table{f'; its {scripts[0]} is code, which is not run' if scripts else ''}"
        if not tables
        else f"{folder} is a folder with {len(tables)} tables, and none is called train: {', '.join(sorted(tables)[:6])}",
        "one table, or train, validation and test: CSV, TSV, JSONL, Parquet, or a folder of save_to_disk",
        "name one file",
        key=key,
    )


def has_images(folder: Path) -> bool:
    """Return whether a folder holds tables with images, as the datasets library writes them, not image folders."""
    if any(os.path.isfile(folder / name) for name in ("dataset_dict.json", "state.json")):
        return True
    try:
        folders = {entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
        folders = {name for name in folders if not is_leftover(name)}
        tables = {**_list_named(folder), **_list_named(folder, "data")}
    except OSError:
        return False
    return folders <= {"data"} and any(path.lower().endswith((".parquet", ".arrow")) for path in tables.values())


def find_table(folder: Path, key: str) -> Path:
    """Return the only table in a folder; raises DataError with `key` if there are several or none."""
    by_split = find_splits(folder, key)
    if "" not in by_split:
        raise DataError(
            f"{folder} is a folder with the splits {', '.join(by_split)}",
            "one table",
            f"name one: {folder / next(iter(by_split.values()))}",
            key=key,
        )
    return folder / by_split[""]


def _find_saved(folder: Path, key: str) -> dict[str, str] | None:
    """Find the splits of a folder that save_to_disk wrote; None for other folders."""
    splits_file = folder / "dataset_dict.json"
    if splits_file.is_file():
        names = _read_names(splits_file, key, lambda data: data["splits"])
        return {name: os.path.join(name, _find_first_file(folder / name, key)) for name in names}
    return {"": _find_first_file(folder, key)} if (folder / "state.json").is_file() else None


def _find_first_file(folder: Path, key: str) -> str:
    """Find the first file of a split, which stands for all files of its table."""
    return min(_read_names(folder / "state.json", key, lambda data: [row["filename"] for row in data["_data_files"]]))


def _read_names(file: Path, key: str, select: Callable[[dict[str, Any]], list[str]]) -> list[str]:
    """Read the names in a file of save_to_disk; raises DataError if it has none, or one is not below its folder."""
    try:
        names = list(select(parse_json(file.read_bytes(), dict)))
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    else:
        reason = "" if names else "it names nothing"
        check_named_files(file, names, key, follow_links=True)
    if reason:
        description, possible = f"{file} cannot be read: {reason}", "the file as save_to_disk wrote it"
        raise DataError(description, possible, "save the dataset again, or name one table file", key=key)
    return names


def _stays_below(folder: Path, name: str) -> bool:
    """Return whether a file is below a folder, links followed; in the hub's cache all files are links to blobs."""
    commit = next((path for path in (folder, *folder.parents) if path.parent.name == "snapshots"), None)
    root = commit.parent.parent if commit else folder
    return (folder / name).resolve().is_relative_to(root.resolve())


def check_named_files(file: Path, names: Iterable[object], key: str, *, follow_links: bool = False) -> None:
    """Check that all file names listed in a data file are below its folder, since the file is untrusted.

    Images may be links, as tools for large data make them. With `follow_links`, a link may not lead out of the folder.

    Raises:
        DataError: if a name leads out of the folder; names `key`.
    """
    folder = file.parent
    for name in names:
        if not is_below(folder, name) or (follow_links and not _stays_below(folder, str(name))):
            raise DataError(
                f"{file} names {readable(str(name))!r}, which is not below {folder}",
                f"files in {folder} and its folders, by their names from there",
                f"move them there and correct the names, or move {file.name} to a folder above all of them",
                key=key,
            )


def _list_named(folder: Path, inside: str = "") -> dict[str, str]:
    """List tables by the stem of their names; a table in several files is named by its first file."""
    by_stem: dict[str, str] = {}
    inner_folder = folder / inside
    for name in sorted(os.listdir(inner_folder)) if inner_folder.is_dir() else ():
        stem, suffix = os.path.splitext(name)
        if name.startswith(".") or suffix.lower() not in SUFFIXES or not (inner_folder / name).is_file():
            continue
        shard = SHARD.fullmatch(name)
        if shard is None or not int(shard["number"]):
            table_stem = shard["stem"] if shard else stem
            # Of two tables with one stem, such as a.csv and a.parquet, the second is listed by its full name.
            by_stem[name if table_stem in by_stem else table_stem] = os.path.join(inside, name)
    return by_stem


def check_is_table(path: Path, key: str) -> None:
    """Check, by its name and first bytes, that a file is not in another format that must be converted to a table.

    Raises:
        DataError: if it must be converted, with the command; names `key`.
    """
    named = path
    # Readers of other formats check the first bytes themselves.
    if path.suffix.lower() in (".csv", ".tsv") and path.is_file():
        with path.open("rb") as file:
            start = file.read(8)
        named = path.with_name(path.name + next((s for mark, s in _FIRST_BYTES.items() if start.startswith(mark)), ""))
    for endings, (kind, new_suffix, command) in _CONVERSIONS.items():
        if not named.name.lower().endswith(endings):
            continue
        # Programs look at the end of the name, too.
        renaming = (
            "" if named == path else f"rename it: mv {shlex.quote(str(path))} {shlex.quote(str(named))}\n            "
        )
        # An archive of images gets a folder of its own, a table lies beside the archive.
        is_table = Path(path.stem).suffix.lower() in SUFFIXES or bool(new_suffix)
        folder = path.parent if is_table else path.with_name(path.name.split(".")[0])
        # The job keeps naming the path of a renamed file.
        paths = {"OLD": named, "NEW": path if renaming else path.with_suffix(new_suffix), "FOLDER": folder}
        command = re.sub("OLD|NEW|FOLDER", lambda match: shlex.quote(str(paths[match[0]])), command)  # noqa: B023
        raise DataError(
            f"{path} is {kind}{', by its first bytes' if renaming else ''}",
            "a CSV, TSV, JSONL or Parquet file; or a folder of images",
            f"{renaming}convert it: {command}",
            key=key,
        )


def check_date_columns(date_columns: Iterable[str], columns: Collection[str], path: Path, label: str) -> None:
    """Check that a table has none of the columns that are made from its dates; `label` names its key.

    Raises:
        DataError: if it has one.
    """
    if name := next((name for name in date_columns if name in columns), ""):
        raise DataError(
            f'{path} has a column "{name}", which data.dates makes, too',
            "one column of each name",
            f'rename it, leave "{name.rpartition(".")[2]}" out in data.dates, or add it to data.ignore',
            key=label,
        )


def check_suffix(path: Path, key: str, possible: Sequence[str] = SUFFIXES) -> None:
    """Check that a file has the suffix of a table, or another one in `possible`.

    Raises:
        DataError: if it has another suffix; names `key`.
    """
    suffix = path.suffix.lower()
    if suffix in possible:
        return
    action = f"name a file that ends in {', '.join(possible)}"
    raise DataError(f"{path} has an unknown file type", POSSIBLE, action, key=key)
