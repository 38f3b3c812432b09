"""Files of a run folder are opened beneath it: through no link, and only if they are regular files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.errors import CheckpointError, StorageError
from drivetrain.system import file_lock
from drivetrain.system.files import write_text
from drivetrain.system.run_files import JsonLinesTail, RunFiles, refuse_links
from tests.messages import saying

READERS: dict[str, Callable[[RunFiles, str], object]] = {
    "text": lambda files, name: files.read_text(name),
    "bytes": lambda files, name: files.read_bytes(name),
    "append": lambda files, name: files.append(name, "x"),
    "write": lambda files, name: files.open(name, "w"),
    "handle": lambda files, name: files.open_handle(name, os.O_RDWR | os.O_CREAT),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text('{"key": 1}')
    run = tmp_path / "runs" / "digits-001"
    (run / "model").mkdir(parents=True)
    (run / "state.json").write_text('{"status": "done"}')
    (run / "model" / "config.json").write_text("{}")
    return run


def make_link(run: Path, kind: str) -> str:
    """Put something in place that leads out of the run folder; returns its name."""
    if kind == "link":
        (run / "events.jsonl").symlink_to(run.parent.parent / "secret")
        return "events.jsonl"
    if kind == "dangling":
        (run / "events.jsonl").symlink_to(run.parent.parent / "new")
        return "events.jsonl"
    if kind == "folder":
        (run / "tracker").symlink_to(run.parent.parent)
        return "tracker/secret"
    if kind == "pipe":
        os.mkfifo(run / "events.jsonl")
        return "events.jsonl"
    if kind == "above":
        return "../../secret"
    if kind == "absolute":
        return str(run.parent.parent / "secret")
    other = run.with_name("linked-001")
    run.rename(other)
    run.symlink_to(other)
    return "state.json"


KINDS = ["link", "dangling", "folder", "pipe", "above", "absolute", "run"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", READERS)
def test_nothing_outside_is_opened(run: Path, kind: str, how: str) -> None:
    name = make_link(run, kind)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which of them depends on what stands there
        READERS[how](RunFiles(run), name)
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENXIO)
    assert (run.parent.parent / "secret").read_text() == '{"key": 1}'
    assert not (run.parent.parent / "new").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_tolerant_readers_take_it_for_missing(run: Path, kind: str) -> None:
    name = make_link(run, kind)
    files = RunFiles(run)
    assert files.read_json(name) is None
    assert files.read_object(name) == {}
    assert list(files.read_rows(name)) == []
    assert not files.is_file(name)
    assert files.read_modified(name) is None


def test_a_link_is_replaced_by_what_is_written(run: Path, tmp_path: Path) -> None:
    make_link(run, "link")
    RunFiles(run).write_text("events.jsonl", "new")
    assert (run / "events.jsonl").read_text() == "new"
    assert not (run / "events.jsonl").is_symlink()
    assert (tmp_path / "secret").read_text() == '{"key": 1}'


@pytest.mark.parametrize(
    "write",
    [RunFiles.write_text, lambda files, name, text: write_text(files.path / name, text)],
    ids=["run files", "files"],
)
def test_a_link_in_place_of_the_unfinished_file_is_not_followed(
    run: Path, tmp_path: Path, write: Callable[[RunFiles, str, str], None]
) -> None:
    (run / f".state.json.{os.getpid()}").symlink_to(tmp_path / "secret")
    write(RunFiles(run), "state.json", "new")
    assert (run / "state.json").read_text() == "new"
    assert (tmp_path / "secret").read_text() == '{"key": 1}'


def test_a_folder_below_is_made_beneath(run: Path, tmp_path: Path) -> None:
    RunFiles(run, "tracker/one").make_folder()
    RunFiles(run, "tracker/one").append("sent.jsonl", "{}\n")
    assert (run / "tracker/one/sent.jsonl").read_text() == "{}\n"
    (run / "other").symlink_to(tmp_path)
    with pytest.raises(StorageError):
        RunFiles(run, "other/one").make_folder()
    assert not (tmp_path / "one").exists()


def test_a_link_is_no_lock(run: Path, tmp_path: Path) -> None:
    (run / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="symbolic links"):
        file_lock.acquire(run / ".lock", 0.0)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe", "run"])
def test_a_run_folder_with_a_link_is_refused(run: Path, kind: str) -> None:
    refuse_links(run)
    make_link(run, kind)
    with pytest.raises(CheckpointError, check=saying("could-lead-run-folder")) as caught:
        refuse_links(run)
    assert caught.value.possible
    assert caught.value.action


def test_a_link_deep_inside_is_refused(run: Path) -> None:
    (run / "model" / "weights").symlink_to("config.json")
    with pytest.raises(CheckpointError, check=saying("is-symbolic-link-3", "model/weights")):
        refuse_links(run)


def test_a_file_with_a_hole_does_not_take_all_memory(run: Path) -> None:
    """A few bytes on disk that say they are a terabyte: code in a container can leave such a file for the host."""
    for name in ("report.html", "metrics.jsonl"):
        with (run / name).open("wb") as file:
            file.write(b'{"step": 1}\n')
            file.truncate(1 << 40)
    files = RunFiles(run)
    for read in (files.read_bytes, files.read_text):
        with pytest.raises(OSError, match="File too large"):
            read("report.html")
    assert list(files.read_rows("metrics.jsonl")) == [{"step": 1}]
    assert JsonLinesTail(files, "metrics.jsonl").read() == ([{"step": 1}], False)
