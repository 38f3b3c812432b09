"""Targets of images as written, for all images of a source: a class, several labels, or numbers.

`check` and `head` raise a DataError, which names `key`, if there is nothing to learn; `encode` does for a class or
label that the head does not have. A split keeps the share of each stratum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from drivetrain.data import labels, partition, target_columns
from drivetrain.data.dataset import Head
from drivetrain.data.notes import list_names
from drivetrain.data.source import BadSample, check_bad_samples
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError
from drivetrain.job.data import OFF, ImageClassificationData, ImageData

if TYPE_CHECKING:
    from drivetrain.data.images.image_column import ImageCells


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
    def of_job(cls, data: ImageData, *, ask: bool) -> LabelForm:
        """Return the form that a job declares; `ask` if its data has not been read before."""
        groups = "" if data.groups in (None, OFF) else data.groups
        if not isinstance(data, ImageClassificationData):
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


@dataclass(frozen=True)
class ClassTargets:
    """One class for each image."""

    names: Sequence[str]

    def take_rows(self, rows: Ids) -> list[str]:
        """Take the classes of some images."""
        return [self.names[row] for row in rows.tolist()]

    def check(self, rows: Ids, key: str) -> None:
        """Check that each class has a usable image, and that there are two."""
        used = set(self.take_rows(rows))
        if without_image := sorted(set(self.names) - used):
            raise DataError(
                f"{key}: no image can be used of the classes {list_names(without_image)}",
                "at least one image for each class",
                "repair these images, or remove the class",
            )
        if len(used) < 2:
            raise DataError(
                f"{key}: {len(rows):,} images of {len(used)} class: {list_names(sorted(used))}",
                "two classes or more",
                "add another class",
            )

    def strata(self, rows: Ids) -> npt.NDArray[np.int64]:
        """Return the class of each image."""
        used = self.take_rows(rows)
        return labels.index_labels(used, labels.sort_class_names(used), "")

    def head(self, rows: Ids, train: Ids, key: str) -> Head:
        """Build the output with all classes of the usable images `rows`; `train` are the training images among them."""
        return Head("", labels.sort_class_names(self.take_rows(rows)))

    def encode(self, rows: Ids, head: Head, key: str) -> npt.NDArray[Any]:
        """Return class indices (rows,) int64."""
        return labels.index_labels(self.take_rows(rows), head.classes, key)

    def notes(self, rows: Ids) -> list[str]:
        """Return a note on classes with a single image, if there are any."""
        counts = Counter(self.take_rows(rows))
        single_classes = sorted(name for name, count in counts.items() if count == 1)
        return (
            [f"classes with a single image, which is used for training: {list_names(single_classes)}"]
            if single_classes
            else []
        )


@dataclass(frozen=True)
class LabelSets:
    """Any number of labels for each image, by name."""

    sets: Sequence[Sequence[str]]

    def check(self, rows: Ids, key: str) -> None:
        """Check that there is a label."""
        if not any(self.sets[row] for row in rows.tolist()):
            raise DataError(f"{key}: none of {len(rows):,} images has a label", "one label or more", "add labels")

    def strata(self, rows: Ids) -> npt.NDArray[np.int64]:
        """Return the rarest label of each image."""
        return partition.find_rarest_labels(self._to_matrix(rows, self._list_labels(rows)))

    def head(self, rows: Ids, train: Ids, key: str) -> Head:
        """Build the output with all labels."""
        names = self._list_labels(rows)
        all_rows = np.arange(len(self.sets), dtype=np.int64)
        target = TargetColumn(names, None, self._to_matrix(all_rows, names), several=True, bad={})
        return target_columns.build_head(target, rows, train, key)

    def encode(self, rows: Ids, head: Head, key: str) -> npt.NDArray[Any]:
        """Return labels (rows, labels) of 0 and 1, float32."""
        labels.index_labels([name for row in rows.tolist() for name in self.sets[row]], head.classes, key)
        return self._to_matrix(rows, head.classes).astype(np.float32)

    def notes(self, rows: Ids) -> list[str]:
        """Return a note on the frequency of each label."""
        counts = Counter(name for row in rows.tolist() for name in self.sets[row])
        unlabelled_count = sum(not self.sets[row] for row in rows.tolist())
        return [labels.describe_label_counts(counts, unlabelled_count)]

    def _list_labels(self, rows: Ids) -> tuple[str, ...]:
        return labels.sort_class_names(name for row in rows.tolist() for name in self.sets[row])

    def _to_matrix(self, rows: Ids, names: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the labels of some images as (rows, names) of 0 and 1."""
        index_of = {name: index for index, name in enumerate(names)}
        matrix = np.zeros((len(rows), len(names)))
        for index, row in enumerate(rows.tolist()):
            matrix[index, [index_of[name] for name in self.sets[row] if name in index_of]] = 1
        return matrix


