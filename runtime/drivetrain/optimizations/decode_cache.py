"""Decodes every image file once and caches the pixels in one memory-mapped file for all epochs and runs.

Images are cached at the size of the network's input, exactly as they would be decoded each time, so only the speed
changes.
"""

from __future__ import annotations

from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload, feature_cache
from drivetrain.optimizations.gpu_resident_data import count_sample_bytes
from drivetrain.system.units import format_bytes
from drivetrain.tasks import modality_of

STAGE = Stage.LOADER
EFFECT = Effect.EXACT
OFF = False
UNMEASURED = "decoding again is never faster"
Values = bool

CACHE_DIVISOR = 2
"""All decoded images together may use 1/CACHE_DIVISOR of the cache's space."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on for images that are decoded from files in more than one epoch, if disk and memory have space."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    if job.train.epochs < 2:
        return Choice(False, "in a single epoch no image is decoded twice")
    if workload is None:
        return Choice(True, "decode each image file once, if the pixels fit into the cache")
    if feature_cache.choose(job, hardware, workload).value:
        return Choice(False, "feature_cache reads every image only once")
    pixel_bytes = count_sample_bytes(workload)
    if pixel_bytes > hardware.memory.available:
        return Choice(
            False,
            f"the pixels ({format_bytes(pixel_bytes)}) would be read from disk in every epoch: they exceed the free memory "
            f"({format_bytes(hardware.memory.available)})",
        )
    return Choice(
        True,
        f"{workload.samples:,} images are decoded once instead of in each of {job.train.epochs} epochs: "
        f"{format_bytes(pixel_bytes)} in {hardware.storage.cache}",
    )


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: without image files, or without a cache folder with enough space."""
    if not modality_of(job).has_pictures:
        return "the job has no image files to decode"
    if workload is not None and workload.decoded:
        return "the images are already in memory"
    if not hardware.storage.cache_writable:
        return f"the cache {hardware.storage.cache} is not writable"
    room = hardware.storage.cache_room
    if workload is not None and count_sample_bytes(workload) * CACHE_DIVISOR > (room or 0):
        return f"the pixels take {format_bytes(count_sample_bytes(workload))}, more than half of the cache space ({format_bytes(room)})"
    return None


def apply(run: AssembledRun, value: Value) -> None:
    """Put the cache in front of the image files; if it cannot be created, report that and continue without it."""
    from drivetrain.errors import StorageError

    try:
        run.dataset = modality_of(run.job).keep_decoded(run.dataset, run.hardware.storage, CACHE_DIVISOR)
        run.batches.split = run.dataset.train
    except StorageError as error:
        run.events.add("decode_cache", f"the cache is not used, images are decoded in every epoch: {error.given}")


def effective(run: AssembledRun) -> Value:
    """Return whether pixels come from the cache."""
    split = run.dataset.train
    images = getattr(getattr(split, "split", split), "images", None)
    return getattr(images, "are_cached", False)
