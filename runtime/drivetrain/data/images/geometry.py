"""The geometry of images as the network sees them: size, channels, and how an image becomes square."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.data.dataset import InputRecord
from drivetrain.data.images import npz_images, resize
from drivetrain.data.images.resize import Resize
from drivetrain.data.images.source import ImageSource
from drivetrain.job.images import ImageJob
from drivetrain.pretrained.image_input import ExpectedInput
from drivetrain.system.console import Detail

_HOW_SQUARE = {
    "crop": "the ends of the long side are cropped (data.fit: crop); pad or squash keeps them",
    "pad": "they are padded to a square with black bars (data.fit: pad)",
    "squash": "they are resized to a square (data.fit: squash)",
}


@dataclass(frozen=True)
class Geometry:
    """How the network sees the images of a job."""

    size: int
    """Side of the square in pixels."""
    channels: int
    resize: Resize
    expected: ExpectedInput | None
    """What the pretrained network expects; None without one."""
    notes: list[str]
    """The reasons."""


def decide(
    job: ImageJob, source: ImageSource, recorded: InputRecord | None, expected: ExpectedInput | None
) -> Geometry:
    """Decide size, channels and how images become square, by `recorded` if there is one."""
    size, channels, notes = _choose_size_and_channels(job, source, expected)
    if recorded:
        stored_size, channels = recorded.preprocessing["image_size"], recorded.preprocessing["channels"]
        # Of an earlier run, the job may change the size.
        size = stored_size if recorded.same_data or job.data.image_size == "auto" else job.data.image_size
        notes = notes if recorded.same_data else [f"image_size {size}, channels {channels}: as in the earlier run"]
    resize_rule, resize_notes = _decide_resize(job, recorded, expected)
    oblong_count = int(source.images.oblong[source.rows].sum())
    oblong_note = f"{oblong_count:,} of {len(source.rows):,} images are not square: {_HOW_SQUARE[resize_rule.fit]}"
    notes = [*notes, *resize_notes, *([oblong_note] if oblong_count else [])]
    return Geometry(size, channels, resize_rule, expected, notes)


def _choose_size_and_channels(
    job: ImageJob, train: ImageSource, expected: ExpectedInput | None
) -> tuple[int, int, list[str]]:
    """Choose size and channels by the images, the job and the pretrained network; also notes with the reasons."""
    sides, grey = train.images.short_sides[train.rows], train.images.grey[train.rows]
    requested = job.data.image_size
    if expected is not None and requested == "auto":
        requested = expected.size or requested
    exact = expected is None and isinstance(train.images, npz_images.ImageArrays)
    size, reason = resize.choose_size(requested, sides, exact)
    if requested != job.data.image_size:
        reason = "the input size of the pretrained network"
    size_note = f"image_size {size}: {reason}"
    if expected is not None:
        return size, expected.channels, [size_note, f"channels {expected.channels}: required by the network"]
    if isinstance(job.data.channels, int):
        channels, channels_reason = job.data.channels, "set in the job file"
    else:
        channels, channels_reason = (1, "all images are grayscale") if grey.all() else (3, "some images are in color")
    if exact or job.data.image_size == size:
        size_note = Detail(size_note)
    return size, channels, [size_note, Detail(f"channels {channels}: {channels_reason}")]


def _decide_resize(
    job: ImageJob, recorded: InputRecord | None, expected: ExpectedInput | None
) -> tuple[Resize, list[str]]:
    """How images become square: as stored, as the pretrained network expects, or as the job says; and notes."""
    if recorded:
        return resize.of(recorded.preprocessing), []
    if expected is None:
        return Resize(job.data.fit), []
    is_requested = "fit" in job.data.model_fields_set
    fit = job.data.fit if is_requested else expected.fit or job.data.fit
    resize_rule = Resize(fit, expected.interpolation, 1.0 if fit == "pad" else expected.crop_share)
    return resize_rule, [f"images are resized as the pretrained network expects: {resize_rule.sentence()}"]