@dataclass(frozen=True)
class NumberTargets:
    """Numbers for each image; labels of 0 and 1 are numbers, too."""

    goal: TargetColumn

    def check(self, rows: Ids, key: str) -> None:
        """Do nothing: `head` checks the numbers of the training images."""

    def strata(self, rows: Ids) -> npt.NDArray[np.int64]:
        """Return the rarest label of each image; numbers are split at random."""
        return (
            partition.find_rarest_labels(self.goal.numbers[rows])
            if self.goal.several
            else np.zeros(len(rows), np.int64)
        )

    def head(self, rows: Ids, train: Ids, key: str) -> Head:
        """Build the output with the labels, or with the numbers and their scale in the training images."""
        return target_columns.build_head(self.goal, rows, train, key)

    def encode(self, rows: Ids, head: Head, key: str) -> npt.NDArray[Any]:
        """Return labels (rows, labels) of 0 and 1, or scaled numbers (rows, columns); float32."""
        names = head.classes or head.columns
        if names != self.goal.names:
            raise DataError(
                f"{key}: labels have {len(self.goal.names)} columns",
                f"as in the training data: {len(names)}",
                "write the file again",
            )
        return target_columns.encode(self.goal, rows, head, key)

    def notes(self, rows: Ids) -> list[str]:
        """Return a note on the frequency of labels, or notes on the range of each number."""
        values = self.goal.numbers[rows]
        if self.goal.several:
            counts = Counter({name: int(n) for name, n in zip(self.goal.names, values.sum(axis=0), strict=True)})
            return [labels.describe_label_counts(counts, int((values.sum(axis=1) == 0).sum()))]
        return [
            f"{name} from {column.min():g} to {column.max():g}, mean {column.mean():g}"
            for name, column in zip(self.goal.names, values.T, strict=True)
        ]


ImageTargets = ClassTargets | LabelSets | NumberTargets
"""Targets of all images of a source, by image."""


def take_usable(target: TargetColumn, keep: Sequence[int]) -> NumberTargets:
    """Take the targets of some rows; all of them must be usable."""
    return NumberTargets(replace(target, numbers=target.numbers[list(keep)], bad={}))


@dataclass
class ManifestRows:
    """Paths and targets as written, and the rows without a path or a target."""

    names: list[str] = field(default_factory=list)
    """Path of each usable image, as written."""
    numbers: list[int] = field(default_factory=list)
    """Row of each of these in the table, from 0."""
    targets: ImageTargets | None = None
    bad: list[BadSample] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    """Group names as written, if the form has a group column; empty text for no group."""
    separator: str = ""
    """Separator of the labels in a cell; empty if no cell has several."""
    cells: ImageCells | None = None
    """Images in the table; `names` are then their titles. None for files."""
    notes: list[str] = field(default_factory=list)
    unsure: int = 0
    """Number of rows that have -1 or nothing in a label column."""

    def check_bad(self, broken: Sequence[BadSample], count: int, budget: float, key: str) -> list[str]:
        """Check the unusable images: bad rows, and those among `count` images that are broken; returns notes."""
        try:
            return check_bad_samples([*self.bad, *broken], count + len(self.bad), budget, key)
        except DataError as error:
            if not self.unsure:
                raise
            # Data sets of medical images have both forms.
            action = (
                f"{self.unsure:,} rows have -1 or nothing where a label is uncertain or not mentioned: write 0 or 1 in their "
                f"place, as the data set's authors advise (often 0 for nothing); or {error.action}"
            )
            raise DataError(error.given, error.possible, action) from None
