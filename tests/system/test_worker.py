"""Workers that end at any moment: who asks is told so, and waits for nobody."""

from __future__ import annotations

import sys
import threading
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
        assert worker.read_answer(60) == "ready"
        assert worker.ask("x" * 1_000_000) == 1_000_000
        with pytest.raises(ChildEnded, match="SIGABRT"):
            worker.ask("half")
        with pytest.raises(ChildEnded):
            worker.ask("more")
    finally:
        worker.close()
    assert "not an answer" in (tmp_path / "log").read_text()


def test_a_signal_while_a_time_limit_starts_does_not_delay_our_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can cancel that limit any more, and the interpreter waits for threads that are not daemons."""
    start = threading.Timer.start
    timers = list[threading.Timer]()

    def start_and_be_interrupted(timer: threading.Timer) -> None:
        start(timer)
        timers.append(timer)
        raise KeyboardInterrupt

    worker = Worker([sys.executable, "-c", PROGRAM], build_environment({}), tmp_path / "log")
    monkeypatch.setattr(threading.Timer, "start", start_and_be_interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            worker.read_answer(60)
        assert [timer.daemon for timer in timers] == [True]
    finally:
        timers[0].cancel()
        worker.close()
