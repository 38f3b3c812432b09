"""How what is to be predicted of images is written: in which columns, as a class, as labels or as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runtime.job.data import ImageClassificationData, ImageData


@dataclass(frozen=True)
class LabelForm:
    """The form of the targets."""

    kind: Literal["class", "labels", "numbers"]
    columns: tuple[str, ...]
    """Of a manifest; several columns of labels hold 0 and 1, one has all labels of an image."""
    separator: str = "auto"
    """Between the labels of a cell; auto, or empty, to find it."""
    groups: str = ""
    """The column of a manifest with groups for the split; empty for none."""
    ask: bool = False
    """Whether a column of classes that looks like something else is an error."""

    @property
    def in_a_cell(self) -> bool:
        """Whether one cell has all labels of an image."""
        return self.kind == "labels" and len(self.columns) == 1

    def to_json(self, separator: str) -> dict[str, object]:
        """Plain JSON values, which are stored with the model; those of classes are what they were before labels."""
        stored: dict[str, object] = {"label_column": self.columns[0] if len(self.columns) == 1 else list(self.columns)}
        return stored if self.kind == "class" else stored | {"targets": {"kind": self.kind, "separator": separator}}


def of_job(data: ImageData, *, ask: bool) -> LabelForm:
    """The form that a job declares; `ask` if it has not been read before."""
    groups = data.groups or ""
    if not isinstance(data, ImageClassificationData):
        return LabelForm("numbers", data.label_column, groups=groups)
    if data.several:
        return LabelForm("labels", data.label_column, data.label_separator, groups)
    return LabelForm("class", data.label_column, groups=groups, ask=ask and data.multi_label is None)


def of_model(preprocessing: Mapping[str, Any]) -> LabelForm:
    """The form that a model was trained with."""
    columns, stored = preprocessing["label_column"], preprocessing.get("targets", {})
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    return LabelForm(stored.get("kind", "class"), names, stored.get("separator") or "auto")
