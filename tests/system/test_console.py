"""Lines on a terminal and elsewhere."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.errors import StorageError
from drivetrain.system import console
from drivetrain.system.console import GuardedStream
from tests.messages import begins_with, saying
from tests.paths import ROOT


def test_a_terminal_does_not_break_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At its edge it breaks a long line anywhere; without a terminal lines stay whole."""
    line = "data: 7 classes: leak 29%, vibration 21%, overheating 16%, blockage 12%"
    monkeypatch.setenv("COLUMNS", "40")
    console.say(line)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.say(line)
    console.say("  short")
    assert capsys.readouterr().out.splitlines() == [
        line,
        "data: 7 classes: leak 29%, vibration",
        "  21%, overheating 16%, blockage 12%",
        "  short",
    ]


class FailingStream(io.StringIO):
    """A stream that fails while `error` is set."""

    error: Exception | None = None

    def write(self, text: str) -> int:
        if self.error:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device"), OSError(5, "Input/output error")],
    ids=str,
)
def test_what_cannot_be_written_is_dropped(error: Exception) -> None:
    """And with free space lines appear again."""
    inner = FailingStream()
    stream = GuardedStream(inner, needed=False)
    print("one", file=stream)
    inner.error = error
    print("two", file=stream, flush=True)
    stream.writelines(["two"])
    inner.error = None
    print("three", file=stream, flush=True)
    assert inner.getvalue() == "one\nthree\n"
    inner.close()
    print("four", file=stream, flush=True)


def test_output_that_is_the_result_is_an_error() -> None:
    inner = FailingStream()
    stream = GuardedStream(inner, needed=True)
    inner.error = OSError(28, "No space left on device")
    with pytest.raises(StorageError, check=saying("standard-output-written-space-left")):
        print("rows", file=stream)
    with pytest.raises(UnicodeEncodeError):
        GuardedStream(io.TextIOWrapper(io.BytesIO(), "ascii"), needed=False).write("\xe9")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", [("plan",), ("validate", "--schema")], ids="-".join)
def test_commands_whose_output_is_lost(command: tuple[str, ...]) -> None:
    """A full disk is an error; a reader that has ended, as `head` does, is none; nor is a lost stderr."""
    arguments = [sys.executable, "-m", "drivetrain", *command]
    with open("/dev/full", "wb") as full_disk:
        done = subprocess.run(arguments, cwd=ROOT, stdout=full_disk, stderr=subprocess.PIPE, text=True, check=False)
        assert (
            subprocess.run(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=full_disk, check=False).returncode
            == 0
        )
    assert done.returncode == StorageError.exit_code
    assert begins_with(done.stderr, "standard-output-written-space")
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        piped = subprocess.run(arguments, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (piped.returncode, piped.stderr) == (0, "")
