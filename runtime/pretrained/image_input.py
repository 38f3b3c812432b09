"""The input that a pretrained image network expects, read from the files beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping

from runtime.errors import SpecError
from runtime.job.data import Fit
from runtime.job.images import ImageJob
from runtime.job.model import ImagePretrained
from runtime.pretrained import folder as pretrained
from runtime.pretrained import timm_folder
from runtime.pretrained.expected_input import INTERPOLATIONS, Expected
from runtime.pretrained.folder import Pretrained
from runtime.system.files import read_json

FILE = "preprocessor_config.json"
_READ = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "default_to_square"),
    *("do_rescale", "rescale_factor", "rescale_offset", "do_normalize", "image_mean", "image_std", "include_top"),
    *("do_flip_channel_order", "do_pad", "pad_size", "size_divisor"),
)
"""Keys of a processor that decide what the network sees of a picture."""
_WITHOUT_EFFECT = (
    *("image_processor_type", "feature_extractor_type", "processor_class", "_processor_class", "auto_map"),
    *("do_convert_rgb", "do_reduce_labels", "data_format", "input_data_format", "return_tensors", "device"),
    *("disable_grouping", "model_input_names", "_valid_processor_keys", "transformers_version", "name_or_path"),
)
"""Keys of which a color picture with a class or numbers depends in no way: names, and what is always done."""
_LEVIT = 256 / 224
"""The processor of LeViT resizes the short side to so many times its size, and crops."""
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
        folder, beside = found.folder, _with_defaults(found)
        channels = int(getattr(found.config, "num_channels", 3))
        side = getattr(found.config, "image_size", None)
        made = of_processor(beside, channels, side)
        if problems := not_understood(beside, made):
            found.refuse(
                f"{folder / FILE} has {', '.join(problems)}",
                f"a processor with only {', '.join(_READ)}",
                "use another network, or remove the key from the file if the pictures do not need it",
            )
    else:
        return None
    if job.data.channels not in ("auto", made.channels):
        given = f"is {job.data.channels}, and {folder} takes {made.channels}"
        action = f"write {made.channels}, or leave it out"
        raise SpecError([job.problem(("data", "channels"), given, str(made.channels), action)])
    return made


def _with_defaults(network: Pretrained) -> dict[str, object]:
    """The description of the images beside a network, with what its class in transformers does by itself.

    Raises:
        SpecError: if transformers does not know such a class.
    """
    beside = read_json(network.folder / FILE)
    if not isinstance(beside, dict):
        return {}
    with pretrained.quiet() as transformers:
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(
                network.folder, local_files_only=True, trust_remote_code=False
            )
            values = json.loads(processor.to_json_string())
        except Exception as error:  # each kind of broken file raises an error of another library
            kind = (
                beside.get("image_processor_type") or beside.get("feature_extractor_type") or network.config.model_type
            )
            first = str(error).strip().partition("\n")[0]
            network.refuse(
                f"{network.folder / FILE} describes the images for {kind}, which cannot be read: {first}",
                "an image processor of transformers",
                "use another network, or remove the file and set data.image_size and data.fit",
            )
    # A folder that says nothing about the size leaves it to the job.
    unsaid = () if "size" in beside else ("size", "crop_size", "do_center_crop")
    return {str(key): value for key, value in values.items() if key not in unsaid or key in beside}


def of_processor(beside: Mapping[str, object], channels: int, side: object) -> Expected:
    """The input as an image processor of transformers describes it.

    Args:
        beside: content of preprocessor_config.json; empty if there is none.
        channels: of the network.
        side: size in the network's configuration, which comes first.
    """
    kind = _kind(beside)
    mean, std = (_channel_values(beside, name, channels) for name in ("image_mean", "image_std"))
    second_std = std if beside.get("include_top", kind == "EfficientNet") is True else None
    if beside.get("do_normalize") is False or kind == "MobileViT":
        mean, std = (0.0,) * channels, (1.0,) * channels
    if mean is None or std is None or not all(std):
        mean = std = None
    else:
        if second_std:  # what is normalized is divided by the deviation once more
            std = tuple(value * second for value, second in zip(std, second_std, strict=True))
        mean, std = _for_unit_pixels(beside, mean, std)
    size, fit, share = _geometry(beside, kind)
    return Expected(
        side if isinstance(side, int) else size,
        channels,
        mean,
        std,
        fit,
        _interpolation(beside.get("resample")) or "bilinear",
        share,
        reverses_channels=beside.get("do_flip_channel_order") is True,
        ignored=tuple(f"{key}: {beside[key]}" for key in _WITHOUT_EFFECT if beside.get(key) is True),
    )


def not_understood(beside: Mapping[str, object], network_input: Expected) -> list[str]:
    """Each key of a processor, with its value, that changes a picture in a way that is not done here."""
    problems = [
        f"{key}: {value}"
        for key, value in beside.items()
        if key not in (*_READ, *_WITHOUT_EFFECT) and value is not None and value is not False
    ]
    resample, divisor, pad = (beside.get(key) for key in ("resample", "size_divisor", "pad_size"))
    if resample is not None and not _interpolation(resample):
        problems.append(f"resample: {resample}")
    if beside.get("do_normalize") is not False and _kind(beside) != "MobileViT":
        problems += [
            f"{key}: {beside[key]}"
            for key in ("image_mean", "image_std")
            if beside.get(key) is not None and _channel_values(beside, key, network_input.channels) is None
        ]
        if network_input.reverses_channels:
            problems.append("do_flip_channel_order together with do_normalize")
    if isinstance(divisor, int) and network_input.size and network_input.size % divisor:
        problems.append(f"size_divisor: {divisor} with images of {network_input.size} pixels")
    if beside.get("do_pad") and pad is not None and _square(pad) != network_input.size:
        problems.append(f"pad_size: {pad}")
    size, crop = beside.get("size"), _square(beside.get("crop_size"))
    if size is not None and network_input.fit is None and beside.get("do_resize") is not False:
        problems.append(f"size: {size}")
    base = size.get("shortest_edge") or _square(size) if isinstance(size, dict) else size
    scales = _kind(beside) in ("Perceiver", "Levit", "PoolFormer")
    if crop and beside.get("do_center_crop") is True and isinstance(base, int) and crop > base and not scales:
        problems.append(f"crop_size: {crop}, larger than the {base} pixels of size")
    if beside.get("do_resize") is False and beside.get("do_center_crop") is True:
        problems.append("do_center_crop without do_resize")
    return problems


def _kind(beside: Mapping[str, object]) -> str:
    """The class of a processor without its ending: ViT, MobileViT, EfficientNet; empty if it is not written."""
    name = str(beside.get("image_processor_type") or beside.get("feature_extractor_type") or "")
    return name.partition("ImageProcessor")[0].partition("FeatureExtractor")[0]


def _interpolation(resample: object) -> str | None:
    """The name of an interpolation by Pillow's number or its name; None if there is no such one."""
    if isinstance(resample, int) and 0 <= resample < len(INTERPOLATIONS):
        return INTERPOLATIONS[resample]
    return str(resample).lower() if str(resample).lower() in INTERPOLATIONS else None


