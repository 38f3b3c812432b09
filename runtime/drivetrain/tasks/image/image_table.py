"""Images of one path, of any kind, with their labels and usable rows; their splits; and their geometry: size,
channels, and the rule for making an image square."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from drivetrain.data import file_paths, target_columns
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import InputRecord, Inputs, Targets
from drivetrain.data.formats import table_file, table_paths
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.partition import number_groups
from drivetrain.data.reading import SampleTable
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job.data import FOLDERS, NAMES, OFF
from drivetrain.system.console import Detail
from drivetrain.tasks.image import IMAGES, class_folders, image_files, npz_images, resize
from drivetrain.tasks.image.expected_input import ExpectedInput
from drivetrain.tasks.image.image_files import Listing
from drivetrain.tasks.image.image_targets import LabelForm
from drivetrain.tasks.image.job import ImageJob
from drivetrain.tasks.image.npz_images import ImageArrays
from drivetrain.tasks.image.resize import Resize
from drivetrain.tasks.modality import FileKind

Images = npz_images.ImageArrays | image_files.Files
KINDS = (
    "a folder of class folders; a .csv, .tsv, .jsonl or .parquet with paths and labels; a .parquet or .arrow with images and "
    "labels; an .npz of images and labels"
)


class OpenedFiles(Protocol):
    """Sample files of a path, each decoded once as a check."""

    @property
    def contents(self) -> Contents:
        """Digest of each file; 0 for a file that cannot be used."""
        ...

    def __len__(self) -> int: ...

    def title(self, row: int) -> str:
        """Return the name of a file in messages."""
        ...

    def list_file_names(self) -> Sequence[str]:
        """List the paths of the files as named in their table or folder; empty for samples that are no files."""
        ...

    def compare(self, first: Ids, second: Ids) -> npt.NDArray[np.float64]:
        """Measure how different the files of each pair of rows are; NaN if that is unknown."""
        ...


@dataclass(kw_only=True)
class FileTable(SampleTable):
    """All sample files of one path, with their targets."""

    kind: ClassVar[FileKind]
    images: OpenedFiles
    separator: str = ""
    """Separator of the labels in a cell; empty if no cell has several."""

    @classmethod
    def open(cls, listing: Listing) -> OpenedFiles:
        """Decode each listed file once as a check, and add the unusable ones to `listing.broken`."""
        raise NotImplementedError

    def name_target(self, sample: int) -> str:
        """Name the file of a target."""
        return self.images.title(sample)


@dataclass(kw_only=True)
class ImageTable(FileTable):
    """All images of one path, with their targets."""

    kind, noun, single_noun = IMAGES, IMAGES.nouns, IMAGES.noun
    images: Images

    @classmethod
    def open(cls, listing: Listing) -> Images:
        """Decode each image once as a check, and add the unusable ones to `listing.broken`."""
        return listing.open_images()


AnyFiles = TypeVar("AnyFiles", bound=FileTable)


def read(
    table_class: type[AnyFiles], source: Source, path_column: str, form: LabelForm, *, decodes: bool = True
) -> AnyFiles:
    """Read and check every file of a path, decoding it once; or look only whether the files of a table exist.

    Raises:
        DataError: if there is no usable data, or more bad samples than allowed.
    """
    path, key = source.path, source.key
    if not path.exists():
        raise DataError(
            f"{path} does not exist",
            list_forms(table_class.kind),
            "correct the path; it is relative to the job's folder",
            key=key,
        )
    suffix = path.suffix.lower()
    if form.groups and (suffix == ".npz" or (path.is_dir() and form.groups not in (FOLDERS, NAMES))):
        raise DataError(
            f"{path} has no column {form.groups}, which data.groups names",
            f"a column of a manifest (a .csv, .tsv, .jsonl or .parquet); for a folder of classes {FOLDERS}, {NAMES} or {OFF}",
            "write a manifest, or remove data.groups and name a path for data.validation",
            key=key,
        )
    if path.is_dir():
        _check_folder(path, form, key)
    listing = list_files(path, path_column, form, key, source.files, table_class.kind)
    return open_listing(table_class, source, listing, form.groups, decodes=decodes)


def open_listing(
    table_class: type[AnyFiles], source: Source, listing: Listing, group_column: str = "", *, decodes: bool = True
) -> AnyFiles:
    """Decode each listed file once as a check, and drop the files that cannot be used."""
    images = table_class.open(listing) if decodes else listing.find_files(source.path)
    if images.list_file_names() and listing.target is not None:
        paths = (os.path.join(listing.root, listing.names[row]) for row in listing.broken)
        file_paths.check_links(paths, source.path.parent, source.key)
    left_out = listing.check_bad(len(images), source)
    usable = np.setdiff1d(np.arange(len(images), dtype=np.int64), np.array(list(listing.broken), np.int64))
    return table_class(
        source=source,
        usable=usable,
        targets={} if listing.target is None else {"": listing.target},
        notes=[*listing.notes, *left_out],
        groups=number_groups([listing.groups[row] for row in usable.tolist()]) if listing.groups else None,
        group_column=group_column,
        code_cure="leave out these images" if isinstance(images, ImageArrays) else "",
        files=listing.names if images.list_file_names() and not listing.cells else (),
        images=images,
        separator=listing.separator,
    )


def list_forms(kind: FileKind) -> str:
    """List the forms of samples that a job can name."""
    return (
        KINDS
        if kind.can_be_in_tables
        else "a folder of class folders; a .csv, .tsv, .jsonl or .parquet with paths and labels"
    )


def list_files(
    path: Path, path_column: str, form: LabelForm | None, key: str, files: CsvFiles, kind: FileKind
) -> Listing:
    """List the files of a folder, a table or an .npz with their targets; without a form, files alone, or one file.

    Raises:
        DataError: if there are none, or the file is none of these; names `key`.
    """
    suffix = path.suffix.lower()
    if suffix == ".npz" and path.is_file() and kind.can_be_in_tables:
        arrays, target, broken, notes = npz_images.read(path, key, form)
        return Listing(target=target, arrays=arrays, broken=broken, notes=notes)
    if path.is_dir():
        folder = class_folders.read(path, key, kind) if form else class_folders.list_all(path, key, kind)
        target = target_columns.of_classes(folder.labels, "label") if form else None
        return Listing(str(path), folder.names, target=target, notes=folder.notes)
    if suffix in table_file.SUFFIXES and path.is_file():
        # Imported here: only tables need its pyarrow.
        table_file.check_installed(path, key)
        from drivetrain.tasks.image import manifest

        return manifest.read(path, path_column, form, key, files, kind)
    if form is None:
        return Listing(names=[str(path)])
    table_paths.check_is_table(path, key)
    raise DataError(f"{path} has an unknown file type", list_forms(kind), "use one of these", key=key)


def check_has_labels(sources: Sequence[Source], kind: FileKind) -> None:
    """Refuse several paths if labels are needed, and a file without labels, such as an image."""
    path, key = sources[0].path, sources[0].key
    if len(sources) > 1:
        raise DataError(f"{len(sources)} paths with labels", "one at a time", "evaluate them one by one", key=key)
    if not path.is_dir() and path.suffix.lower() not in (*table_file.SUFFIXES, ".npz"):
        raise DataError(
            f"{path} is a file without a label",
            "a folder with one folder per class, a manifest with labels, or an .npz with labels"
            if kind.can_be_in_tables
            else "a folder with one folder per class, or a manifest with labels",
            "name one of these, or use `drivetrain predict`, which needs no labels",
            key=key,
        )


def list_unlabelled(sources: Sequence[Source], path_column: str, kind: FileKind) -> Listing:
    """List one .npz file or table of images, or manifests, folders and single files together."""
    listings = [list_files(one.path, path_column, None, one.key, one.files, kind) for one in sources]
    if len(listings) == 1:
        # The titles of images in a table have no folder.
        return replace(listings[0], root="") if listings[0].cells else listings[0]
    joined = Listing()
    for one, listing in zip(sources, listings, strict=True):
        if listing.arrays is not None or listing.cells:
            form = "an .npz" if listing.cells is None else "a table with images in it"
            raise DataError(
                f"{len(sources)} input paths, one of them {form}",
                "one file with images in it, or any number of other files",
                f"pass {one.path} alone",
                key=one.key,
            )
        joined.names += [os.path.join(listing.root, name) for name in listing.names]
        joined.bad += listing.bad
        joined.notes += listing.notes
    return joined


def _check_folder(path: Path, form: LabelForm, key: str) -> None:
    """Check that the job predicts a class, the only target that folders can give; raises DataError if not."""
    if form.kind != "class":
        target_noun = "several labels" if form.kind == "labels" else "numbers"
        raise DataError(
            f"{path} is a folder, which gives each file one class and not {target_noun}",
            "a .csv, .tsv, .jsonl or .parquet with paths and what is to be predicted",
            "write a manifest",
            key=key,
        )


class ImageSplit:
    """Some rows of a source of images, with their targets; images to predict have none.

    `ids` index the samples of this split, `rows` the rows of `images`.
    """

    def __init__(self, images: Images | image_files.Decoded, rows: Ids, targets: Targets) -> None:
        self.images, self.rows, self.targets = images, rows, targets

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Return the pixels of these samples: one tensor (N, C, S, S), uint8 or float32."""
        return (self.images.gather(self.rows[ids]),)

    def contents(self) -> Contents:
        """Return a digest of each image; empty if that would need reading the images again."""
        return (
            self.images.contents[self.rows]
            if not isinstance(self.images, image_files.Decoded)
            else np.zeros(0, np.int64)
        )

    def title(self, index: int) -> str:
        """Return the name of one image in lists and messages."""
        return self.images.title(int(self.rows[index]))


