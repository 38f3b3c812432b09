"""Lines on a terminal and elsewhere."""

from __future__ import annotations

import sys

import pytest

from runtime.system import console


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
