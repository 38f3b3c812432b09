"""The input that a pretrained image network expects, read from the files beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping

from drivetrain.errors import SpecError
from drivetrain.job.data import Fit
from drivetrain.job.images import ImageJob
from drivetrain.job.model import ImagePretrained
from drivetrain.pretrained import folder as pretrained
from drivetrain.pretrained import timm_folder
from drivetrain.pretrained.expected_input import INTERPOLATIONS, ExpectedInput
from drivetrain.pretrained.folder import Pretrained
from drivetrain.system.files import read_json

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


def read_expected(job: ImageJob) -> ExpectedInput | None:
    """The expected input of the job's pretrained network; None if the job has no such network.

    Raises:
        SpecError: if there is no such folder, it cannot be used, or the job requests other channels.
    """
    if timm := timm_folder.find(job):
        network_input, folder = timm.expected(), timm.folder
    elif isinstance(job.model, ImagePretrained):
        network = pretrained.find(job, job.model.name)
        folder, processor = network.folder, _with_defaults(network)
        channels = int(getattr(network.config, "num_channels", 3))
        side = getattr(network.config, "image_size", None)
        network_input = of_processor(processor, channels, side)
        if problems := not_understood(processor, network_input):
            network.refuse(
                f"{folder / FILE} has {', '.join(problems)}",
                f"a processor with only {', '.join(_READ)}",
                "use another network, or remove the key from the file if the pictures do not need it",
            )
    else:
        return None
    if job.data.channels not in ("auto", network_input.channels):
        description = f"is {job.data.channels}, and {folder} takes {network_input.channels}"
        action = f"write {network_input.channels}, or leave it out"
        raise SpecError([job.problem(("data", "channels"), description, str(network_input.channels), action)])
    return network_input


def _with_defaults(network: Pretrained) -> dict[str, object]:
    """The description of the images beside a network, with what its class in transformers does by itself.

    Raises:
        SpecError: if transformers does not know such a class.
    """
    description = read_json(network.folder / FILE)
    if not isinstance(description, dict):
        return {}
    with pretrained.quiet() as transformers:
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(
                network.folder, local_files_only=True, trust_remote_code=False
            )
            values = json.loads(processor.to_json_string())
        except Exception as error:  # each kind of broken file raises an error of another library
            kind = (
                description.get("image_processor_type")
                or description.get("feature_extractor_type")
                or network.config.model_type
            )
            first = str(error).strip().partition("\n")[0]
            network.refuse(
                f"{network.folder / FILE} describes the images for {kind}, which cannot be read: {first}",
                "an image processor of transformers",
                "use another network, or remove the file and set data.image_size and data.fit",
            )
    # A folder that says nothing about the size leaves it to the job.
    unsaid = () if "size" in description else ("size", "crop_size", "do_center_crop")
    return {str(key): value for key, value in values.items() if key not in unsaid or key in description}


def of_processor(processor: Mapping[str, object], channels: int, side: object) -> ExpectedInput:
    """The input as an image processor of transformers describes it.

    Args:
        processor: content of preprocessor_config.json; empty if there is none.
        channels: of the network.
        side: size in the network's configuration, which comes first.
    """
    kind = _kind(processor)
    mean, std = (_channel_values(processor, name, channels) for name in ("image_mean", "image_std"))
    second_std = std if processor.get("include_top", kind == "EfficientNet") is True else None
    if processor.get("do_normalize") is False or kind == "MobileViT":
        mean, std = (0.0,) * channels, (1.0,) * channels
    if mean is None or std is None or not all(std):
        mean = std = None
    else:
        if second_std:  # what is normalized is divided by the deviation once more
            std = tuple(value * second for value, second in zip(std, second_std, strict=True))
        mean, std = _for_unit_pixels(processor, mean, std)
    size, fit, share = _geometry(processor, kind)
    return ExpectedInput(
        side if isinstance(side, int) else size,
        channels,
        mean,
        std,
        fit,
        _interpolation(processor.get("resample")) or "bilinear",
        share,
        reverses_channels=processor.get("do_flip_channel_order") is True,
        ignored=tuple(f"{key}: {processor[key]}" for key in _WITHOUT_EFFECT if processor.get(key) is True),
    )


def not_understood(processor: Mapping[str, object], network_input: ExpectedInput) -> list[str]:
    """Each key of a processor, with its value, that changes a picture in a way that is not done here."""
    problems = [
        f"{key}: {value}"
        for key, value in processor.items()
        if key not in (*_READ, *_WITHOUT_EFFECT) and value is not None and value is not False
    ]
    resample, divisor, pad = (processor.get(key) for key in ("resample", "size_divisor", "pad_size"))
    if resample is not None and not _interpolation(resample):
        problems.append(f"resample: {resample}")
    if processor.get("do_normalize") is not False and _kind(processor) != "MobileViT":
        problems += [
            f"{key}: {processor[key]}"
            for key in ("image_mean", "image_std")
            if processor.get(key) is not None and _channel_values(processor, key, network_input.channels) is None
        ]
        if network_input.reverses_channels:
            problems.append("do_flip_channel_order together with do_normalize")
    if isinstance(divisor, int) and network_input.size and network_input.size % divisor:
        problems.append(f"size_divisor: {divisor} with images of {network_input.size} pixels")
    if processor.get("do_pad") and pad is not None and _square(pad) != network_input.size:
        problems.append(f"pad_size: {pad}")
    size, crop = processor.get("size"), _square(processor.get("crop_size"))
    if size is not None and network_input.fit is None and processor.get("do_resize") is not False:
        problems.append(f"size: {size}")
    base = size.get("shortest_edge") or _square(size) if isinstance(size, dict) else size
    scales = _kind(processor) in ("Perceiver", "Levit", "PoolFormer")
    if crop and processor.get("do_center_crop") is True and isinstance(base, int) and crop > base and not scales:
        problems.append(f"crop_size: {crop}, larger than the {base} pixels of size")
    if processor.get("do_resize") is False and processor.get("do_center_crop") is True:
        problems.append("do_center_crop without do_resize")
    return problems


def _kind(processor: Mapping[str, object]) -> str:
    """The class of a processor without its ending: ViT, MobileViT, EfficientNet; empty if it is not written."""
    name = str(processor.get("image_processor_type") or processor.get("feature_extractor_type") or "")
    return name.partition("ImageProcessor")[0].partition("FeatureExtractor")[0]


def _interpolation(resample: object) -> str | None:
    """The name of an interpolation by Pillow's number or its name; None if there is no such one."""
    if isinstance(resample, int) and 0 <= resample < len(INTERPOLATIONS):
        return INTERPOLATIONS[resample]
    return str(resample).lower() if str(resample).lower() in INTERPOLATIONS else None


