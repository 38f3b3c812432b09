"""The geometry of images as the network sees them: size, channels, and how an image becomes square."""

from __future__ import annotations

from runtime.data.dataset import InputRecord
from runtime.data.images import input_shape, npz_images, resize
from runtime.data.images.resize import Resize
from runtime.data.images.source import ImageSource
from runtime.job.images import ImageJob
from runtime.pretrained.expected_input import Expected

_BECOMES = {
    "crop": "the ends of the long side are cropped (data.fit: crop); pad or squash keeps them",
    "pad": "they are padded to a square with black bars (data.fit: pad)",
    "squash": "they are resized to a square (data.fit: squash)",
}


def decided(
    job: ImageJob, source: ImageSource, settled: InputRecord | None, wanted: Expected | None
) -> tuple[int, int, Resize, list[str]]:
    """Size, channels, how images become square, and the reasons as notes; those of `settled` if it is given."""
    size, channels, notes = chosen(job, source, wanted)
    if settled:
        size, channels = of_earlier(job, settled)
        notes = [f"image_size {size}, channels {channels}: as in the earlier run"] if not settled.same_data else notes
    shape, why = resized(job, settled, wanted)
    return size, channels, shape, [*notes, *why, *oblong(source, shape.fit)]


def chosen(job: ImageJob, train: ImageSource, wanted: Expected | None) -> tuple[int, int, list[str]]:
    """Size, channels, and the reasons as notes."""
    if wanted is not None:
        asked = wanted.size if job.data.image_size == "auto" and wanted.size else job.data.image_size
        size, why = input_shape.choose_size(asked, train.images.short_sides[train.rows], exact=False)
        if asked != job.data.image_size:
            why = "the input size of the pretrained network"
        return (
            size,
            wanted.channels,
            [f"image_size {size}: {why}", f"channels {wanted.channels}: required by the network"],
        )
    sides, grey = train.images.short_sides[train.rows], train.images.grey[train.rows]
    exact = isinstance(train.images, npz_images.ImageArrays)
    size, why = input_shape.choose_size(job.data.image_size, sides, exact)
    channels, because = input_shape.choose_channels(job.data.channels, bool(grey.all()))
    return size, channels, [f"image_size {size}: {why}", f"channels {channels}: {because}"]


def resized(job: ImageJob, settled: InputRecord | None, wanted: Expected | None) -> tuple[Resize, list[str]]:
    """How images become square: as stored, as the pretrained network expects, or as the job says; and notes."""
    if settled:
        return resize.of(settled.preprocessing), []
    if wanted is None:
        return Resize(job.data.fit), []
    asked = "fit" in job.data.model_fields_set
    fit = job.data.fit if asked else wanted.fit or job.data.fit
    found = Resize(fit, wanted.interpolation, 1.0 if fit == "pad" else wanted.share)
    return found, [f"images are resized as the pretrained network expects: {found.sentence()}"]


def of_earlier(job: ImageJob, settled: InputRecord) -> tuple[int, int]:
    """Size and channels of the stored preprocessing; of an earlier run, the job may change the size."""
    size, channels = settled.preprocessing["image_size"], settled.preprocessing["channels"]
    return (size if settled.same_data or job.data.image_size == "auto" else job.data.image_size), channels


def oblong(train: ImageSource, fit: str) -> list[str]:
    """A note on images that are not square, and how they are made square."""
    count = int(train.images.oblong[train.rows].sum())
    return [f"{count:,} of {len(train.rows):,} images are not square: {_BECOMES[fit]}"] * bool(count)
