"""The input that a pretrained image network expects, read from the files beside its weights."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.errors import SpecError
from runtime.job.job import ImageJob
from runtime.job.model import ImagePretrained
from runtime.pretrained import folder as pretrained
from runtime.system.files import read_json


@dataclass(frozen=True)
class Expected:
    """The form of images that the network was trained on."""

    size: int | None
    """Side of the square in pixels; None if the folder does not say."""
    channels: int
    mean: tuple[float, ...] | None
    """Per channel, for pixels from 0 to 1; None with `std` if the folder does not say."""
    std: tuple[float, ...] | None


def expected(job: ImageJob) -> Expected | None:
    """The expected input of the job's pretrained network; None if the job has no such network.

    Raises:
        SpecError: if there is no such folder, it cannot be used, or the job requests other channels.
    """
    if not isinstance(job.model, ImagePretrained):
        return None
    found = pretrained.find(job, job.model.name)
    side, channels = getattr(found.config, "image_size", None), int(getattr(found.config, "num_channels", 3))
    if job.data.channels not in ("auto", channels):
        given = f"is {job.data.channels}, and {found.folder} takes {channels}"
        raise SpecError([job.problem(("data", "channels"), given, str(channels), f"write {channels}, or leave it out")])
    beside = read_json(found.folder / "preprocessor_config.json")
    mean, std = (_channel_values(beside, name, channels) for name in ("image_mean", "image_std"))
    known = mean is not None and std is not None and all(std)
    return Expected(side if isinstance(side, int) else None, channels, mean if known else None, std if known else None)


def _channel_values(beside: object, name: str, channels: int) -> tuple[float, ...] | None:
    values = beside.get(name) if isinstance(beside, dict) else None
    if isinstance(values, list) and len(values) == channels and all(isinstance(v, int | float) for v in values):
        return tuple(float(value) for value in values)
    return None