def _for_unit_pixels(
    processor: Mapping[str, object], mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation for pixels from 0 to 1, where the processor scales pixels in another way."""
    factor = processor.get("rescale_factor")
    factor = float(factor) if isinstance(factor, int | float) else 1 / 255
    scale = 255 * (1.0 if processor.get("do_rescale") is False else factor)
    offset = 1.0 if processor.get("rescale_offset") is True else 0.0
    if abs(scale - 1) < 1e-6 and not offset:
        return mean, std
    return tuple((value + offset) / scale for value in mean), tuple(value / scale for value in std)


def _geometry(processor: Mapping[str, object], kind: str) -> tuple[int | None, Fit | None, float]:
    """Side of the square, how an image becomes one, and the part of the short side that is kept."""
    if processor.get("do_resize") is False:
        return None, None, 1.0
    size, ratio = processor.get("size"), processor.get("crop_pct")
    center = processor.get("do_center_crop", "crop_size" in processor) is True
    cropped = _square(processor.get("crop_size")) if center else None
    if center and isinstance(size, int) and not ratio:
        return None, None, 1.0  # the short side or both of them, by the class, of which nothing is written
    short = size.get("shortest_edge") if isinstance(size, dict) else size if ratio else None
    square = _square(size)
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


def _channel_values(processor: Mapping[str, object], name: str, channels: int) -> tuple[float, ...] | None:
    values = processor.get(name)
    if isinstance(values, int | float):
        values = [values] * channels
    if isinstance(values, list) and len(values) == channels and all(isinstance(v, int | float) for v in values):
        return tuple(float(value) for value in values)
    return None
