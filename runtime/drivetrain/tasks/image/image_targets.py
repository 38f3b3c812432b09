"""The form of the targets of files: a class, several labels, or numbers; what is checked and noted about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from drivetrain.data import labels, partition, target_columns
from drivetrain.data.dataset import Head
from drivetrain.data.notes import list_names
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata, TargetColumn
from drivetrain.errors import DataError
from drivetrain.job.data import OFF, FileData, FileLabels
from drivetrain.tasks.image import IMAGES
from drivetrain.tasks.modality import FileKind


@dataclass(frozen=True)
class LabelForm:
    """Form of the targets: the columns, and whether they hold a class, labels or numbers."""

    kind: Literal["class", "labels", "numbers"]
    columns: tuple[str, ...]
    """Columns of a manifest; several label columns hold 0 and 1, a single column has all labels of an image."""
    separator: str = "auto"
    """Separator of the labels in a cell; auto, or empty, to detect it."""
    groups: str = ""
    """Column of a manifest with groups for the split; empty for none."""
    ask: bool = False
    """Whether a column of classes that looks like something else is an error."""

    @property
    def in_a_cell(self) -> bool:
        """Whether one cell has all labels of an image."""
        return self.kind == "labels" and len(self.columns) == 1

    def to_json(self, separator: str) -> dict[str, object]:
        """Return plain JSON values to store with the model; classes have no `targets`, as in older versions."""
        stored: dict[str, object] = {"label_column": self.columns[0] if len(self.columns) == 1 else list(self.columns)}
        return stored if self.kind == "class" else stored | {"targets": {"kind": self.kind, "separator": separator}}

    @classmethod
    def of_job(cls, data: FileData, *, ask: bool) -> LabelForm:
        """Return the form that a job declares; `ask` if its data has not been read before."""
        groups = "" if data.groups in (None, OFF) else data.groups
        if not isinstance(data, FileLabels):
            return cls("numbers", data.label_column, groups=groups)
        if data.several:
            return cls("labels", data.label_column, data.label_separator, groups)
        return cls("class", data.label_column, groups=groups, ask=ask and data.multi_label is None)

    @classmethod
    def of_model(cls, preprocessing: Mapping[str, Any]) -> LabelForm:
        """Return the form that a model was trained with."""
        columns, stored = preprocessing["label_column"], preprocessing.get("targets", {})
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        return cls(stored.get("kind", "class"), names, stored.get("separator") or "auto")


def check(target: TargetColumn, rows: Ids, key: str, kind: FileKind = IMAGES) -> None:
    """Check that each class has a usable file, and that there are two classes, or a label; numbers are checked later.

    Raises:
        DataError: if not; names `key`.
    """
    if target.are_listed and not target.numbers[rows].any():
        raise DataError(f"none of {len(rows):,} {kind.nouns} has a label", "one label or more", "add labels", key=key)
    if target.indices is None:
        return
    used = set(target.list_names(rows))
    if without_file := sorted(set(target.classes) - used):
        raise DataError(
            f"no {kind.noun} can be used of the classes {list_names(without_file)}",
            f"at least one {kind.noun} for each class",
            f"repair these {kind.nouns}, or remove the class",
            key=key,
        )
    if len(used) < 2:
        raise DataError(
            f"{len(rows):,} {kind.nouns} of {len(used)} class: {list_names(sorted(used))}",
            "two classes or more",
            "add another class",
            key=key,
        )


def build_head(target: TargetColumn, rows: Ids, train: Ids, key: str) -> Head:
    """Build the head as `target_columns.build_head` does; classes of images may be as many as there are."""
    if target.indices is not None:
        return Head("", labels.sort_class_names(target.list_names(rows)))
    return target_columns.build_head(target, rows, train, key)


def find_strata(target: TargetColumn, rows: Ids) -> Strata:
    """Find the class of each image, in the order of the outputs, or its rarest label; numbers are split at random."""
    if target.several:
        return Strata(partition.find_rarest_labels(target.numbers[rows]), ())
    if target.indices is not None:
        return target_columns.find_ordered_strata(target, rows)
    return target_columns.find_strata(target, rows)


def note_values(target: TargetColumn, rows: Ids) -> list[str]:
    """Return notes: the frequency of each label, or the range of each number."""
    if target.indices is not None:
        return []
    values = target.numbers[rows]
    if target.several:
        counts = Counter({name: int(n) for name, n in zip(target.names, values.sum(axis=0), strict=True)})
        return [labels.describe_label_counts(counts, int((values.sum(axis=1) == 0).sum()))]
    return [
        f"{name} from {column.min():g} to {column.max():g}, mean {column.mean():g}"
        for name, column in zip(target.names, values.T, strict=True)
    ]
