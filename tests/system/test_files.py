"""JSON from anywhere: what is nested deeper than Python can follow is as damaged as what is cut off."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.data.formats import jsonl_file
from drivetrain.errors import DataError, SpecError
from drivetrain.hardware import facts
from drivetrain.plan import plan
from drivetrain.system import files
from drivetrain.system.run_files import RunFiles
from drivetrain.training.checkpoints import manifest
from tests.messages import saying, says, says_only

DEEP = "[" * 200_000 + "]" * 200_000


@pytest.fixture
def deep_json(tmp_path: Path) -> Path:
    path = tmp_path / "deep.json"
    path.write_text(DEEP)
    with pytest.raises(RecursionError):
        json.loads(DEEP)
    return path


def test_a_file_is_not_whole(deep_json: Path) -> None:
    assert files.read_json(deep_json) is None


def test_a_row_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"a": 1}}\n{DEEP}\n{{"a": 2}}\n')
    assert list(RunFiles(tmp_path).read_rows("a.jsonl")) == [{"a": 1}, {"a": 2}]
    assert files.parse_row(DEEP.encode()) is None


def test_a_manifest_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / manifest.MANIFEST).write_text(DEEP)
    assert says_only(manifest.verify(tmp_path), "is-missing-or-incomplete", manifest.MANIFEST)


@pytest.mark.parametrize("load", [plan.load, facts.read_hardware])
def test_a_file_that_was_named_is_refused(deep_json: Path, load: Callable[[Path], object]) -> None:
    with pytest.raises(SpecError, match="nested too deeply"):
        load(deep_json)


def test_a_line_of_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"a": 1}}\n{DEEP}\n')
    with pytest.raises(DataError, check=saying("line-nested-too-deeply", "a.jsonl", 2)):
        jsonl_file._check_lines(tmp_path / "a.jsonl", "data.train")


@pytest.mark.parametrize("mine", [True, False])
def test_a_folder_that_cannot_be_written(mine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is ours said that it belonged to the very user who called."""
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + (not mine))
    error = str(files.storage_error(tmp_path / "runs" / "a-001", OSError(errno.EACCES, "Permission denied")))
    if mine:
        assert says(error, "yours-closed-writing", tmp_path)
        assert f"do:       chmod u+rwx {tmp_path}" in error
    else:
        assert says(error, "belongs-uid-process-runs", tmp_path.stat().st_uid, os.getuid())


@pytest.mark.parametrize(
    ("number", "image", "action"),
    [
        (errno.EROFS, "", "mount it for writing, or choose another folder with --runs DIR"),
        (errno.EROFS, "cpu", "runs/, or a folder in it: a container writes there, and where --output is"),
        (errno.EIO, "", "replace the disk, or choose another folder with --runs DIR"),
        (errno.ENOSPC, "cpu", "free disk space"),
    ],
)
def test_only_a_full_disk_is_helped_by_space(
    monkeypatch: pytest.MonkeyPatch, number: int, image: str, action: str
) -> None:
    monkeypatch.delenv("DRIVETRAIN_IMAGE", raising=False)
    if image:
        monkeypatch.setenv("DRIVETRAIN_IMAGE", image)
    error = files.storage_error(Path("runs/a-001"), OSError(number, os.strerror(number)))
    assert (error.given, error.action) == (f"runs/a-001: {os.strerror(number)}", action)
