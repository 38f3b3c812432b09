"""Archives of arrays made to do harm: members are read where they lie, and nothing of them runs."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from drivetrain.errors import DataError
from drivetrain.tasks.image import npz_images
from drivetrain.tasks.image.image_targets import LabelForm
from tests.faults.malicious_files import MOST, Calls, Watcher, peak, watcher

__all__ = ["watcher"]


def array(shape: tuple[int, ...], kind: str = "|u1", data: bytes = b"") -> bytes:
    """An .npy whose header says what its data need not hold."""
    buffer = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + data


def objects(canary: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Calls(os.system, f"touch {canary}")], dtype=object), allow_pickle=True)
    return buffer.getvalue()


ARCHIVES: dict[str, Callable[[Path], dict[str, bytes]]] = {
    "objects": lambda canary: {"images.npy": objects(canary), "labels.npy": array((1,), data=b"\0")},
    "an array of a petabyte": lambda canary: {
        "images.npy": array((2**50, 8, 8)),
        "labels.npy": array((1,), data=b"\0"),
    },
    "an array of no end": lambda canary: {"images.npy": array((2**62, 2**62)), "labels.npy": array((1,), data=b"\0")},
    "a header that is code": lambda canary: {
        "images.npy": array((1, 8, 8), data=b"\0" * 64).replace(b"'|u1'", b"exit() "),
        "labels.npy": array((1,), data=b"\0"),
    },
    "names that lead outside": lambda canary: {"../outside.npy": array((1,), data=b"\0"), "/tmp/outside.npy": b""},
    "no arrays": lambda canary: {"images": b"", "labels": b"x"},
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives_of_arrays(tmp_path: Path, watcher: Watcher, case: str) -> None:
    """Nothing is ever unpacked: members are read where they lie."""
    with zipfile.ZipFile(tmp_path / "images.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in ARCHIVES[case](tmp_path / "canary").items():
            file.writestr(name, content)
    before = peak()
    with watcher(tmp_path), pytest.raises(DataError) as caught:
        npz_images.read(tmp_path / "images.npz", "data.train", LabelForm("class", ("label",)))
    assert "data.train" in str(caught.value)
    assert peak() - before < MOST
    assert [path.name for path in tmp_path.iterdir()] == ["images.npz"]
