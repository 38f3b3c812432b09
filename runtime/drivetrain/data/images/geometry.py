"""The geometry of images as the network sees them: size, channels, and how an image becomes square."""

from __future__ import annotations

from drivetrain.data.dataset import InputRecord
from drivetrain.data.images import npz_images, resize
from drivetrain.data.images.resize import Resize
from drivetrain.data.images.source import ImageSource
from drivetrain.job.images import ImageJob
from drivetrain.pretrained.expected_input import ExpectedInput
from drivetrain.system.console import Detail

_HOW_SQUARE = {
    "crop": "the ends of the long side are cropped (data.fit: crop); pad or squash keeps them",
    "pad": "they are padded to a square with black bars (data.fit: pad)",
    "squash": "they are resized to a square (data.fit: squash)",
}


def decide(
    job: ImageJob, source: ImageSource, recorded: InputRecord | None, expected: ExpectedInput | None
) -> tuple[int, int, Resize, list[str]]:
    """Decide size, channels and how images become square, by `recorded` if there is one; also notes with the reasons."""
    size, channels, notes = choose_size_and_channels(job, source, expected)
    if recorded:
        size, channels = read_recorded_size(job, recorded)
        notes = [f"image_size {size}, channels {channels}: as in the earlier run"] if not recorded.same_data else notes
    resize_rule, resize_notes = decide_resize(job, recorded, expected)
    return size, channels, resize_rule, [*notes, *resize_notes, *note_oblong(source, resize_rule.fit)]


def choose_size_and_channels(
    job: ImageJob, train: ImageSource, expected: ExpectedInput | None
) -> tuple[int, int, list[str]]:
    """Choose size and channels by the images, the job and the pretrained network; also notes with the reasons."""
    if expected is not None:
        requested = expected.size if job.data.image_size == "auto" and expected.size else job.data.image_size
        size, reason = resize.choose_size(requested, train.images.short_sides[train.rows], exact=False)
        if requested != job.data.image_size:
            reason = "the input size of the pretrained network"
        return (
            size,
            expected.channels,
            [f"image_size {size}: {reason}", f"channels {expected.channels}: required by the network"],
        )
    sides, grey = train.images.short_sides[train.rows], train.images.grey[train.rows]
    exact = isinstance(train.images, npz_images.ImageArrays)
    size, reason = resize.choose_size(job.data.image_size, sides, exact)
    channels, channels_reason = resize.choose_channels(job.data.channels, bool(grey.all()))
    size_note = f"image_size {size}: {reason}"
    is_plain = exact or job.data.image_size == size
    return (
        size,
        channels,
        [Detail(size_note) if is_plain else size_note, Detail(f"channels {channels}: {channels_reason}")],
    )


def decide_resize(
    job: ImageJob, recorded: InputRecord | None, expected: ExpectedInput | None
) -> tuple[Resize, list[str]]:
    """How images become square: as stored, as the pretrained network expects, or as the job says; and notes."""
    if recorded:
        return resize.of(recorded.preprocessing), []
    if expected is None:
        return Resize(job.data.fit), []
    is_requested = "fit" in job.data.model_fields_set
    fit = job.data.fit if is_requested else expected.fit or job.data.fit
    resize_as_expected = Resize(fit, expected.interpolation, 1.0 if fit == "pad" else expected.crop_share)
    return resize_as_expected, [
        f"images are resized as the pretrained network expects: {resize_as_expected.sentence()}"
    ]


def read_recorded_size(job: ImageJob, recorded: InputRecord) -> tuple[int, int]:
    """Size and channels of the stored preprocessing; of an earlier run, the job may change the size."""
    size, channels = recorded.preprocessing["image_size"], recorded.preprocessing["channels"]
    return (size if recorded.same_data or job.data.image_size == "auto" else job.data.image_size), channels


def measure_oblong(train: ImageSource, fit: str) -> dict[str, object]:
    """The share of images that are not square, and how they are made square."""
    return {"share": float(train.images.oblong[train.rows].mean()) if len(train.rows) else 0.0, "fit": fit}


def note_oblong(train: ImageSource, fit: str) -> list[str]:
    """A note on images that are not square, and how they are made square."""
    count = int(train.images.oblong[train.rows].sum())
    return [f"{count:,} of {len(train.rows):,} images are not square: {_HOW_SQUARE[fit]}"] if count else []
