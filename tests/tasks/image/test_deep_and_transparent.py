"""Files of 16 bits that use few of them, transparent pictures, and sets in which nothing can be seen."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from drivetrain.data import load_data
from drivetrain.data.dataset import Dataset, InputRecord
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.tasks.image import decode
from tests.messages import saying, says, says_only
from tests.pictures import job, read_refusal, write_npz

SIDE = 16
PER_CLASS = 12


def stripes(number: int, low: int, high: int) -> npt.NDArray[np.uint16]:
    """A noisy picture with stripes, horizontal in even ones, with values from `low` to `high`."""
    shares = np.random.default_rng(number).uniform(0, 0.5, (SIDE, SIDE))
    shares[:: 2 if number % 2 else 1, :: 1 if number % 2 else 2] += 0.5
    shares[0, 0], shares[0, 1] = 0, 1
    return np.rint(low + shares * (high - low)).astype(np.uint16)


def deep(folder: Path, low: int, high: int, *, change: Callable[[Any], Any] = lambda x: x, kind: str = "tif") -> Path:
    for number in range(2 * PER_CLASS):
        class_folder = folder / "ab"[number % 2]
        class_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(change(stripes(number, low, high))).save(class_folder / f"{number:02}.{kind}")
    return folder


def prepare_images(data: Dataset) -> torch.Tensor:
    ids = np.arange(len(data.train))
    return data.prepare(data.train.gather(ids), ids, None)[0]


@pytest.mark.parametrize("kind", ["tif", "png"])
@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [
        (0, 99, (0, 255)),
        (0, 4095, (0, 4095)),
        (3, 16383, (3, 16383)),
        (7820, 7960, (7820, 7960)),
        (29000, 31500, (29000, 31500)),
        (12, 65000, (0, 65535)),
    ],
)
def test_the_range_is_usual_or_declared(tmp_path: Path, low: int, high: int, scale: tuple[int, int], kind: str) -> None:
    """What the network sees is what it sees of the same pictures stretched to 8 bits by hand."""
    folder = deep(tmp_path / "x", low, high, kind=kind)
    declared = None if scale in ((0, 255), (0, 65535)) else scale
    if declared:
        assert says(read_refusal(job(folder)), "pixel-range-line", list(scale))
    data = load(job(folder, image_size=SIDE, pixel_range=declared))
    assert data.preprocessing["range_16_bit"] == list(scale)
    assert scale == (0, 255) or any(f"{scale[0]:,} is black, and {scale[1]:,} is white" in note for note in data.notes)
    by_hand = deep(
        tmp_path / "y", low, high, change=lambda x: np.rint((x - low) / (high - low) * 255).astype(np.uint8), kind="png"
    )
    assert torch.allclose(prepare_images(data), prepare_images(load(job(by_hand, image_size=SIDE))), atol=0.05)
    new = load_data.load_new([tmp_path / "x"], json.loads(json.dumps(data.preprocessing)), data.heads, labelled=True)
    (pixels,) = new.split.gather(np.arange(4))
    assert len(pixels.unique()) > min(90, high - low) / 2


def test_values_beyond_the_range_are_cut_off(tmp_path: Path) -> None:
    deep(tmp_path / "train", 1000, 3000)
    deep(tmp_path / "held", 900, 3100)
    data = load(job(tmp_path / "train", validation=str(tmp_path / "held"), image_size=SIDE, pixel_range=[1000, 3000]))
    assert data.preprocessing["range_16_bit"] == [1000, 3000]
    (pixels,) = data.validation.gather(np.arange(4))
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)


def test_a_hot_pixel_does_not_make_the_rest_black(tmp_path: Path) -> None:
    def with_hot(values: Any) -> Any:
        values[5, 5] = 65535
        return values

    folder = deep(tmp_path / "x", 1000, 1200, change=with_hot)
    assert says(read_refusal(job(folder, pixel_range=[1000, 65535])), "correct-pixel-range", 1000, 65535)
    data = load(job(folder, image_size=SIDE, pixel_range=[1000, 1200]))
    (pixels,) = data.train.gather(np.arange(4))
    assert int(pixels.float().quantile(0.9)) in range(150, 256)


ELSEWHERE: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "12 bits for all 16": ((0, 65535), (0, 4095)),
    "all 16 for 12 bits": ((0, 4095), (0, 65535)),
    "bytes for counts": ((7820, 7960), (0, 255)),
    "counts for bytes": ((0, 255), (7820, 7960)),
    "other counts": ((7820, 7960), (29000, 31500)),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_16_bit_files_on_another_scale_are_refused(tmp_path: Path, case: str) -> None:
    trained, new = (deep(tmp_path / name, *ends) for name, ends in zip("xy", ELSEWHERE[case], strict=True))
    declared = ELSEWHERE[case][0]
    data = load(job(trained, image_size=SIDE, pixel_range=declared))
    for labelled in (True, False):
        with pytest.raises(
            DataError, match=r"24 gray files of 16 bits have values from .* but the training images were"
        ):
            load_data.load_new([new], data.preprocessing, data.heads, labelled=labelled)
    assert read_refusal(job(trained, validation=str(new), pixel_range=declared)).startswith(
        "data.validation: 24 gray files of 16 bits"
    )


def test_12_bits_for_a_model_of_8_bit_files_are_refused(tmp_path: Path) -> None:
    trained = deep(tmp_path / "x", 0, 255, change=lambda x: x.astype(np.uint8), kind="png")
    data = load(job(trained, image_size=SIDE))
    with pytest.raises(DataError, check=saying("files-bits-values", 24, 16, 0, 4095)):
        load_data.load_new([deep(tmp_path / "y", 0, 4095)], data.preprocessing, data.heads, labelled=False)
    # All 16 bits are the same colors.
    full = load_data.load_new([deep(tmp_path / "z", 0, 65535)], data.preprocessing, data.heads, labelled=False)
    bytes_ = load_data.load_new([trained], data.preprocessing, data.heads, labelled=False)
    difference = full.split.gather(np.arange(24))[0].int() - bytes_.split.gather(np.arange(24))[0].int()
    assert int(difference.abs().max()) <= 1


def test_one_picture_with_little_contrast_is_used(tmp_path: Path) -> None:
    data = load(job(deep(tmp_path / "x", 7820, 7960), image_size=SIDE, pixel_range=[7820, 7960]))
    cold = tmp_path / "cold.tif"
    Image.fromarray(stripes(0, 7825, 7829)).save(cold)
    new = load_data.load_new([cold], data.preprocessing, data.heads, labelled=False)
    assert int(new.split.gather(np.arange(1))[0].max()) == round((7829 - 7820) / 140 * 255)


def test_color_files_of_which_only_the_lower_bits_are_used(tmp_path: Path) -> None:
    """Pillow keeps the upper 8 bits of a color file; 12 bits would be nearly black."""
    for number in range(8):
        class_folder = tmp_path / "x" / "ab"[number % 2]
        class_folder.mkdir(parents=True, exist_ok=True)
        (class_folder / f"{number}.tif").write_bytes(planar_tiff(compression=1, planes=1, high=4095))
    assert says(read_refusal(job(tmp_path / "x")), "color-files-bits-channel", 6, 16, 14)


def planar_tiff(*, compression: int, planes: int, high: int = 65535) -> bytes:
    """A TIFF of 8 x 8 pixels with 3 channels of 16 bits, without compression."""
    values = np.random.default_rng(0).integers(0, high, (8, 8, 3), endpoint=True).astype("<u2")
    data = (values.transpose(2, 0, 1) if planes == 2 else values).tobytes()
    parts = 3 if planes == 2 else 1
    bits, starts, counts = 8, 8 + 6, 8 + 6 + 4 * parts
    pixels = counts + 4 * parts
    offsets = [pixels + index * (len(data) // parts) for index in range(parts)]
    tags = [(256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 3, bits), (259, 3, 1, compression), (262, 3, 1, 2)]
    tags += [(273, 4, parts, starts if parts > 1 else pixels), (277, 3, 1, 3), (278, 4, 1, 8)]
    tags += [(279, 4, parts, counts if parts > 1 else len(data)), (284, 3, 1, planes)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    body = struct.pack("<3H", 16, 16, 16) + struct.pack(f"<{parts}I", *offsets)
    body += struct.pack(f"<{parts}I", *[len(data) // parts] * parts) + data
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + struct.pack("<H", len(tags)) + entries + b"\0" * 4


def test_separate_planes_of_16_bits_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.tif"
    file.write_bytes(planar_tiff(compression=1, planes=1))
    decode.pixels(str(file), 8, 3)
    file.write_bytes(planar_tiff(compression=1, planes=2))
    for read in (decode.look, lambda path: decode.pixels(path, 8, 3)):
        with pytest.raises(decode.UnreadableImage, check=saying("bits-channel-separate-planes", 16)):
            read(str(file))


def test_16_bits_of_which_0_is_white(tmp_path: Path) -> None:
    values = stripes(0, 100, 65000)
    for name, photometric, stored in (("black", 1, values), ("white", 0, 65535 - values)):
        Image.fromarray(stored).save(tmp_path / f"{name}.tif", tiffinfo={262: photometric})
    with Image.open(tmp_path / "white.tif") as image:
        assert image.tag_v2[262] == 0  # type: ignore[attr-defined]
    black, white = (decode.pixels(str(tmp_path / f"{name}.tif"), SIDE, 1) for name in ("black", "white"))
    assert np.array_equal(black, white)
    assert np.array_equal(black[0], np.rint(values / 257))
    assert (
        decode.look(str(tmp_path / "white.tif")).range_16_bit == decode.look(str(tmp_path / "black.tif")).range_16_bit
    )


def glyphs(folder: Path, colors: tuple[int, ...], *, kind: str = "RGBA") -> Path:
    """Stripes of a color on a transparent ground, horizontal in class a."""
    for number in range(2 * PER_CLASS):
        class_folder = folder / "ab"[number % 2]
        class_folder.mkdir(parents=True, exist_ok=True)
        image = np.zeros((SIDE, SIDE, 4), np.uint8)
        image[..., :3] = colors[number // 2 % len(colors)]
        is_stripe = np.arange(SIDE) // (2 + number % 3) % 2 == 0
        image[is_stripe if number % 2 else slice(None), slice(None) if number % 2 else is_stripe, 3] = 255
        Image.fromarray(image).convert(kind).save(class_folder / f"{number:02}.png")
    return folder


@pytest.mark.parametrize("kind", ["RGBA", "LA"])
@pytest.mark.parametrize(
    ("colors", "ground"), [((0,), "white"), ((255,), "black"), ((255, 0), "gray"), ((40, 200), "white")]
)
def test_the_ground_is_one_on_which_glyphs_can_be_seen(
    tmp_path: Path, colors: tuple[int, ...], ground: str, kind: str
) -> None:
    data = load(job(glyphs(tmp_path, colors, kind=kind), image_size=SIDE))
    assert data.preprocessing.get("ground", "white") == ground
    (note,) = [note for note in data.notes if "partly transparent" in note]
    assert f"they lie on {ground}" in note
    raw = data.train.gather(np.arange(len(data.train)))[0].flatten(1)
    assert bool((raw.amax(1) > raw.amin(1) + 30).all())
    stored = json.loads(json.dumps(data.preprocessing))
    new = load_data.load_new([tmp_path / "a" / "00.png"], stored, data.heads, labelled=False).split.gather(
        np.arange(1)
    )[0]
    assert int(new.max()) - int(new.min()) > 30
    resumed = load(job(tmp_path, image_size=SIDE), InputRecord(stored, data.heads))
    assert note in resumed.notes


def test_a_fourth_byte_that_is_no_transparency(tmp_path: Path) -> None:
    """A BMP of 32 bits whose fourth byte is 0 everywhere."""
    for number in range(8):
        class_folder = tmp_path / "ab"[number % 2]
        class_folder.mkdir(exist_ok=True)
        image = np.zeros((SIDE, SIDE, 4), np.uint8)
        image[..., :3] = stripes(number, 0, 255)[..., None]
        Image.fromarray(image).save(class_folder / f"{number}.png")
    data = load(job(tmp_path, image_size=SIDE))
    assert says_only(data.notes, "training-images-visible-pixel", 6)
    pixels = decode.pixels(str(tmp_path / "a" / "0.png"), SIDE, 1)[0]
    assert np.array_equal(pixels, stripes(0, 0, 255))


BLANK: dict[str, Callable[[Path], Path]] = {
    "black": lambda folder: deep(folder, 0, 255, change=lambda x: np.zeros_like(x, np.uint8), kind="png"),
    "one 16-bit value": lambda folder: deep(folder, 7, 8, change=lambda x: np.full_like(x, 7800)),
    "nothing visible": lambda folder: deep(
        folder, 0, 255, change=lambda x: np.zeros((*x.shape, 4), np.uint8), kind="png"
    ),
    "array": lambda folder: write_npz(folder.with_suffix(".npz"), np.full((24, 8, 8), 3.5), np.arange(24) % 2),
}


@pytest.mark.parametrize("case", BLANK)
def test_a_set_in_which_nothing_can_be_seen_is_refused(tmp_path: Path, case: str) -> None:
    blank = BLANK[case](tmp_path / "x")
    assert says(read_refusal(job(blank)), "images-color-network-sees", "data.train", 18, 18)
    if case == "black":
        good = deep(tmp_path / "y", 0, 255, change=lambda x: x.astype(np.uint8), kind="png")
        assert says(
            read_refusal(job(good, validation=str(blank))), "of-images-are-of-one-color", "data.validation", 24, 24
        )
        data = load(job(good))
        with pytest.raises(DataError, check=saying("data-images-color", 24, 24)):
            load_data.load_new([blank], data.preprocessing, data.heads, labelled=True)
        load_data.load_new([blank / "a" / "00.png"], data.preprocessing, data.heads, labelled=False)


def test_some_images_of_one_color_are_a_note(tmp_path: Path) -> None:
    deep(tmp_path, 0, 255, change=lambda x: x.astype(np.uint8), kind="png")
    for number in range(6):
        Image.new("L", (SIDE, SIDE), number).save(tmp_path / "a" / f"blank{number}.png")  # no copies of each other
    notes = load(job(tmp_path)).notes
    assert says(notes, "images-are-of-one-color")
