"""Reads the images and labels of an .npz file into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from drivetrain.data import copies, target_columns
from drivetrain.data.formats import column_values, npz_file
from drivetrain.data.source import BadSample
from drivetrain.data.stateless_random import Ids
from drivetrain.data.target_columns import TargetColumn
from drivetrain.errors import DataError
from drivetrain.tasks.image.augment import luma
from drivetrain.tasks.image.image_targets import LabelForm
from drivetrain.tasks.image.preprocess import BYTES, find_scale, measure_array
from drivetrain.tasks.image.resize import DEFAULT_RESIZE, Resize, pad_sides

POSSIBLE_SHAPES = "images of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, as numbers"
POSSIBLE = f"an .npz file with `images` and `labels`: {POSSIBLE_SHAPES}, and integers or text"
_TORCH_INTERPOLATIONS = {"nearest": "nearest-exact", "lanczos": "bicubic", "box": "area", "hamming": "bilinear"}
"""Nearest interpolation of torch for each interpolation of Pillow that torch lacks."""


@dataclass(frozen=True)
class ImageArrays:
    """Images of an array file, in memory."""

    path: str
    pixels: Tensor
    """Shape (N, C, H, W), uint8 or float32."""

    def __len__(self) -> int:
        return len(self.pixels)

    def gather(self, rows: Ids) -> Tensor:
        """Return the images of these rows, shape (len(rows), C, H, W)."""
        return self.pixels[torch.from_numpy(rows)]

    def title(self, row: int) -> str:
        """Return the number of an image in the file."""
        return f"{self.path}[{row}]"

    def list_file_names(self) -> Sequence[str]:
        """List no names: the images are no files."""
        return ()

    def compare(self, first: Ids, second: Ids) -> npt.NDArray[np.float64]:
        """Know no difference: only images with file names are compared."""
        return np.full(len(first), np.nan)

    @property
    def contents(self) -> npt.NDArray[np.int64]:
        """Digest of the pixels of each image."""
        return copies.digest_rows(self.pixels.numpy())

    @property
    def short_sides(self) -> npt.NDArray[np.int64]:
        """Shorter side of each image, in pixels."""
        return np.full(len(self), min(self.pixels.shape[2:]), np.int64)

    @property
    def grey(self) -> npt.NDArray[np.bool_]:
        """Whether each image is gray."""
        return np.full(len(self), self.pixels.shape[1] == 1)

    @property
    def oblong(self) -> npt.NDArray[np.bool_]:
        """Whether each image is not square."""
        return np.full(len(self), self.pixels.shape[2] != self.pixels.shape[3])

    def fit_to(self, size: int, channels: int, resize: Resize = DEFAULT_RESIZE) -> ImageArrays:
        """Return the same images as squares of `size` pixels with the given number of channels."""
        return replace(self, pixels=square(self.pixels, size, channels, resize))


def read(
    path: Path, key: str, form: LabelForm | None
) -> tuple[ImageArrays, TargetColumn | None, dict[int, BadSample], list[str]]:
    """Read the images of an .npz file and, if their form is known, their targets.

    Returns:
        The images, their targets, the images that cannot be used (by row), and a note on their conversion.

    Raises:
        DataError: if the file is not an .npz with images, or its labels have another form; names `key`.
    """
    names = ("images", "labels") if form else ("images",)
    content = npz_file.read_arrays(path, key, names, POSSIBLE, "numpy.savez(..., images=x, labels=y)")
    pixels, note = _convert_pixels(_channels_first(content["images"], path, key), path, key)
    images = ImageArrays(path.name, torch.from_numpy(pixels))
    broken, notes = _find_not_finite(images), [note] if note else []
    if form is None:
        return images, None, broken, notes
    raw_labels = content["labels"]
    if raw_labels.ndim < 1 or len(raw_labels) != len(images):
        raise DataError(
            f"{path} has {len(images):,} images and {len(raw_labels) if raw_labels.ndim else 1:,} labels",
            "one label for each image",
            "write the file again with both of one length",
            key=key,
        )
    if form.kind == "class":
        target = target_columns.of_classes(_read_classes(raw_labels, path, key), "label")
    else:
        target = _read_label_numbers(raw_labels, form, path, key)
    unlabelled = {row: BadSample(images.title(row), reason) for row, reason in target.bad.items()}
    return images, target, unlabelled | broken, notes


def _channels_first(images: npt.NDArray[np.generic], path: Path, key: str) -> npt.NDArray[np.generic]:
    """Convert images to (N, C, H, W). If both layouts are possible, channels are taken to be last."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim != 4 or images.shape[1] not in (1, 3):
        description = f"images of {path} have shape {images.shape}"
        raise DataError(description, POSSIBLE_SHAPES, "reshape them, without alpha", key=key)
    if 0 in images.shape:
        description = f"images of {path} have shape {images.shape}: nothing"
        raise DataError(description, POSSIBLE_SHAPES, "check how the file was written", key=key)
    return images


