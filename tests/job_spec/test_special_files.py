"""A named pipe, a socket or a device where a user names a file: reading it could wait for ever, so it is refused."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from drivetrain.cli.main import main
from drivetrain.data import load_data
from drivetrain.errors import Failure
from drivetrain.job_spec import load_job
from drivetrain.plan import plan
from drivetrain.pretrained import folder as pretrained_folder
from drivetrain.system import files
from tests.axes import each_once
from tests.messages import says

TABLE_JOB = """name: t
task: tabular-classification
data: {train: pipe.csv, target: y}
"""
TEXT_JOB = """name: t
task: text-classification
data: {train: d.csv, text: a, labels: y}
model: {source: transformers, name: ./bert}
"""


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """Fail where a read would wait for ever."""

    def stop(*_: object) -> NoReturn:
        raise TimeoutError("it waits for somebody who writes into the pipe")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # the whole path may be too long


MAKERS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": _make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize(("kind", "command"), each_once(MAKERS, [["validate"], ["plan"], ["train", "--new"]]))
def test_a_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    MAKERS[kind](Path("job.yaml"))
    assert main([*command, "job.yaml"]) == 2
    error = capsys.readouterr().err
    assert says(error, "not-a-file", "job.yaml", kind)
    assert says(error, "write-into-a-file")


@pytest.mark.parametrize("kind", MAKERS)
def test_data_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(TABLE_JOB)
    MAKERS[kind](Path("pipe.csv"))
    assert main(["validate", "job.yaml"]) == 3
    error = capsys.readouterr().err
    assert says(error, "data-not-a-file", "pipe.csv", kind)
    assert says(error, "write-into-a-file")


def _load_network(path: Path) -> None:
    path.with_name("d.csv").write_text("a,y\nb,c\n")
    path.with_name("t.yaml").write_text(TEXT_JOB)
    path.with_name("bert").mkdir()
    path.rename(path.with_name("bert") / "config.json")
    pretrained_folder.locate(load_job.load(path.with_name("t.yaml")), "./bert")


@pytest.mark.parametrize(
    "read",
    [plan.load, lambda path: load_data.load_new([path], {"kind": "table"}, {}, labelled=False), _load_network],
    ids=["a plan", "new data", "a file of a pretrained network"],
)
def test_other_files(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Failure) as caught:
        read(tmp_path / "pipe")
    assert says(str(caught.value), "is-a-pipe")


def test_files_of_strangers(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert files.read_json(tmp_path / "pipe") is None
    with pytest.raises(OSError, match="named pipe"):
        files.hash_file(tmp_path / "pipe")
