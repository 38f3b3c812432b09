"""Divides the images of one path into training and validation: by the user's groups, by sources, or one by one."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import InputRecord
from drivetrain.data.images import near_copies
from drivetrain.data.images.image_files import Files
from drivetrain.data.images.image_table import ImageTable
from drivetrain.data.images.near_copies import Sources
from drivetrain.data.partition import Division, Partition, hold_out_groups, number_groups
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata
from drivetrain.errors import DataError
from drivetrain.job.data import FOLDERS, NAMES, OFF
from drivetrain.job.images import ImageJob
from drivetrain.job.values import parse_fold

SOURCES_KEY = "sources"
"""Key in the stored preprocessing; it marks runs whose split keeps the images of a source together."""
_COMPARED_SIDE = 16
"""Side in pixels of the gray images that are compared."""


def divide(
    job: ImageJob, table: ImageTable, strata: Strata, division: Division, recorded: InputRecord | None
) -> Partition | None:
    """Divide the usable images by whole sources; None, with a note, if there are none, or too few of them.

    Raises:
        DataError: if the job groups by folders, and the class folders have no subfolders.
    """
    # A run that did not divide by sources keeps its split when it is resumed.
    if recorded is not None and recorded.same_data and SOURCES_KEY not in recorded.preprocessing:
        return None
    sources = find_sources(job, table, strata.numbers)
    return _divide_by_source(job, table, strata, sources, division) if sources else None


def find_sources(job: ImageJob, table: ImageTable, strata: npt.NDArray[np.int64]) -> Sources | None:
    """Find images of one source by their names, unless the job turns this off.

    Raises:
        DataError: if the job groups by folders, and the class folders have no subfolders.
    """
    files, data = table.images, job.data
    if data.groups == OFF or not isinstance(files, Files):
        return None
    names = files.cells.file_names() if files.cells else files.names
    if not names:
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
        small = files.fit_to(_COMPARED_SIDE, 1)
        try:
            one, other = (small.gather(table.usable[rows]).float() for rows in (first, second))
        except DataError:  # of images with unusual values
            return np.full(len(first), np.nan)
        return (one - other).abs().mean(dim=(1, 2, 3)).double().numpy()

    return near_copies.find(paths, strata, measure_distances, in_classes=in_classes, requested=requested or "")


def _divide_by_source(
    job: ImageJob, table: ImageTable, strata: Strata, sources: Sources, division: Division
) -> Partition | None:
    """Divide whole sources; None, with a note, if a class or a side would be left without any source."""
    head = f"{len(table.usable):,} images are of {sources.count:,} sources ({sources.reason})"
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
