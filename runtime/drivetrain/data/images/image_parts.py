"""The images of an image job in class folders, a manifest or an .npz file: divided, and compared with each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drivetrain.data import copies, groups
from drivetrain.data.dataset import Dataset, Head, InputRecord
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.images import geometry, pixel_scale, source
from drivetrain.data.images.geometry import Geometry
from drivetrain.data.images.image_files import Files
from drivetrain.data.images.image_targets import ClassTargets, LabelForm
from drivetrain.data.images.preprocess import ImagePreprocessing
from drivetrain.data.images.source import ImageSource, ImageSplit
from drivetrain.data.partition import Partition, Parts, hold_out, hold_out_groups
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import Strata
from drivetrain.job.images import ImageJob
from drivetrain.pretrained import image_input


@dataclass
class ImageParts(Parts[ImageSource]):
    """The images of a job in memory or files, divided into training and validation."""

    job: ImageJob
    stored: dict[str, int]
    """What the preprocessing stores of the division."""
    geometry: Geometry
    """How the network sees the images."""
    sample: None = None
    """All training images decide the preprocessing."""
    train_split: ImageSplit | None = None

    def build_measured_split(self, head: Head) -> ImageSplit:
        """The images that decide the preprocessing."""
        self.train_split = _build_split(self.train, self.train_rows, head)
        return self.train_split

    def build_splits(self, head: Head, prepare: ImagePreprocessing) -> tuple[ImageSplit, ImageSplit, list[str]]:
        """The splits for training and for validation, and notes on the latter.

        Raises:
            DataError: if the validation images are on another scale than the training images.
        """
        train, validation = self.train_split, self.validation
        assert train is not None
        if validation is self.train:
            return train, _build_split(validation, self.validation_rows, head), []
        validation.images, shape = pixel_scale.read_as_trained(
            validation.images, validation.rows, prepare, validation.key
        )
        validation.fit(self.geometry.size, self.geometry.channels, shape)
        split = _build_split(validation, validation.rows, head)
        scale_notes = pixel_scale.check_some(split, prepare, validation.key)
        notes = [f"validation: {note}" for note in scale_notes]
        return train, split, [*notes, *validation.notes, *_note_shared(self.train, validation)]

    def complete(self, dataset: Dataset) -> Dataset:
        """The dataset with what images in memory and files have."""
        share = float(self.train.images.oblong[self.train.rows].mean()) if len(self.train.rows) else 0.0
        return replace(
            dataset,
            views=self.job.data.augment.views or 0,
            decoded=not isinstance(self.train.images, Files),
            notes=[*dataset.notes, *self.train.notes],
            facts={"oblong": {"share": share, "fit": self.geometry.resize.fit}},
            files={
                one.key: one.images.names
                for one in self.sources
                if isinstance(one.images, Files) and not one.images.cells
            },
        )


def read(job: ImageJob, form: LabelForm, recorded: InputRecord | None, files: CsvFiles) -> ImageParts:
    """Read and divide the images of a job; raises DataError if the images cannot be used."""
    data = job.data
    train = source.read(job.resolve(data.train), data.path_column, form, "data.train", files, data.bad_samples)
    train.check_targets()
    image_geometry = geometry.decide(job, train, recorded, image_input.read_expected(job))
    image_geometry.notes.extend(_note_contradictions(train))
    if isinstance(data.validation, str):
        # Further files are read with the separator that was found in the training data.
        form = replace(form, separator=train.separator or form.separator, groups="")
        path = job.resolve(data.validation)
        validation = source.read(path, data.path_column, form, "data.validation", files, data.bad_samples)
        return ImageParts(train, train.rows, validation, validation.rows, job, {}, image_geometry)
    division = copies.Division(train.images.contents[train.rows], "images", recorded)
    partition = _hold_out(job, train, division)
    train_rows, validation_rows = train.rows[partition.training], train.rows[partition.validation]
    return ImageParts(train, train_rows, train, validation_rows, job, division.to_json(), image_geometry)


def _hold_out(job: ImageJob, train: ImageSource, division: copies.Division) -> Partition:
    """Divide the usable images of one source; adds notes on their targets and on the division."""
    targets = train.targets
    classes = targets.head(train.rows, train.rows, train.key).classes if isinstance(targets, ClassTargets) else ()
    strata = Strata(targets.strata(train.rows), classes)
    if train.groups:
        members = division.join_groups(groups.number_groups([train.groups[row] for row in train.rows.tolist()]))
        partition = hold_out_groups(job, strata, job.data.groups or "", members, division)
    else:
        partition = hold_out(job, strata, division)
    # That a class with a single image is for training is not so where groups are divided.
    train.notes += [] if classes and train.groups else targets.notes(train.rows)
    train.notes += partition.notes
    return partition


def _build_split(images: ImageSource, rows: Ids, head: Head) -> ImageSplit:
    return ImageSplit(images.images, rows, images.build_tensor(rows, head))


def _note_shared(train: ImageSource, validation: ImageSource) -> list[str]:
    """A note on images that are in both splits, which makes validation scores too good."""
    training_contents, validation_contents = (part.images.contents[part.rows] for part in (train, validation))
    return copies.note_shared(
        training_contents,
        validation_contents,
        lambda index: validation.images.title(validation.rows[index]),
        "validation images",
    )


def _note_contradictions(train: ImageSource) -> list[str]:
    if not isinstance(train.targets, ClassTargets):
        return []
    contents, classes = train.images.contents[train.rows], train.targets.take_rows(train.rows)
    return copies.note_contradictions(contents, classes, lambda index: train.images.title(train.rows[index]), "images")
