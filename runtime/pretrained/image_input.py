"""The input that a pretrained image network expects, read from the files beside its weights."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.errors import SpecError
from runtime.job.data import Fit
from runtime.job.images import ImageJob
from runtime.job.model import ImagePretrained
from runtime.pretrained import folder as pretrained
from runtime.pretrained import timm_folder
from runtime.pretrained.expected_input import Expected
from runtime.system.files import read_json

_BICUBIC = (1, 3, "bicubic", "lanczos")
"""Pillow's numbers and timm's names; Lanczos has no equal here, and bicubic is next to it."""
_WARPED = 384
"""From this size on, ConvNeXt resizes each side by itself and crops nothing."""


def expected(job: ImageJob) -> Expected | None:
    """The expected input of the job's pretrained network; None if the job has no such network.

    Raises:
        SpecError: if there is no such folder, it cannot be used, or the job requests other channels.
    """
    if timm := timm_folder.find(job):
        made, folder = timm.expected(), timm.folder
    elif isinstance(job.model, ImagePretrained):
        found = pretrained.find(job, job.model.name)
        folder, beside = found.folder, read_json(found.folder / "preprocessor_config.json")
        channels = int(getattr(found.config, "num_channels", 3))
        side = getattr(found.config, "image_size", None)
        made = of_processor(beside if isinstance(beside, dict) else {}, channels, side)
    else:
        return None
    if job.data.channels not in ("auto", made.channels):
        given = f"is {job.data.channels}, and {folder} takes {made.channels}"
        action = f"write {made.channels}, or leave it out"
        raise SpecError([job.problem(("data", "channels"), given, str(made.channels), action)])
    return made


def of_processor(beside: Mapping[str, object], channels: int, side: object) -> Expected:
    """The input as an image processor of transformers describes it.

    Args:
        beside: content of preprocessor_config.json; empty if there is none.
        channels: of the network.
        side: size in the network's configuration, which comes first.
    """
    mean, std = (_channel_values(beside, name, channels) for name in ("image_mean", "image_std"))
    if beside.get("do_normalize") is False:
        mean, std = (0.0,) * channels, (1.0,) * channels
    if mean is None or std is None or not all(std):
        mean = std = None
    else:
        mean, std = _for_unit_pixels(beside, mean, std)
    size, fit, share = _geometry(beside)
    interpolation = "bicubic" if beside.get("resample") in _BICUBIC else "bilinear"
    return Expected(side if isinstance(side, int) else size, channels, mean, std, fit, interpolation, share)


def _for_unit_pixels(
    beside: Mapping[str, object], mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation for pixels from 0 to 1, where the processor scales pixels in another way."""
    factor = beside.get("rescale_factor", 1 / 255)
    scale = 255 * (
        1.0 if beside.get("do_rescale") is False else float(factor if isinstance(factor, int | float) else 1 / 255)
    )
    offset = 1.0 if beside.get("rescale_offset") is True else 0.0
    if abs(scale - 1) < 1e-6 and not offset:
        return mean, std
    return tuple((value + offset) / scale for value in mean), tuple(value / scale for value in std)


def _geometry(beside: Mapping[str, object]) -> tuple[int | None, Fit | None, float]:
    """Side of the square, how an image becomes one, and the part of the short side that is kept."""
    if beside.get("do_resize") is False:
        return None, None, 1.0
    given, ratio = beside.get("size"), beside.get("crop_pct")
    cropped = _square(beside.get("crop_size")) if beside.get("do_center_crop") is True else None
    short = given.get("shortest_edge") if isinstance(given, dict) else given if cropped or ratio else None
    if isinstance(short, int) and cropped:
        return cropped, "crop", min(1.0, cropped / short)
    if isinstance(short, int) and isinstance(ratio, int | float) and 0 < ratio <= 1:
        return short, *(("crop", float(ratio)) if short < _WARPED else ("squash", 1.0))
    if isinstance(short, int):
        return short, "crop", 1.0
    square = _square(given)
    if square and cropped:
        return cropped, "squash", min(1.0, cropped / square)
    return square, "squash" if square else None, 1.0


def _square(value: object) -> int | None:
    """The side of a square; None for another form."""
    if isinstance(value, dict):
        value = value.get("height") if value.get("height") == value.get("width") else None
    return value if isinstance(value, int) and value > 0 else None


def _channel_values(beside: Mapping[str, object], name: str, channels: int) -> tuple[float, ...] | None:
    values = beside.get(name)
    if isinstance(values, list) and len(values) == channels and all(isinstance(v, int | float) for v in values):
        return tuple(float(value) for value in values)
    return None