_HOW_SQUARE = {
    "crop": "the ends of the long side are cropped (data.fit: crop); pad or squash keeps them",
    "pad": "they are padded to a square with black bars (data.fit: pad)",
    "squash": "they are resized to a square (data.fit: squash)",
}


@dataclass(frozen=True)
class Geometry:
    """Size, channels and decoding of a job's images for the network."""

    size: int
    """Side of the square in pixels."""
    channels: int
    resize: Resize
    expected: ExpectedInput | None
    """Input that the pretrained network expects; None without one."""
    notes: list[str]
    """Reasons for the choices."""


def decide_geometry(
    job: ImageJob, table: ImageTable, recorded: InputRecord | None, expected: ExpectedInput | None
) -> Geometry:
    """Decide size, channels and how images become square, by `recorded` if there is one."""
    size, channels, notes = _choose_size_and_channels(job, table, expected)
    if recorded:
        stored_size, channels = recorded.preprocessing["image_size"], recorded.preprocessing["channels"]
        # A job that starts from an earlier run may change the size.
        size = stored_size if recorded.same_data or job.data.image_size == "auto" else job.data.image_size
        notes = notes if recorded.same_data else [f"image_size {size}, channels {channels}: as in the earlier run"]
    resize_rule, resize_notes = _decide_resize(job, recorded, expected)
    oblong_count = int(table.images.oblong[table.usable].sum())
    oblong_note = f"{oblong_count:,} of {len(table.usable):,} images are not square: {_HOW_SQUARE[resize_rule.fit]}"
    notes = [*notes, *resize_notes, *([oblong_note] if oblong_count else [])]
    return Geometry(size, channels, resize_rule, expected, notes)