def _for_unit_pixels(
    beside: Mapping[str, object], mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation for pixels from 0 to 1, where the processor scales pixels in another way."""
    factor = beside.get("rescale_factor")
    factor = float(factor) if isinstance(factor, int | float) else 1 / 255
    scale = 255 * (1.0 if beside.get("do_rescale") is False else factor)
    offset = 1.0 if beside.get("rescale_offset") is True else 0.0
    if abs(scale - 1) < 1e-6 and not offset:
        return mean, std
    return tuple((value + offset) / scale for value in mean), tuple(value / scale for value in std)


def _geometry(beside: Mapping[str, object], kind: str) -> tuple[int | None, Fit | None, float]:
    """Side of the square, how an image becomes one, and the part of the short side that is kept."""
    if beside.get("do_resize") is False:
        return None, None, 1.0
    given, ratio = beside.get("size"), beside.get("crop_pct")
    center = beside.get("do_center_crop", "crop_size" in beside) is True
    cropped = _square(beside.get("crop_size")) if center else None
    if center and isinstance(given, int) and not ratio:
        return None, None, 1.0  # the short side or both of them, by the class, of which nothing is written
    short = given.get("shortest_edge") if isinstance(given, dict) else given if ratio else None
    square = _square(given)
    if kind == "Perceiver" and square and cropped:  # it crops first
        return square, "crop", min(1.0, square / cropped)
    if kind == "Levit" and isinstance(short, int):
        short = int(_LEVIT * short)
    part = float(ratio) if isinstance(ratio, int | float) and 0 < ratio <= 1 else None
    base = short if isinstance(short, int) else square
    if kind == "PoolFormer" and cropped and part and base:
        return cropped, "crop", min(1.0, cropped / int(base / part))
    if isinstance(short, int) and cropped:
        return cropped, "crop", min(1.0, cropped / short)
    if isinstance(short, int) and part:
        return short, *(("crop", part) if short < _WARPED else ("squash", 1.0))
    if isinstance(short, int):
        return short, "crop", 1.0
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
    if isinstance(values, int | float):
        values = [values] * channels
    if isinstance(values, list) and len(values) == channels and all(isinstance(v, int | float) for v in values):
        return tuple(float(value) for value in values)
    return None
