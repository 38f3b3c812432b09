"""A folder that somebody renames while it is used has its name again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from drivetrain.errors import StorageError
from drivetrain.system.named_folder import NamedFolder
from tests.messages import saying


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "a-001"
    path.mkdir(parents=True)
    (path / "job.yaml").write_text("name: a")
    return path


@pytest.mark.parametrize("name", ["b", "../archive/a-001"], ids=["beside", "elsewhere"])
def test_it_has_its_name_again(folder: Path, name: str) -> None:
    named = NamedFolder(folder)
    assert named.restore() == ""
    other = (folder.parent / name).resolve()
    other.parent.mkdir(exist_ok=True)
    folder.rename(other)
    assert named.restore() == str(other)
    assert (folder / "job.yaml").read_text() == "name: a"
    assert not other.exists()


def test_another_folder_has_its_name(folder: Path) -> None:
    """Such as that of a new run; nothing is written into it."""
    named = NamedFolder(folder)
    folder.rename(folder.with_name("b"))
    folder.mkdir()
    (folder / "job.yaml").write_text("name: new")
    with pytest.raises(StorageError, match=r"was moved to .*b while the run trains"):
        named.restore()
    assert (folder / "job.yaml").read_text() == "name: new"


def test_it_is_deleted(folder: Path) -> None:
    """Nobody can move it back."""
    named = NamedFolder(folder)
    (folder / "job.yaml").unlink()
    folder.rmdir()
    with pytest.raises(StorageError, check=saying("folder-was-deleted-while")):
        named.restore()


def test_it_is_deleted_on_another_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle of NFS is stale, whatever is asked of it."""

    def fail(handle: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    named = NamedFolder(folder)
    (folder / "job.yaml").unlink()
    folder.rmdir()
    monkeypatch.setattr(os, "fstat", fail)
    with pytest.raises(StorageError, check=saying("folder-was-deleted-while")):
        named.restore()