def _convert_pixels(images: npt.NDArray[np.generic], path: Path, key: str) -> tuple[npt.NDArray[np.generic], str]:
    """Convert whole numbers from 0 to 255 to uint8, booleans to 0 and 255, others to float32; also returns a note."""
    data_type = images.dtype
    if data_type == np.bool_:
        return np.ascontiguousarray(images, np.uint8) * np.uint8(255), f"{path.name}: bool images become 0 and 255"
    if data_type.kind not in "iuf":
        raise DataError(
            f"images of {path} are {data_type}", POSSIBLE_SHAPES, "convert them to uint8 or float32", key=key
        )
    low, high, whole_numbers = measure_array(images)
    if find_scale(low, high, whole_numbers=whole_numbers) == BYTES:
        note = f"{path.name}: {data_type} images with whole numbers from {low:g} to {high:g} become uint8"
        return np.ascontiguousarray(images, np.uint8), "" if data_type == np.uint8 else note
    note = "" if data_type == np.float32 else f"{path.name}: {data_type} images become float32"
    return np.ascontiguousarray(images, np.float32), note


def _read_label_numbers(raw_labels: npt.NDArray[Any], form: LabelForm, path: Path, key: str) -> TargetColumn:
    """Read targets from an array (N, K) of labels of 0 and 1, or (N,) or (N, K) of numbers."""
    import pyarrow

    labels = form.kind == "labels"
    if raw_labels.ndim == 1 and not labels:
        raw_labels = raw_labels[:, None]
    if raw_labels.ndim != 2 or 0 in raw_labels.shape or raw_labels.dtype.kind not in "iufb":
        shape = "(N, labels), 0 or 1" if labels else "(N,), or (N, K) for several numbers"
        raise DataError(
            f"labels of {path} are {raw_labels.dtype} of shape {raw_labels.shape}",
            f"labels of shape {shape}",
            "convert them" + (", or leave multi_label out for one class per image" if labels else ""),
            key=key,
        )
    count = raw_labels.shape[1]
    names = [str(index) if labels else f"label[{index}]" if count > 1 else "label" for index in range(count)]
    table = pyarrow.table({name: pyarrow.array(column) for name, column in zip(names, raw_labels.T, strict=True)})
    columns = [column_values.numbers(table[name])[0] for name in names]
    if labels and count == 1:
        # One column would be read as a class.
        wrong = {
            row: f"label is {columns[0][row]:g}, not 0 or 1"
            for row in np.flatnonzero(~np.isin(columns[0], (0, 1))).tolist()
        }
        return TargetColumn(tuple(names), np.stack(columns, axis=1), several=True, bad=wrong)
    return target_columns.read_targets(table, names, classes=labels, option=key, source=str(path))


def _read_classes(labels: npt.NDArray[np.generic], path: Path, key: str) -> list[str]:
    """Read the class of each image, from an array (N,) or (N, 1) of integers or text."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iubUS":
        several = labels.ndim == 2 and labels.dtype.kind in "iufb" and bool(np.isin(labels, (0, 1)).all())
        raise DataError(
            f"labels of {path} are {labels.dtype} of shape {labels.shape}",
            "integers or text of shape (N,); with multi_label: true (N, labels) of 0 and 1; for numbers image-regression",
            "add `multi_label: true` to data, or save the class: labels.argmax(axis=1)"
            if several
            else "convert them: labels.astype(int); or use the task image-regression",
            key=key,
        )
    if labels.dtype.kind == "S":
        return [text.decode("utf-8", "backslashreplace") for text in labels.tolist()]
    return [str(label) for label in labels.tolist()]


def _find_not_finite(images: ImageArrays) -> dict[int, BadSample]:
    """Find the images with NaN or infinity, by row."""
    if not images.pixels.is_floating_point():
        return {}
    is_finite = torch.isfinite(images.pixels.flatten(1)).all(dim=1)
    return {row: BadSample(images.title(row), "NaN or infinity") for row in (~is_finite).nonzero().flatten().tolist()}


def square(pixels: Tensor, size: int, channels: int, resize: Resize = DEFAULT_RESIZE) -> Tensor:
    """Resize images to squares with the given number of channels; the dtype stays.

    Args:
        pixels: shape (N, C, H, W), uint8 or float32.
        size: side of the square in pixels; a smaller size uses antialiasing.
        channels: 1 or 3; gray is repeated three times, color is converted to luma.

    Returns:
        Shape (N, channels, size, size).
    """
    if pixels.shape[1] != channels:
        # Gray becomes three equal channels, and color luma.
        pixels = pixels.expand(-1, 3, -1, -1) if channels == 3 else _round_to(luma(pixels.float()), pixels.dtype)
    height, width = pixels.shape[2:]
    inner = pad_sides((height, width), size) if resize.fit == "pad" else (size, size)
    if resize.fit != "pad":
        part_width, part_height = (max(1, round(side)) for side in resize.kept(width, height))
        top, first_column = (height - part_height) // 2, (width - part_width) // 2
        pixels = pixels[:, :, top : top + part_height, first_column : first_column + part_width]
    if pixels.shape[2:] != inner:
        mode = _TORCH_INTERPOLATIONS.get(resize.interpolation, resize.interpolation)
        scale = partial(functional.interpolate, size=inner, mode=mode, antialias=mode in ("bilinear", "bicubic"))
        pixels = torch.cat([_round_to(scale(part.float()), pixels.dtype) for part in torch.split(pixels, 1024)])
    top, first_column = (size - inner[0]) // 2, (size - inner[1]) // 2
    return functional.pad(
        pixels, (first_column, size - inner[1] - first_column, top, size - inner[0] - top)
    ).contiguous()


def _round_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to `dtype`; integers are rounded, from 0 to 255."""
    return values if dtype.is_floating_point else values.round().clamp(0, 255).to(dtype)
