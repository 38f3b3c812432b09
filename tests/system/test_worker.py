"""Workers that end at any moment: who asks is told so, and waits for nobody."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from drivetrain.system.child_process import ChildEnded, Worker, build_environment

PROGRAM = """
import os
from drivetrain.system.child_process import open_answers, read_requests

answer = open_answers()
answer("ready")
for request in read_requests():
    if request == "half":
        os.write(PIPE, b'{"seconds": ')
        os.abort()
    print("not an answer")
    answer(len(request))
""".replace("PIPE", "answer.__closure__[0].cell_contents.fileno()")


def test_answers_are_apart_from_what_is_printed_and_may_be_cut_off(tmp_path: Path) -> None:
    worker = Worker([sys.executable, "-c", PROGRAM], build_environment({}), tmp_path / "log")
    try:
        assert worker.read_answer() == "ready"
        assert worker.ask("x" * 1_000_000) == 1_000_000
        with pytest.raises(ChildEnded, match="SIGABRT"):
            worker.ask("half")
        with pytest.raises(ChildEnded):
            worker.ask("more")
    finally:
        worker.close()
    assert "not an answer" in (tmp_path / "log").read_text()
