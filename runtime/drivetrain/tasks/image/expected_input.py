"""Reads the input that a pretrained image network expects from the files next to its weights; finds weights of timm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from drivetrain.job.data import Fit
from drivetrain.job.model import ImageNetwork, ImagePretrained, ImageTimm
from drivetrain.pretrained import folder as pretrained
from drivetrain.pretrained import hub_name
from drivetrain.pretrained.folder import Pretrained, WeightsFolder
from drivetrain.system.files import read_json
from drivetrain.tasks.image.job import ImageJob

FILE = "preprocessor_config.json"
INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Names of Pillow's resampling filters; the index is Pillow's number."""
_POSSIBLE_TIMM = "a folder with config.json and model.safetensors of timm, or such a name on the hub"
_USED_KEYS = (
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "default_to_square"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)
"""Keys of a processor that determine the network's input, and are read."""
_IGNORED_KEYS = (
    *("image_processor_type", "feature_extractor_type", "processor_class", "_processor_class", "auto_map"),
    *("do_convert_rgb", "do_reduce_labels", "data_format", "input_data_format", "return_tensors", "device"),
    *("disable_grouping", "model_input_names", "_valid_processor_keys", "transformers_version", "name_or_path"),
)
"""Keys without an effect on a color image with a class or numbers: names, and steps that are always done here."""
_ODD_KINDS = ("Perceiver", "Levit", "PoolFormer", "MobileViT")
"""Processors for which the keys have another meaning; with the refused key `include_top`, also EfficientNet's."""
_MIN_WARPED_SIDE = 384
"""From this size on, ConvNeXt resizes both sides and does not crop."""


@dataclass(frozen=True)
class ExpectedInput:
    """Size and scale of the images that the network was trained on; None means that the file does not contain a value."""

    size: int | None
    """Side of the square in pixels."""
    channels: int
    mean: tuple[float, ...] | None
    """Mean of each channel, for pixels from 0 to 1; None if and only if `std` is None."""
    std: tuple[float, ...] | None
    fit: Fit | None = None
    """How an image becomes square."""
    interpolation: str = "bilinear"
    """One of `INTERPOLATIONS`."""
    crop_share: float = 1.0
    """Share of each side that is kept around the center."""
    ignored: tuple[str, ...] = ()
    """Keys of the file that have no effect here, with their values."""
    source: str = "its preprocessor_config.json"
    """Name of the file with these values, for messages."""


@dataclass(frozen=True)
class TimmFolder(WeightsFolder):
    """A folder with weights of timm for the job's network."""

    settings: dict[str, Any]
    """`pretrained_cfg` of timm, which describes the training images."""

    def expected(self) -> ExpectedInput:
        """Read the input that the weights expect; raises SpecError if the file does not describe it."""
        size, mean, std = (self.settings.get(key) for key in ("input_size", "mean", "std"))
        crop_share = self.settings.get("crop_pct", 1.0)
        if not (
            _are_three_numbers(size)
            and _are_three_numbers(mean)
            and _are_three_numbers(std)
            and isinstance(crop_share, int | float)
            and 0 < crop_share <= 1
        ):
            self.refuse(
                f"{self.folder / 'config.json'} does not describe the training images",
                "input_size, mean, std and crop_pct under pretrained_cfg, as timm writes them",
                "use another folder",
            )
        interpolation = str(self.settings.get("interpolation", "bilinear")).lower()
        mode = self.settings.get("crop_mode")
        if interpolation not in (*INTERPOLATIONS, "random") or mode not in (None, "center", "squash"):
            self.refuse(
                f"{self.folder / 'config.json'} has interpolation {interpolation} and crop_mode {mode}",
                f"{', '.join(INTERPOLATIONS)}; center or squash",
                "use another folder",
            )
        if interpolation == "random":  # timm draws a random one only in training
            interpolation = "bilinear"
        fit: Fit = "squash" if mode == "squash" else "crop"
        return ExpectedInput(
            int(size[2]),
            int(size[0]),
            tuple(mean),
            tuple(std),
            fit,
            interpolation,
            float(crop_share),
            source="its config.json",
        )


