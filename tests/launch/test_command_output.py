"""What a command in a container may write: its output, and nothing that lies next to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from drivetrain.errors import SpecError, StorageError
from drivetrain.launch import command_output
from drivetrain.launch.mounts import Mount
from tests.messages import saying

OUTPUTS = {
    "new": (["answers.csv"], ["answers.csv"]),
    "overwritten": (["old.csv"], ["old.csv"]),
    "below": (["jobs/new/answers.csv"], ["jobs/new/answers.csv"]),
    "next to it": (["model.onnx", "model.json"], ["model.onnx", "model.json"]),
    "a folder": (["bench"], ["bench/table.csv", "bench/deep/a"]),
    "a folder that exists": (["empty"], ["empty/table.csv"]),
    "outside": (["../elsewhere/answers.csv"], ["../elsewhere/answers.csv"]),
    "runs": (["runs/a/answers.csv"], ["runs/a/answers.csv"]),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with code that its host runs."""
    folder = tmp_path / "project"
    for name in ("Makefile", "old.csv", ".git/hooks/pre-commit", "runtime/code.py", "jobs/a.yaml", "../elsewhere/data"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    for name in ("runs", "empty"):
        (folder / name).mkdir()
    (folder / "link").symlink_to("/etc")
    monkeypatch.setattr(command_output, "PROJECT", folder)
    monkeypatch.setattr(command_output, "RUNS", folder / "runs")
    monkeypatch.chdir(folder)
    return folder


def read_files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write_inside(path: Path, mounts: Sequence[Mount]) -> None:
    """Write a file as code in the container does, if it can."""
    around = [mount for mount in mounts if path.is_relative_to(mount.target)]
    if around and (mount := max(around, key=lambda mount: len(mount.target.parts))).writable:
        place = mount.source / path.relative_to(mount.target)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("written")


@pytest.mark.parametrize(("paths", "written"), OUTPUTS.values(), ids=OUTPUTS)
def test_nothing_but_the_output_changes(project: Path, paths: list[str], written: list[str]) -> None:
    """Code in the container writes what it can: the files of the command, new names, and all that is there."""
    before = read_files(project.parent)
    mounts = [Mount(project, project), Mount(project / "runs", project / "runs", writable=True)]
    with command_output.open_output([Path(path) for path in paths], os.getuid(), mounts) as opened:
        assert len({mount.target for mount in opened}) == len(opened)
        for name in [*written, "GNUmakefile", "jobs/conftest.py", *(f"../{name}" for name in before)]:
            write_inside(Path(os.path.abspath(name)), opened)
    expected = {os.path.relpath(name, project.parent): "written" for name in written}
    assert read_files(project.parent) == before | expected


def test_a_link_and_an_untouched_name_are_not_moved(project: Path) -> None:
    with command_output.open_output([Path("old.csv")], os.getuid(), []) as mounts:
        (mounts[-1].source / "old.csv").unlink()
        (mounts[-1].source / "old.csv").symlink_to("/etc/passwd")
    with command_output.open_output([Path("old.csv")], os.getuid(), []):
        pass
    assert Path("old.csv").read_text() == "old.csv"
    assert not list(project.glob(".drivetrain-*"))


def test_what_lies_beside_the_output_in_a_mounted_folder_stays_visible(project: Path) -> None:
    """`fetch` writes safetensors beside a pickle, which it reads."""
    elsewhere = project.parent / "elsewhere"
    mounts = [Mount(project, project), Mount(elsewhere, elsewhere)]
    with command_output.open_output([elsewhere / "model.safetensors"], os.getuid(), mounts) as opened:
        assert Mount(elsewhere / "data", elsewhere / "data") in opened
        write_inside(elsewhere / "model.safetensors", opened)
    assert (elsewhere / "model.safetensors").read_text() == "written"


@pytest.mark.parametrize(
    ("path", "folder"), [(".", "."), ("..", ".."), ("~/answers.csv", "~"), ("/etc/answers.csv", "/etc")]
)
def test_a_folder_that_holds_more_is_refused(project: Path, path: str, folder: str) -> None:
    place = os.path.abspath(os.path.expanduser(folder))
    with (
        pytest.raises(SpecError, check=saying("container-would-have-to-write-to", place)),
        command_output.open_output([Path(path).expanduser()], os.getuid(), []),
    ):
        pass


def test_a_folder_of_somebody_else(project: Path) -> None:
    """Root got exit 7 from inside, without a word about whose folder it was."""
    with (
        pytest.raises(StorageError, check=saying("belongs-uid-root-container", project / "empty", os.getuid(), 54321)),
        command_output.open_output([Path("empty")], 54321, []),
    ):
        pass
