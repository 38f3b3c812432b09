"""Finds for a draft which images belong together: copies of one source, or a column of patients or videos."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from drivetrain.data.images import near_copies
from drivetrain.data.survey.table_sample import TableSample
from drivetrain.job.draft import Entry, quote

GROUP_NAMES = {
    *(
        "patient",
        "subject",
        "person",
        "participant",
        "source",
        "group",
        "video",
        "clip",
        "scene",
        "session",
        "sequence",
        "user",
        "case",
    ),
    *(
        "animal",
        "object",
        "specimen",
        "slide",
        "study",
        "track",
        "original",
        "paciente",
        "sujeto",
        "persona",
        "grupo",
        "caso",
        "escena",
    ),
}
"""Names of a column whose images belong together, without `_id` and the like."""


def describe_sources(paths: Sequence[str], labels: Sequence[str], *, in_classes: bool = True) -> list[str]:
    """Describe images of one source for a draft, if their names alone say so; training compares images, too."""
    if len(paths) != len(labels):
        return []
    strata = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    sources = near_copies.find(
        paths, strata, lambda first, second: np.ones(len(first)), in_classes=in_classes, requested=""
    )
    return (
        [f"{sources.count:,} sources ({sources.reason}); all images of a source are on one side of the split"]
        if sources
        else []
    )


def find_column(sample: TableSample, used: Sequence[str]) -> list[Entry]:
    """Find the key for a column that names patients, videos or other groups of images; empty without one."""
    for column in sample.columns.values():
        plain_name = re.sub(r"[ _.-]?(id|name|number|no|nr|key)$", "", column.name.casefold())
        if plain_name in GROUP_NAMES and column.name not in used and 2 < column.different <= column.filled * 2 / 3:
            reason = f"{column.different:,} groups; all images of a group are on one side of the split"
            return [Entry("groups", quote(column.name), reason)]
    return []
