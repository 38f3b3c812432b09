"""Every kind of odd but good image is used, and used right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.errors import DataError
from drivetrain.tasks.image import decode, image_files
from drivetrain.tasks.image.preprocess import from_preprocessing
from tests.axes import each_once
from tests.messages import saying, says, says_only
from tests.pictures import SIDE, job, make_image, read_refusal, write_good_images, write_truncated_jpeg

torch.set_num_threads(1)


def quarters() -> Image.Image:
    """Red, green, blue and white quarters, so that every turn and mirroring can be told."""
    image = make_image((255, 0, 0))
    image.paste((0, 255, 0), (SIDE // 2, 0, SIDE, SIDE // 2))
    image.paste((0, 0, 255), (0, SIDE // 2, SIDE // 2, SIDE))
    image.paste((255, 255, 255), (SIDE // 2, SIDE // 2, SIDE, SIDE))
    return image


def corners(path: Path, channels: int = 3, size: int = SIDE) -> list[list[int]]:
    """Colours of the middle of each quarter: top left, top right, bottom left, bottom right."""
    pixels = decode.pixels(str(path), size, channels)
    low, high = size // 4, 3 * size // 4
    return [pixels[:, y, x].tolist() for y in (low, high) for x in (low, high)]


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff", "JPG"])
def test_every_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    quarters().save(path)
    expected = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]
    assert np.abs(np.array(corners(path)) - expected).max() <= 4


def test_valid_image_with_a_wrong_extension(tmp_path: Path) -> None:
    quarters().save(tmp_path / "x.png", "BMP")
    assert corners(tmp_path / "x.png")[0] == [255, 0, 0]


RED, GREEN, BLUE, WHITE = [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]
TURNED = {
    1: [RED, GREEN, BLUE, WHITE],
    2: [GREEN, RED, WHITE, BLUE],
    3: [WHITE, BLUE, GREEN, RED],
    4: [BLUE, WHITE, RED, GREEN],
    5: [RED, BLUE, GREEN, WHITE],
    6: [BLUE, RED, WHITE, GREEN],
    7: [WHITE, GREEN, BLUE, RED],
    8: [GREEN, WHITE, RED, BLUE],
}
"""Quarters of the upright image by EXIF orientation, worked out by hand from the EXIF standard."""


@pytest.mark.parametrize(("suffix", "orientation"), each_once(["jpg", "png", "webp", "tiff"], TURNED))
def test_exif_orientation(tmp_path: Path, orientation: int, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    quarters().resize((256, 256)).save(path, exif=exif, **({"quality": 95} if suffix == "jpg" else {}))  # type: ignore[arg-type]
    assert np.abs(np.array(corners(path)) - TURNED[orientation]).max() <= 4


@pytest.mark.parametrize("orientation", [0, 9, 60000])
def test_meaningless_orientation_turns_nothing(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    quarters().save(tmp_path / "x.png", exif=exif)
    assert corners(tmp_path / "x.png") == TURNED[1]


def test_damaged_exif_turns_nothing(tmp_path: Path) -> None:
    quarters().save(tmp_path / "x.png", exif=b"Exif\0\0no TIFF header at all")
    assert corners(tmp_path / "x.png") == TURNED[1]


def test_cmyk_jpeg_has_its_colours(tmp_path: Path) -> None:
    quarters().convert("CMYK").save(tmp_path / "x.jpg", quality=95)
    with Image.open(tmp_path / "x.jpg") as image:
        assert image.mode == "CMYK"
    assert np.abs(np.array(corners(tmp_path / "x.jpg")) - TURNED[1]).max() <= 6


@pytest.mark.parametrize("level", [0, 128, 1000, 32768, 65535])
@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bits_are_scaled_to_8(tmp_path: Path, level: int, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(np.full((SIDE, SIDE), level, np.uint16)).save(path)
    with Image.open(path) as image:
        assert image.mode.startswith("I;16")
    assert corners(path, channels=1) == [[round(level * 255 / 65535)]] * 4
    assert corners(path, channels=3) == [[round(level * 255 / 65535)] * 3] * 4


def test_big_endian_16_bits(tmp_path: Path) -> None:
    image = Image.frombytes("I;16B", (SIDE, SIDE), np.full((SIDE, SIDE), 1000, ">u2").tobytes())
    image.save(tmp_path / "x.tiff")
    assert corners(tmp_path / "x.tiff", channels=1) == [[4]] * 4


def palette_with_transparency(path: Path) -> None:
    """Left half opaque blue, right half transparent red."""
    image = Image.new("P", (SIDE, SIDE), 0)
    image.putpalette([0, 0, 255, 255, 0, 0])
    image.paste(1, (SIDE // 2, 0, SIDE, SIDE))
    image.save(path, transparency=1)


def half_transparent(mode: str, colour: tuple[int, ...]) -> Callable[[Path], None]:
    return lambda path: Image.new(mode, (SIDE, SIDE), colour).save(path)


def transparent_colour(path: Path) -> None:
    """An RGB image without alpha, one colour of which counts as transparent (tRNS)."""
    quarters().save(path, transparency=(0, 0, 255))


TRANSPARENT: dict[str, tuple[Callable[[Path], None], list[list[int]]]] = {
    "palette": (palette_with_transparency, [BLUE, WHITE, BLUE, WHITE]),
    "rgba": (half_transparent("RGBA", (0, 0, 0, 51)), [[204, 204, 204]] * 4),
    "grey and alpha": (half_transparent("LA", (100, 0)), [WHITE] * 4),
    "one colour": (transparent_colour, [RED, GREEN, WHITE, WHITE]),
}


@pytest.mark.parametrize("case", TRANSPARENT)
def test_transparency_lies_over_white(tmp_path: Path, case: str) -> None:
    write, expected = TRANSPARENT[case]
    write(tmp_path / "x.png")
    assert corners(tmp_path / "x.png") == expected


def test_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [make_image((250, 0, 0)), make_image((0, 250, 0)), make_image((0, 0, 250))]
    for name in ("x.gif", "x.webp"):
        frames[0].save(
            tmp_path / name,
            save_all=True,
            append_images=frames[1:],
            **({"lossless": True} if name == "x.webp" else {}),  # type: ignore[arg-type]
        )
        with Image.open(tmp_path / name) as image:
            assert image.n_frames == 3  # type: ignore[attr-defined]
        assert corners(tmp_path / name) == [[250, 0, 0]] * 4


def test_bilevel_and_palette(tmp_path: Path) -> None:
    image = Image.new("1", (SIDE, SIDE), 0)
    image.paste(1, (0, 0, SIDE // 2, SIDE))
    image.save(tmp_path / "x.png")
    assert corners(tmp_path / "x.png", channels=1) == [[255], [0], [255], [0]]


def test_grey_of_a_colour_image_is_its_luma(tmp_path: Path) -> None:
    quarters().save(tmp_path / "x.png")
    assert corners(tmp_path / "x.png", channels=1) == [[76], [150], [29], [255]]
    quarters().save(tmp_path / "x.jpg", quality=95)
    assert np.abs(np.array(corners(tmp_path / "x.jpg", channels=1)) - [[76], [150], [29], [255]]).max() <= 2


@pytest.mark.parametrize("size", [(96, 32), (32, 96)])
def test_the_center_square_of_the_short_side_is_used(tmp_path: Path, size: tuple[int, int]) -> None:
    image = make_image((255, 0, 0), size)
    image.paste(quarters(), ((size[0] - SIDE) // 2, (size[1] - SIDE) // 2))
    image.save(tmp_path / "x.png")
    assert corners(tmp_path / "x.png") == TURNED[1]
    assert np.array_equal(decode.pixels(str(tmp_path / "x.png"), SIDE, 3), np.asarray(quarters()).transpose(2, 0, 1))


def test_small_is_antialiased_and_large_is_smooth(tmp_path: Path) -> None:
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "x.png")
    small = decode.pixels(str(tmp_path / "x.png"), 16, 1)
    assert small.min() >= 120
    assert small.max() <= 135
    Image.fromarray(np.array([[0, 255], [0, 255]], np.uint8)).save(tmp_path / "y.png")
    row = decode.pixels(str(tmp_path / "y.png"), 8, 1)[0, 4]
    assert (np.diff(row.astype(int)) >= 0).all()
    assert len(np.unique(row)) > 3


def test_a_large_jpeg_decoded_small_is_close_to_the_full_decode(tmp_path: Path) -> None:
    grid = np.random.default_rng(1).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(grid).resize((600, 600), Image.Resampling.BICUBIC).save(tmp_path / "x.jpg", quality=95)
    with Image.open(tmp_path / "x.jpg") as image:
        full = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(int)
    difference = np.abs(decode.pixels(str(tmp_path / "x.jpg"), 64, 3) - full)
    assert difference.mean() < 1
    assert difference.max() < 16


def test_all_unusual_images_in_one_folder(tmp_path: Path) -> None:
    """The bad are listed, the good are used: the folder of a real collection."""
    write_good_images(tmp_path)
    write_truncated_jpeg(tmp_path / "a" / "cut.jpg")
    (tmp_path / "a" / "empty.jpg").touch()
    (tmp_path / "b" / "text.png").write_text("hello")
    quarters().convert("CMYK").save(tmp_path / "a" / "cmyk.jpg")
    Image.fromarray(np.full((40, 40), 32768, np.uint16)).save(tmp_path / "a" / "deep.png")
    palette_with_transparency(tmp_path / "b" / "palette.png")
    make_image().save(tmp_path / "b" / "moving.gif", save_all=True, append_images=[make_image((1, 2, 3))])
    exif = Image.Exif()
    exif[0x0112] = 6
    quarters().save(tmp_path / "b" / "turned.jpg", exif=exif)
    with pytest.raises(DataError) as error:
        load(job(tmp_path))
    lines = str(error.value).splitlines()
    assert says_only(lines[0], "of-samples-cannot-be-used", "data.train", 3, 24)
    assert [line.split(":")[0].strip() for line in lines[1:4]] == [
        str(tmp_path / name) for name in ("a/cut.jpg", "a/empty.jpg", "b/text.png")
    ]
    data = load(job(tmp_path, bad_samples=0.2))
    titles = {Path(split.title(i)).name for split in (data.train, data.validation) for i in range(len(split))}
    assert {"cmyk.jpg", "deep.png", "palette.png", "moving.gif", "turned.jpg"} <= titles
    assert len(data.train) + len(data.validation) == 21
    assert not titles & {"cut.jpg", "empty.jpg", "text.png"}


def test_threads_do_not_change_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_good_images(tmp_path, per_class=20)
    (tmp_path / "a" / "x.png").touch()
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    alone, bad = image_files.check_images(str(tmp_path), names)
    rows = np.setdiff1d(np.arange(41), list(bad))
    one = alone.fit_to(8, 3).gather(rows)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    several, bad_by_threads = image_files.check_images(str(tmp_path), names)
    assert bad_by_threads == bad
    assert np.array_equal(several.short_sides, alone.short_sides)
    assert torch.equal(several.fit_to(8, 3).gather(rows), one)


def test_worker_processes_do_not_change_a_batch(tmp_path: Path) -> None:
    data = load(job(write_good_images(tmp_path), augment={"flip": True, "randaugment": {}}))
    batches = Batches(data.train, 5, seed=1)

    def epoch(workers: int) -> list[torch.Tensor]:
        batches.workers = workers
        return [data.prepare(batch.inputs, batch.ids, 2)[0] for batch in batches.epoch(2)]

    assert all(torch.equal(a, b) for a, b in zip(epoch(0), epoch(2), strict=True))


def test_new_files_are_prepared_as_validation_was(tmp_path: Path) -> None:
    write_good_images(tmp_path, per_class=12)
    quarters().save(tmp_path / "a" / "quarters.png")
    data = load(job(tmp_path, augment={"flip": True}))
    ids = np.arange(len(data.validation))
    paths = [data.validation.title(i) for i in ids]  # type: ignore[arg-type]
    (validation_pixels,) = data.prepare(data.validation.gather(ids), ids, None)
    bad = tmp_path / "bad.jpg"
    bad.touch()
    new = load_data.load_new([bad, *map(Path, paths)], data.preprocessing, data.heads, labelled=False)
    assert torch.equal(new.prepare(new.split.gather(ids), ids, None)[0], validation_pixels)
    assert [new.split.title(i) for i in ids] == paths  # type: ignore[arg-type]
    assert f"left out: {bad}: empty file" in new.notes
    assert from_preprocessing(data.preprocessing) == from_preprocessing(json.loads(json.dumps(data.preprocessing)))


def test_pillow_is_left_as_it_was(tmp_path: Path) -> None:
    from PIL import ImageFile

    load(job(write_good_images(tmp_path)))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    assert Image.MAX_IMAGE_PIXELS == 89478485


def test_a_png_with_long_metadata(tmp_path: Path) -> None:
    from PIL import PngImagePlugin

    for number, add in enumerate(("add_text", "add_itxt")):
        text = PngImagePlugin.PngInfo()
        getattr(text, add)("history", "layer " * 700_000, zip=True)
        quarters().save(tmp_path / f"{number}.png", pnginfo=text)
        assert decode.look(str(tmp_path / f"{number}.png")).short_side


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
def test_a_jpeg_without_its_last_bytes(tmp_path: Path, missing: int, progressive: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.jpg", progressive=progressive)
    content = (tmp_path / "x.jpg").read_bytes()
    expected = decode.pixels(content, 64, 3)
    (tmp_path / "x.jpg").write_bytes(content[:-missing])
    assert np.array_equal(decode.pixels(str(tmp_path / "x.jpg"), 64, 3), expected)
    assert decode.look(content[:-missing]) == decode.look(content)
    for cut_bytes in (8, 40, 2000):
        with pytest.raises(decode.UnreadableImage, match="truncated"):
            decode.look(content[:-cut_bytes])


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_large_photograph(tmp_path: Path, ending: str) -> None:
    Image.new("L", (12_000, 9_000), 80).save(tmp_path / f"x.{ending}")
    with decode.quiet():
        assert decode.look(str(tmp_path / f"x.{ending}")).short_side == 9_000
        assert decode.pixels(str(tmp_path / f"x.{ending}"), 16, 1).mean() == 80


def test_a_large_photograph_needs_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (12_000, 9_000), 80).save(tmp_path / "x.png")
    monkeypatch.setattr("drivetrain.hardware.cgroup.read_memory_limit", lambda: 1 << 30)
    with (
        decode.quiet(),
        pytest.raises(decode.UnreadableImage, check=saying("pixels-too-many-memory", "12,000", "9,000")),
    ):
        decode.look(str(tmp_path / "x.png"))


@pytest.mark.parametrize("ending", [".jfif", ".jpe", ".avif"])
def test_other_endings_are_read(tmp_path: Path, ending: str) -> None:
    write_good_images(tmp_path)
    for number in range(4):
        kind = "AVIF" if ending == ".avif" else "JPEG"
        (tmp_path / "c").mkdir(exist_ok=True)
        make_image((90, number, 9)).save(tmp_path / "c" / f"{number}{ending}", kind)
    assert load(job(tmp_path)).heads[""].classes == ("a", "b", "c")


@pytest.mark.parametrize("ending", [".heic", ".HEIF", ".jp2", ".dng"])
def test_a_class_of_pictures_that_cannot_be_read_does_not_disappear(tmp_path: Path, ending: str) -> None:
    write_good_images(tmp_path, per_class=100)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / f"1{ending}").write_bytes(b"\0\0\0\x18ftypheic")
    assert says(read_refusal(job(tmp_path)), "image-used-classes")


def test_a_raw_file_beside_its_jpeg_is_only_noted(tmp_path: Path) -> None:
    write_good_images(tmp_path)
    (tmp_path / "a" / "0.dng").write_bytes(b"II*\0")
    assert any("1 .dng" in note for note in load(job(tmp_path, bad_samples=0.0)).notes)
