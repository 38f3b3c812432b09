"""Phases add up, and inner ones are not counted twice."""

from __future__ import annotations

import time

import pytest

from drivetrain.training.phase_timer import PhaseTimer


def test_phases_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = PhaseTimer()
    with clock.phase("train"):
        now[0] += 3
        for item in clock.time_waiting("input", iter("ab")):
            now[0] += 2 if item == "a" else 1
        with clock.phase("checkpoint"):
            now[0] += 5
        now[0] += 1
    assert clock.phases == {"train": 7.0, "input": 0.0, "checkpoint": 5.0}
    assert clock.seconds == 12.0


def test_a_phase_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = PhaseTimer()

    def fail() -> None:
        with clock.phase("data"):
            now[0] += 4
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert clock.phases == {"data": 4.0}
    assert clock.open_phases == []
