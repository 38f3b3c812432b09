"""A process of ours ends at once, and still does all that Python's own end does."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from drivetrain.system import interpreter
from tests.paths import ROOT


def run_program(body: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys\nfrom drivetrain.system import interpreter\n{body}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_the_exit_code_and_buffered_output_arrive() -> None:
    done = run_program("print('out', end='')\nprint('err', end='', file=sys.stderr)\ninterpreter.exit_process(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out", "err")


def test_exit_handlers_run() -> None:
    done = run_program("import atexit\natexit.register(print, 'handled')\ninterpreter.exit_process(0)")
    assert done.stdout == "handled\n"


def test_temporary_folders_are_removed(tmp_path: Path) -> None:
    body = f"import tempfile\nkept = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})\ninterpreter.exit_process(0)"
    assert run_program(body).returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("mode", "content"), [("w", "'a line'"), ("wb", "b'a line'")])
def test_a_file_that_nobody_closed_is_complete(tmp_path: Path, mode: str, content: str) -> None:
    """As a log that a job's own code keeps open."""
    path = tmp_path / "log"
    body = f"kept = open({str(path)!r}, {mode!r})\nkept.write({content})\ninterpreter.exit_process(0)"
    assert run_program(body).returncode == 0
    assert path.read_text() == "a line"


def test_threads_end_first(tmp_path: Path) -> None:
    """A checkpoint that is written in the background is complete when the process has ended."""
    path = tmp_path / "written"
    thread = f"threading.Thread(target=lambda: (time.sleep(0.3), open({str(path)!r}, 'w').write('all')))"
    assert run_program(f"import threading, time\n{thread}.start()\ninterpreter.exit_process(0)").returncode == 0
    assert path.read_text() == "all"


def test_a_pool_that_nobody_closed_does_not_block() -> None:
    pool = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\npool.submit(int)"
    assert run_program(f"{pool}\ninterpreter.exit_process(3)").returncode == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        assert ended_into(full) == interpreter.FLUSH_FAILED_EXIT_CODE


def ended_into(file: IO[str]) -> int:
    code = "from drivetrain.system import interpreter\nprint('lost')\ninterpreter.exit_process(0)"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, stdout=file, env=buffered, check=False, timeout=60).returncode


def test_nothing_is_torn_down() -> None:
    """The destructor of an object that lives as long as the process is what takes the time."""
    body = "class Kept:\n    def __del__(self): print('torn down')\nkept = Kept()\n"
    assert run_program(f"{body}interpreter.exit_process(0)").stdout == ""
    assert run_program(f"{body}sys.exit(0)").stdout == "torn down\n"


@pytest.mark.parametrize("collects", [True, False])
def test_collection_is_as_before_after_the_imports(collects: bool) -> None:
    (gc.enable if collects else gc.disable)()
    try:
        with interpreter.freeze_imports():
            assert not gc.isenabled()
        assert gc.isenabled() is collects
    finally:
        gc.enable()
        gc.unfreeze()
