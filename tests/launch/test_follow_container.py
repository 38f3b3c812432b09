"""A container's log as it comes, and what its end means."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import Stopped
from drivetrain.launch import follow_container
from drivetrain.launch.project import PROJECT
from drivetrain.system.signals import HANDLED_SIGNALS
from tests.launch.restarted_engine import NAME, RestartedEngine, run_container
from tests.messages import saying, says
from tests.nvml_double import GIB

LOG = [
    b"plan for digits\n",
    b"run runs/digits-001 st",
    b"arts\n",
    b"run runs/x-009 starts\nreport runs/digits-001/report.html\n",
]


class Container:
    """What the engine's client gives, as far as it is asked."""

    name = "drivetrain-trainer-1"

    def __init__(self, code: int = 0, oom: bool = False) -> None:
        self.code = code
        self.attrs: dict[str, Any] = {"State": {"OOMKilled": oom}, "HostConfig": {"Memory": 4 << 30}}

    def logs(self, **how: bool) -> list[bytes]:
        return LOG

    def wait(self) -> dict[str, int]:
        return {"StatusCode": self.code}

    def reload(self) -> None:
        pass


@pytest.fixture(autouse=True)
def restore_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_closed_output_says_that_the_container_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make train-cpu | head` ended with code 0 and no word, and the container trained on."""
    reading, writing = os.pipe()
    os.close(reading)
    closed = os.fdopen(writing, "w")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        with pytest.raises(BrokenPipeError):
            follow_container.follow(Container())
    with contextlib.suppress(BrokenPipeError):
        closed.close()
    assert "drivetrain-trainer-1 goes on: `docker logs -f drivetrain-trainer-1`" in capsys.readouterr().err


def test_escapes_of_a_container_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Container, "logs", lambda self, **how: [b"loss 0.5\x1b[2J\x1b]0;owned\x07\n"])
    follow_container.follow(Container())
    out = capsys.readouterr().out
    assert out.startswith("loss 0.5")
    assert not {"\x1b", "\x07"} & set(out)


@pytest.mark.parametrize(
    ("code", "oom", "expected"),
    [
        (0, False, ""),
        (75, False, ""),
        (0, True, ""),  # the trainer was killed for memory, tried again, and got to its end
        (6, True, ""),  # or said itself what did not fit
        (137, True, "the container was killed because it reached its memory limit of 4.0 GiB"),
        (137, False, "the container was killed (exit 137, SIGKILL), but not because of its memory limit"),
    ],
)
def test_exit_code_of_a_container_is_explained(
    code: int, oom: bool, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow_container.follow(Container(code, oom)) == code
    error = capsys.readouterr().err
    assert error.startswith(expected)
    assert bool(error) == bool(expected)
    if expected:
        assert "\n  possible: " in error
        assert "\n  do:       " in error


@pytest.mark.parametrize(("limit", "expected"), [(50 << 20, "limits.memory=1g"), (4 << 30, "optimize.micro_batch=8")])
def test_where_the_libraries_alone_do_not_fit_no_smaller_batch_is_advised(limit: int, expected: str) -> None:
    text = follow_container.explain_end(137, {"State": {"OOMKilled": True}, "HostConfig": {"Memory": limit}})
    assert expected in text.partition("  do: ")[2]


TRAINER = """
import os, sys
from pathlib import Path
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.supervisor import supervisor as supervise
supervise.run_trainers = lambda *given, **named: 137
sys.exit(supervise.train(supervise.TrainRequest(SpecSource(Path(sys.argv[1]), ("train.epochs=1",)), Path(sys.argv[2]))))
"""


def test_a_killed_trainer_is_explained(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(PROJECT / "jobs" / "digits.yaml"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
    )
    assert done.returncode == 137, done.stderr
    assert says(done.stderr, "trainer-killed-exit-sigkill", 137)
    assert says(done.stderr, "run-same-command-again-resumes")


class EndedContainer:
    """A container that has ended, as the engine's client shows it."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.attrs = {"State": {"OOMKilled": False}, "HostConfig": {"Memory": GIB}}

    def logs(self, **_: object) -> list[bytes]:
        return [b"epoch 1\n"]

    def wait(self) -> dict[str, int]:
        return {"StatusCode": self.code}

    def reload(self) -> None:
        pass

    def kill(self, signal: str) -> None:
        raise AssertionError(signal)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_is_forwarded_under_its_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Ctrl-C was told as SIGTERM; a container that has just ended is no error."""
    import docker

    handlers: dict[int, Any] = {}
    sent: list[str] = []
    ended = EndedContainer(0)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    follow_container.follow(ended)

    def kill(signal: str) -> None:
        sent.append(signal)
        raise docker.errors.APIError("it is not running")

    monkeypatch.setattr(ended, "kill", kill)
    handlers[getattr(signal, name)](getattr(signal, name), None)
    assert sent == [name]


def test_an_engine_that_ends_slowly_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It answers while its containers save, but ends each log: the line came six times."""
    logs = iter(([b"1\n"], [b"1\n"], [b"1\n"], [b"1\n", b"2\n"], [b"1\n", b"2\n", b"3\n"]))

    def read_log(container: Any, since: int) -> Iterator[bytes]:
        lines = next(logs)
        yield from lines
        if lines[-1] != b"3\n":
            raise OSError

    monkeypatch.setattr(follow_container, "_read_log", read_log)
    assert list(follow_container.read_to_end(EndedContainer(0))) == [b"1\n", b"2\n", b"3\n"]
    assert [says(line, "connection-engine-lost-waiting", 60) for line in capsys.readouterr().err.splitlines()] == [
        True
    ] * 2


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize(
    ("code", "returns", "message"),
    [
        (0, True, None),  # it survived, with live-restore
        (75, True, None),  # it was stopped gracefully, and has said so itself
        (137, True, saying("engine-restarted-ended", NAME)),
        (255, True, saying("engine-restarted-ended", NAME)),
        (0, False, saying("engine-gone-may-have-ended", NAME)),
    ],
)
def test_the_engine_is_restarted_while_a_container_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    code: int,
    returns: bool,
    message: Callable[[BaseException], bool] | None,
    attached: bool,
) -> None:
    """Three tracebacks and exit code 1."""
    monkeypatch.setattr(follow_container, "RESTART_SECONDS", 30.0 if returns else 0.0)
    lines = [b"epoch 1/2\n", b"epoch 2/2\n"]
    engine = RestartedEngine(tmp_path / "s", lines, code, attached=attached, returns=returns)
    with run_container(engine) as container:
        if message:
            with pytest.raises(Stopped, check=message) as stopped:
                follow_container.follow(container)
            assert stopped.value.possible
            assert stopped.value.action
        else:
            assert follow_container.follow(container) == code
    output = capfd.readouterr()
    assert output.out.split() == (["epoch", "1/2", "epoch", "2/2"] if returns else ["epoch", "1/2"])
    assert len(output.err.splitlines()) == 1
