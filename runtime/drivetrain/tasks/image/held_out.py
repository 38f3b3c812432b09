"""Divides the files of one path into training and validation: by the user's groups, by sources, or one by one."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import InputRecord
from drivetrain.data.partition import Division, Partition, hold_out_groups, number_groups
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata
from drivetrain.errors import DataError
from drivetrain.job.data import FOLDERS, NAMES, OFF
from drivetrain.job.values import parse_fold
from drivetrain.tasks.image import near_copies
from drivetrain.tasks.image.image_table import FileTable
from drivetrain.tasks.image.job import FileJob
from drivetrain.tasks.image.near_copies import Sources

SOURCES_KEY = "sources"
"""Key in the stored preprocessing; it marks runs whose split keeps the images of a source together."""


def divide(
    job: FileJob, table: FileTable, strata: Strata, division: Division, recorded: InputRecord | None
) -> Partition | None:
    """Divide the usable files by whole sources; None, with a note, if there are none, or too few of them.

    Raises:
        DataError: if the job groups by folders, and the class folders have no subfolders.
    """
    # A run that did not divide by sources keeps its split when it is resumed.
    if recorded is not None and recorded.same_data and SOURCES_KEY not in recorded.preprocessing:
        return None
    sources = find_sources(job, table, strata.numbers)
    return _divide_by_source(job, table, strata, sources, division) if sources else None


def find_sources(job: FileJob, table: FileTable, strata: npt.NDArray[np.int64]) -> Sources | None:
    """Find files of one source by their names, unless the job turns this off.

    Raises:
        DataError: if the job groups by folders, and the class folders have no subfolders.
    """
    data, names = job.data, table.images.list_file_names()
    if data.groups == OFF or not names:
        return None
    in_classes = job.resolve(data.train).is_dir()
    requested = data.groups if in_classes and data.groups in (FOLDERS, NAMES) else ""
    paths = [names[row] for row in table.usable.tolist()]
    if requested == FOLDERS and not any(path.count(os.sep) > 1 for path in paths):
        raise DataError(
            f"data.groups is {FOLDERS}, and the folders of the classes have no folders in them",
            "one folder for each group in the folder of each class",
            f"write `groups: {NAMES}` to group by the names of files, or remove data.groups",
            key=table.source.key,
        )

    def measure_distances(first: Ids, second: Ids) -> npt.NDArray[np.float64]:
        return table.images.compare(table.usable[first], table.usable[second])

    return near_copies.find(paths, strata, measure_distances, in_classes=in_classes, requested=requested or "")


def _divide_by_source(
    job: FileJob, table: FileTable, strata: Strata, sources: Sources, division: Division
) -> Partition | None:
    """Divide whole sources; None, with a note, if a class or a side would be left without any source."""
    head = f"{len(table.usable):,} {table.kind.nouns} are of {sources.count:,} sources ({sources.reason})"
    turn_off = f"`groups: {OFF}` in data if they are unrelated"
    part_count = parse_fold(job.data.fold)[1] if job.data.fold else 2
    members = division.join_groups(number_groups(sources.names))
    if int(members.max()) + 1 >= part_count:
        partition = hold_out_groups(job, [strata], "one source", members, division)
        if not partition.lost_classes:
            table.notes.append(f"{head}: all of a source are on one side of the split; {turn_off}")
            return replace(partition, stored={**partition.stored, SOURCES_KEY: sources.count})
    table.notes.append(
        f"{head}, too few to keep each on one side: the score says little about other sources; {turn_off}, else add sources or "
        "name a path for data.validation"
    )
    return None