def find_timm(job: ImageJob) -> TimmFolder | None:
    """Find the weights that the job's ResNet or network of timm starts from; None if it starts from random weights.

    Raises:
        SpecError: if the weights do not exist, or belong to another network.
    """
    model = job.model
    if not isinstance(model, ImageNetwork | ImageTimm):
        return None
    name = hub_name.find_weights_name(job)
    if not name:
        return None
    weights = pretrained.locate(job, name)
    config = read_json(weights.folder / "config.json")
    settings = config.get("pretrained_cfg") if isinstance(config, dict) else None
    architecture = config.get("architecture") if isinstance(config, dict) else None
    if architecture != model.name.partition(".")[0]:
        description = f"{weights.origin or weights.folder} is {architecture or 'not a network of timm'}"
        weights.refuse(description, _POSSIBLE_TIMM, f"use weights of {model.name}")
    return TimmFolder(job, weights.folder, weights.origin, settings if isinstance(settings, dict) else {})


def _are_three_numbers(values: object) -> TypeGuard[list[float]]:
    """Return whether the value is a list of three numbers above 0."""
    return (
        isinstance(values, list)
        and len(values) == 3
        and all(isinstance(value, int | float) and value > 0 for value in values)
    )


def read_expected(job: ImageJob) -> ExpectedInput | None:
    """Read the expected input of the job's pretrained network; None if the job has no such network.

    Raises:
        SpecError: if its folder does not exist or cannot be used, or the job requests other channels.
    """
    model = job.model
    timm = find_timm(job)
    if timm:
        network_input, folder = timm.expected(), timm.folder
    elif isinstance(model, ImagePretrained):
        network = pretrained.find(job, model.name)
        folder, processor = network.folder, _read_with_defaults(network)
        channels = int(getattr(network.config, "num_channels", 3))
        side = getattr(network.config, "image_size", None)
        network_input = read_processor(processor, channels, side)
        problems = list_unknown_settings(processor, network_input)
        if problems:
            network.refuse(
                f"{folder / FILE} has {', '.join(problems)}",
                f"a processor with only {', '.join(_USED_KEYS)}",
                "use another network, or remove the key from the file if the images do not need it",
            )
    else:
        return None
    if job.data.channels not in ("auto", network_input.channels):
        description = f"is {job.data.channels}, and {folder} takes {network_input.channels}"
        action = f"write {network_input.channels}, or remove the key"
        raise job.spec_error(("data", "channels"), description, str(network_input.channels), action)
    return network_input


def _read_with_defaults(network: Pretrained) -> dict[str, object]:
    """Read the image processor of a network, with the defaults of its class in transformers; empty without a file.

    Raises:
        SpecError: if transformers does not have this class.
    """
    description = read_json(network.folder / FILE)
    if not isinstance(description, dict):
        return {}
    with pretrained.quiet_transformers() as transformers:
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
            reason = str(error).strip().partition("\n")[0]
            network.refuse(
                f"{network.folder / FILE} describes the images for {kind}, which cannot be read: {reason}",
                "an image processor of transformers",
                "use another network, or remove the file and set data.image_size and data.fit",
            )
    # If the file does not contain the size, the job chooses it instead of the class.
    decided_by_job = () if "size" in description else ("size", "crop_size", "do_center_crop")
    return {str(key): value for key, value in values.items() if key not in decided_by_job or key in description}


def read_processor(processor: Mapping[str, object], channels: int, side: object) -> ExpectedInput:
    """Read the expected input from the description of an image processor of transformers.

    Args:
        processor: content of preprocessor_config.json; empty if there is none.
        channels: number of channels of the network.
        side: size in the network's configuration, which takes precedence if it is a number.
    """
    mean, std = (_read_channel_values(processor, name, channels) for name in ("image_mean", "image_std"))
    if processor.get("do_normalize") is False:
        mean, std = (0.0,) * channels, (1.0,) * channels
    if mean is None or std is None or not all(std):
        mean = std = None
    else:
        factor = processor.get("rescale_factor")
        factor = float(factor) if isinstance(factor, int | float) else 1 / 255
        scale = 255 * (1.0 if processor.get("do_rescale") is False else factor)
        if abs(scale - 1) >= 1e-6:  # mean and deviation apply to pixels on the processor's scale
            mean, std = (tuple(value / scale for value in values) for values in (mean, std))
    size, fit, share = _read_geometry(processor)
    return ExpectedInput(
        side if isinstance(side, int) else size,
        channels,
        mean,
        std,
        fit,
        _read_interpolation(processor.get("resample")) or "bilinear",
        share,
        ignored=tuple(f"{key}: {processor[key]}" for key in _IGNORED_KEYS if processor.get(key) is True),
    )


