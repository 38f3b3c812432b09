"""The folder of an evaluation: metrics.json, and for each output with classes the confusion matrix as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from drivetrain.report.confusion import HEADER, Confusion, LabelTable
from drivetrain.system import printable
from drivetrain.system.files import blame_storage, write_json
from drivetrain.system.run_files import RunFiles

METRICS = "metrics.json"


def choose_folder(run: Path, data: Path | None) -> Path:
    """Choose `evaluation/` in the run for its validation data, for other data a folder named after it.

    A number is added if that folder is about data of the same name in another place.
    """
    if data is None:
        return run / "evaluation"
    resolved = data.resolve()
    name = f"evaluation-{_make_safe(resolved.stem if resolved.is_file() else resolved.name)}"
    folders = (run / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in folders if not folder.exists() or _is_about(folder, resolved))


def _is_about(folder: Path, data: Path) -> bool:
    """Return whether an evaluation of this data is in the folder; then it is replaced."""
    source = RunFiles(folder).read_object(METRICS).get("data")
    return isinstance(source, str) and Path(source).resolve() == data


def write(folder: Path, data: dict[str, object], counts: list[Confusion], tables: Sequence[LabelTable] = ()) -> None:
    """Write an evaluation.

    Args:
        folder: created if it is missing.
        data: content of metrics.json.
        counts: the confusion matrices.
        tables: the scores of labels that can be true together.

    Raises:
        StorageError: if it cannot be written.
    """
    with blame_storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / METRICS, data)
        for confusion in counts:
            stem = folder / (f"confusion-{_make_safe(confusion.head)}" if confusion.head else "confusion")
            _write_matrix(confusion, stem.with_name(f"{stem.name}.csv"))
        for table in tables:
            _write_labels(table, folder / (f"labels-{_make_safe(table.head)}.csv" if table.head else "labels.csv"))


def _write_labels(table: LabelTable, path: Path) -> None:
    """Write a row for each label."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for row in table.rows:
            shares = [cell.replace("-", "") for cell in row.format_cells()[3:]]
            writer.writerow(printable.escape_row([row.name, row.true, row.guessed, *shares]))


def _make_safe(name: str) -> str:
    """Make a column name, or the name of a file, in a form that is safe in a file name."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)


def _write_matrix(confusion: Confusion, path: Path) -> None:
    """Write a matrix with true classes by row, predictions by column."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(printable.escape_row(["truth", *confusion.classes]))
        writer.writerows(
            printable.escape_row([name, *row]) for name, row in zip(confusion.classes, confusion.matrix, strict=True)
        )