def _choose_size_and_channels(
    job: ImageJob, table: ImageTable, expected: ExpectedInput | None
) -> tuple[int, int, list[str]]:
    """Choose size and channels by the images, the job and the pretrained network; also returns the reasons."""
    sides, grey = table.images.short_sides[table.usable], table.images.grey[table.usable]
    requested = job.data.image_size
    if expected is not None and requested == "auto":
        requested = expected.size or requested
    exact = expected is None and isinstance(table.images, npz_images.ImageArrays)
    size, reason = resize.choose_size(requested, sides, exact)
    if requested != job.data.image_size:
        reason = "the input size of the pretrained network"
    size_note = f"image_size {size}: {reason}"
    if expected is not None:
        return size, expected.channels, [size_note, f"channels {expected.channels}: required by the network"]
    if job.data.channels != "auto":
        channels, channels_reason = job.data.channels, "set in the job file"
    else:
        channels, channels_reason = (1, "all images are grayscale") if grey.all() else (3, "some images are in color")
    if exact or job.data.image_size == size:
        size_note = Detail(size_note)
    return size, channels, [size_note, Detail(f"channels {channels}: {channels_reason}")]


def _decide_resize(
    job: ImageJob, recorded: InputRecord | None, expected: ExpectedInput | None
) -> tuple[Resize, list[str]]:
    """Decide how images become square: as stored, as the pretrained network expects, or by the job; also notes."""
    if recorded:
        return resize.of(recorded.preprocessing), []
    if expected is None:
        return Resize(job.data.fit), []
    is_requested = "fit" in job.data.model_fields_set
    fit = job.data.fit if is_requested else expected.fit or job.data.fit
    resize_rule = Resize(fit, expected.interpolation, 1.0 if fit == "pad" else expected.crop_share)
    return resize_rule, [f"images are resized as the pretrained network expects: {resize_rule.sentence()}"]