def list_unknown_settings(processor: Mapping[str, object], network_input: ExpectedInput) -> list[str]:
    """List the keys of a processor, with their values, that change an image in a way that is not supported here."""
    problems = [
        f"{key}: {value}"
        for key, value in processor.items()
        if key not in (*_USED_KEYS, *_IGNORED_KEYS) and value is not None and value is not False
    ]
    kind = _read_class_name(processor)
    if kind in _ODD_KINDS:
        problems.append(f"the processor of {kind}")
    resample = processor.get("resample")
    if resample is not None and not _read_interpolation(resample):
        problems.append(f"resample: {resample}")
    if processor.get("do_normalize") is not False:
        problems += [
            f"{key}: {processor[key]}"
            for key in ("image_mean", "image_std")
            if processor.get(key) is not None and _read_channel_values(processor, key, network_input.channels) is None
        ]
    size, crop = processor.get("size"), _read_square_side(processor.get("crop_size"))
    if size is not None and network_input.fit is None and processor.get("do_resize") is not False:
        problems.append(f"size: {size}")
    base = size.get("shortest_edge") or _read_square_side(size) if isinstance(size, dict) else size
    if crop and processor.get("do_center_crop") is True and isinstance(base, int) and crop > base:
        problems.append(f"crop_size: {crop}, larger than the {base} pixels of size")
    if processor.get("do_resize") is False and processor.get("do_center_crop") is True:
        problems.append("do_center_crop without do_resize")
    return problems


def _read_class_name(processor: Mapping[str, object]) -> str:
    """Read the class of a processor without its suffix, such as ViT or EfficientNet; empty if the file has no class."""
    name = str(processor.get("image_processor_type") or processor.get("feature_extractor_type") or "")
    return name.partition("ImageProcessor")[0].partition("FeatureExtractor")[0]


def _read_interpolation(resample: object) -> str | None:
    """Read the name of an interpolation from Pillow's number or from a name; None if it does not exist."""
    if isinstance(resample, int) and 0 <= resample < len(INTERPOLATIONS):
        return INTERPOLATIONS[resample]
    return str(resample).lower() if str(resample).lower() in INTERPOLATIONS else None


def _read_geometry(processor: Mapping[str, object]) -> tuple[int | None, Fit | None, float]:
    """Read the side of the square in pixels, how an image becomes square, and the share of the short side that is kept."""
    if processor.get("do_resize") is False:
        return None, None, 1.0
    size, crop_pct = processor.get("size"), processor.get("crop_pct")
    crops_center = processor.get("do_center_crop", "crop_size" in processor) is True
    crop_side = _read_square_side(processor.get("crop_size")) if crops_center else None
    if crops_center and isinstance(size, int) and not crop_pct:
        return None, None, 1.0  # the class decides whether `size` is the short side or both sides
    short_side = size if crop_pct else None
    if isinstance(size, dict):
        short_side = size.get("shortest_edge")
    square_side = _read_square_side(size)
    crop_share = float(crop_pct) if isinstance(crop_pct, int | float) and 0 < crop_pct <= 1 else None
    if isinstance(short_side, int) and crop_side:
        return crop_side, "crop", min(1.0, crop_side / short_side)
    if isinstance(short_side, int) and crop_share and short_side >= _MIN_WARPED_SIDE:
        return short_side, "squash", 1.0
    if isinstance(short_side, int):
        return short_side, "crop", crop_share or 1.0
    if square_side and crop_side:
        return crop_side, "squash", min(1.0, crop_side / square_side)
    return square_side, "squash" if square_side else None, 1.0


def _read_square_side(value: object) -> int | None:
    """Read the side of a square size; None for another size."""
    if isinstance(value, dict):
        value = value.get("height") if value.get("height") == value.get("width") else None
    return value if isinstance(value, int) and value > 0 else None


def _read_channel_values(processor: Mapping[str, object], name: str, channels: int) -> tuple[float, ...] | None:
    """Read one number for each channel; None if the value has another form."""
    values = processor.get(name)
    if isinstance(values, int | float):
        values = [values] * channels
    if isinstance(values, list) and len(values) == channels and all(isinstance(v, int | float) for v in values):
        return tuple(float(value) for value in values)
    return None
