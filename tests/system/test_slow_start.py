"""A line about what is going on if it takes longer than usual."""

from __future__ import annotations

import time

import pytest

from drivetrain.system.console import report_if_slow


def test_only_what_takes_long_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """After `run starts` a busy machine was silent for a minute."""
    with report_if_slow("reading the data", seconds=0.05):
        end = time.monotonic() + 10
        while not (output := capsys.readouterr().out) and time.monotonic() < end:
            time.sleep(0.01)
    assert output == "reading the data ...\n"
    with report_if_slow("importing torch", seconds=60):
        pass
    assert capsys.readouterr().out == ""
