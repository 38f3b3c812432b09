"""Small files that stand for more than fits into memory are refused before they are decoded."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from runtime.data import decoded_size
from runtime.data.formats import npz_file
from runtime.errors import DataError

MIB = 1 << 20


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_size, "free_memory", lambda: 8 * MIB)


def header(shape: str, kind: str = "<f4") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def array(path: Path, name: str = "x") -> np.ndarray:
    with npz_file.opened(path) as file:
        return npz_file.member(file, name, path, "data.train")


def test_free_memory_is_a_number_of_bytes_of_this_machine() -> None:
    assert 0 < decoded_size.free_memory() < 1 << 50


@pytest.mark.parametrize(
    "shape",
    ["(16777216,)", "(4294967296, 4294967296)", f"({1 << 50},)", "(-16777216,)"],
    ids=["large", "overflow", "2^50", "negative"],
)
@pytest.mark.usefixtures("little_memory")
def test_an_array_is_refused_by_what_its_header_declares(tmp_path: Path, shape: str) -> None:
    path = zipped(tmp_path / "a.npz", x=header(shape))
    with pytest.raises(DataError, match=r"data.train: array `x` of .* takes .* in memory") as caught:
        array(path)
    assert "8 MiB" in caught.value.possible
    assert "limits.memory" in caught.value.action


@pytest.mark.usefixtures("little_memory")
def test_zeros_that_are_packed_a_thousand_times_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, x=np.zeros((9, MIB), np.uint8))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(DataError, match="takes 9 MiB or more in memory"):
        array(path)


@pytest.mark.usefixtures("little_memory")
def test_an_array_that_fits_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.ones((7, MIB), np.uint8))
    assert int(array(tmp_path / "a.npz").sum()) == 7 * MIB


@pytest.mark.parametrize("kind", ["S9000000", "U3000000"], ids=["bytes", "text"])
@pytest.mark.usefixtures("little_memory")
def test_wide_texts_count(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match="in memory"):
        array(zipped(tmp_path / "a.npz", x=header("(1,)", f"|{kind}" if kind[0] == "S" else f"<{kind}")))


def test_a_header_of_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    long = b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30) + b" " * (4 * MIB)
    with pytest.raises(ValueError, match="header"):
        array(zipped(tmp_path / "a.npz", x=long))


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_compressions_that_numpy_does_not_write_are_refused(tmp_path: Path, compression: int) -> None:
    with pytest.raises(ValueError, match="numpy does not write"):
        array(zipped(tmp_path / "a.npz", compression, x=header("(1,)") + bytes(4)))


def test_a_member_that_is_damaged_or_nested_is_no_traceback(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.arange(100_000))
    content = bytearray(buffer.getvalue())
    content[2000:4000] = bytes(2000)
    (tmp_path / "a.npz").write_bytes(content)
    for path in (tmp_path / "a.npz", zipped(tmp_path / "b.npz", x=header("(" * 3000))):
        with pytest.raises((ValueError, zipfile.BadZipFile)):
            array(path)


def test_one_array_with_the_name_of_many_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(header(f"({1 << 50},)"))
    with pytest.raises(ValueError, match=r"not an \.npz"):
        array(tmp_path / "a.npz")
