"""Every kind of bad image is found and named, and left out where the job allows that."""

from __future__ import annotations

import io
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from tests.axes import each_once
from tests.messages import saying, says, says_only
from tests.pictures import SIDE, job, make_image, write_good_images, write_truncated_jpeg

torch.set_num_threads(1)


def truncated_png(path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue()[:-2000])


def damaged_png(path: Path) -> None:
    """One bit of the compressed pixels is flipped, the length is right."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def unreadable(path: Path) -> None:
    make_image().save(path)
    path.chmod(0)


def make_header_writer(width: int, height: int) -> Callable[[Path], None]:
    """Writes a small file whose header claims so many pixels."""

    def write(path: Path) -> None:
        buffer = io.BytesIO()
        Image.new("1", (8, 8)).save(buffer, "PNG")
        content = bytearray(buffer.getvalue())
        content[16:24] = struct.pack(">II", width, height)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        path.write_bytes(content)

    return write


BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "truncated jpeg": ("x.jpg", write_truncated_jpeg, "image file is truncated"),
    "truncated png": ("x.png", truncated_png, "image file is truncated"),
    "damaged png": ("x.png", damaged_png, "broken PNG file|broken data stream"),
    "empty": ("x.jpg", lambda path: path.touch(), "empty file"),
    "text": ("x.png", lambda path: path.write_text("no image"), "none of JPEG, PNG, BMP, GIF, WEBP, TIFF"),
    "other format": ("x.png", lambda path: make_image().save(path, "ICO"), "none of JPEG, PNG, BMP, GIF, WEBP, TIFF"),
    "float tiff": ("x.tiff", lambda path: Image.new("F", (9, 9)).save(path), "32-bit pixels with an unknown range"),
    "bomb": ("x.png", make_header_writer(20000, 10000), "more than 178,956,970 pixels"),
    "small bomb": (
        "x.png",
        make_header_writer(10000, 10000),
        "image file is truncated|broken PNG file|broken data stream",
    ),
    "pipe": ("x.png", os.mkfifo, "not a file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file_is_named_with_its_reason(tmp_path: Path, case: str) -> None:
    name, write, reason = BAD[case]
    path = write_good_images(tmp_path) / "a" / name
    write(path)
    with pytest.raises(DataError) as error:
        load(job(tmp_path, bad_samples=0.0))
    head, line, possible, action = str(error.value).splitlines()
    assert says_only(head, "of-samples-cannot-be-used", "data.train", 1, 17)
    assert line.startswith(f"    {path}: ")
    assert any(part in line for part in reason.split("|")), line
    assert says_only(possible, "possible-most-share", 0, "data.bad_samples")
    assert "raise data.bad_samples" in action
    assert error.value.exit_code == 3


@pytest.mark.parametrize("case", BAD)
def test_bad_file_within_the_budget_is_left_out_with_a_note(tmp_path: Path, case: str) -> None:
    name, write, reason = BAD[case]
    path = write_good_images(tmp_path) / "a" / name
    write(path)
    data = load(job(tmp_path, bad_samples=0.1))
    assert len(data.train) + len(data.validation) == 16
    assert str(path) not in [split.title(i) for split in (data.train, data.validation) for i in range(len(split))]
    assert says_only(data.notes, "samples-used-skipped", "data.train", 1, 17)
    (line,) = [note for note in data.notes if note.startswith(f"left out: {path}: ")]
    assert any(part in line for part in reason.split("|"))
    assert data.train.gather(np.arange(len(data.train)))[0].shape == (len(data.train), 1 + 2, SIDE, SIDE)


@pytest.mark.parametrize(
    ("target", "name", "kind"),
    each_once(
        ["nowhere.png", "/nowhere/x.png", "x.png"], ["a/x.png", "a/deep/x.png", "c", "a/more"], ["folder", "manifest"]
    ),
)
def test_a_broken_link_is_no_bad_sample(tmp_path: Path, kind: str, name: str, target: str) -> None:
    """A container that does not see what links lead to must not train on fewer samples than its host does."""
    images = write_good_images(tmp_path / "images")
    files = [path.relative_to(tmp_path) for path in sorted(images.rglob("*.png"))]
    (images / name).parent.mkdir(exist_ok=True)
    (images / name).symlink_to(target.replace("x.png", Path(name).name))
    rows = [f"{path},{path.parent.name}" for path in [*files, Path("images", name)]]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    source = images if kind == "folder" else tmp_path / "list.csv"
    with pytest.raises(DataError, check=saying("links-what-does-exist", "data.train", 1, images / name)) as error:
        load(job(source, bad_samples=0.5))
    assert error.value.exit_code == 3


@pytest.fixture
def unprivileged_folder() -> Iterator[Path]:
    """A folder that an ordinary user may read; root would read a file without any rights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_good_images(folder)
        unreadable(folder / "b" / "secret.png")
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)


def test_unreadable_file(unprivileged_folder: Path) -> None:
    with pytest.raises(DataError, match=r"b/secret\.png: permission denied"):
        load(job(unprivileged_folder, bad_samples=0.0))


def test_only_twenty_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    write_good_images(tmp_path)
    for i in range(25):
        (tmp_path / "a" / f"bad{i:02}.png").touch()
    with pytest.raises(DataError) as error:
        load(job(tmp_path))
    lines = str(error.value).splitlines()
    assert says_only(lines[0], "of-samples-cannot-be-used", "data.train", 25, 41)
    assert sum("empty file" in line for line in lines) == 20
    assert lines[21] == "    and 5 more"
    assert says(lines[22], "at-most-share-of", "0.05", "data.bad_samples")


def test_file_lost_after_the_check(tmp_path: Path) -> None:
    data = load(job(write_good_images(tmp_path)))
    Path(data.train.title(3)).unlink()
    with pytest.raises(DataError, match=r"(?s)\.png: no such file.*could be decoded when the run began.*restore"):
        data.train.gather(np.arange(8))
