"""How far a pass over samples is: lines in a log, one line that moves on a terminal, nothing for what is quick."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from drivetrain.tracking.live import time_left


def run_pass(monkeypatch: pytest.MonkeyPatch, seconds: float, terminal: bool, batches: int = 10) -> str:
    """What is told of batches of 100 samples that take so long each."""
    now = [0.0]
    monkeypatch.setattr(time_left, "time", SimpleNamespace(monotonic=lambda: now[0]))
    file = io.StringIO()
    file.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setenv("TERM", "xterm")

    def work() -> object:
        for _ in range(batches):
            now[0] += seconds
            yield range(100), {}

    assert len(list(time_left.report_progress(work(), 100 * batches, "evaluate"))) == batches  # type: ignore[arg-type]
    return file.getvalue()


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run_pass(monkeypatch, 3.0, terminal=False).splitlines()
    assert lines == [
        "evaluate: 200 of 1,000 samples  0:24 left",
        "evaluate: 400 of 1,000 samples  0:18 left",
        "evaluate: 600 of 1,000 samples  0:12 left",
        "evaluate: 800 of 1,000 samples  0:06 left",
    ]


def test_on_a_terminal_one_line_moves_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run_pass(monkeypatch, 1.0, terminal=True)
    assert "\n" not in text
    assert text.startswith("\revaluate: 100 of 1,000 samples  0:09 left")
    assert text.endswith(" \r")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_short_pass_shows_no_progress(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    assert run_pass(monkeypatch, 0.01, terminal) == ""
