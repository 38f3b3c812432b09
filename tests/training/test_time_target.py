"""The length of a run follows the clock, and its schedule follows the length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from drivetrain.training.time_target import MAX_EPOCHS, Counters, TimeTarget, find_scheduled_step

TOTAL = 1000


def test_without_changes_the_schedule_is_that_of_the_step() -> None:
    assert [find_scheduled_step(step, TOTAL, []) for step in (0, 1, 999)] == [0, 1, 999]


@pytest.mark.parametrize("seed", range(100))
def test_the_schedule_rises_and_ends_with_the_run(seed: int) -> None:
    """Whatever the changes: from step to step it moves on, and never jumps."""
    generator = np.random.default_rng(seed)
    changes: list[tuple[int, int]] = []
    step_of_change = 0
    for _ in range(int(generator.integers(0, 6))):
        steps, steps_left = int(generator.integers(1, 300)), int(generator.integers(1, 2000))
        if changes and step_of_change + steps >= changes[-1][1]:
            break
        if not changes and step_of_change + steps >= TOTAL:
            break
        step_of_change += steps
        changes.append((step_of_change, step_of_change + steps_left))
    end = changes[-1][1] if changes else TOTAL
    positions = [find_scheduled_step(step, TOTAL, changes) for step in range(end + 1)]
    assert positions[0] == 0
    assert positions[-1] == pytest.approx(TOTAL)
    assert all(later > earlier for earlier, later in itertools.pairwise(positions))
    for step, total in changes:
        position = positions[step]
        assert find_scheduled_step(step, TOTAL, [c for c in changes if c[0] < step]) == pytest.approx(position), total


def simulate(seconds_per_step: float, seconds: float, planned: int, per_epoch: int = 50) -> tuple[float, Counters]:
    """The seconds of a run whose steps take so long, and its counters at the end."""
    counters, now, target = Counters(), 4.0, TimeTarget(seconds)
    while True:
        changes = counters.length_changes
        total_steps = changes[-1][1] if changes else planned
        if counters.step >= total_steps:
            return now, counters
        counters.step += (steps := min(per_epoch, total_steps - counters.step))
        now += steps * seconds_per_step
        target.change_length(counters, now, total_steps, per_epoch)


@pytest.mark.parametrize("factor", [0.2, 0.7, 1.0, 1.3, 3.0])
def test_a_run_ends_in_its_time_however_long_its_steps_take(factor: float) -> None:
    planned = int(0.95 * (300 - 4) / 0.1)
    ended, counters = simulate(0.1 * factor, 300, planned)
    if factor > 0.5:
        assert 0.88 * 300 <= ended <= 300
    else:
        assert counters.step == MAX_EPOCHS * 50
    assert len(counters.length_changes) <= 5


@pytest.mark.parametrize("factor", [0.1, 0.6, 1.0, 2.5])
def test_an_epoch_longer_than_the_time_ends_in_it(factor: float) -> None:
    """A probe beside other work took ten times as long: 38 of 60 s were used, and nothing changed before the epoch's end."""
    seconds, per_epoch, planned, now = 60.0, 5000, 560, 4.0
    counters, target = Counters(), TimeTarget(seconds, evaluation_seconds=2.0)
    while counters.step < (counters.length_changes[-1][1] if counters.length_changes else planned):
        counters.step += 1
        now += 0.1 * factor
        total_steps = counters.length_changes[-1][1] if counters.length_changes else planned
        target.change_within_epoch(counters, now, total_steps, per_epoch)
    assert 0.85 * seconds <= now <= seconds
    assert len(counters.length_changes) <= 5


def test_a_checkpoint_has_the_changes() -> None:
    counters = Counters()
    counters.restore({"step": 7, "length_changes": [[5, 90]]})
    assert counters.length_changes == [(5, 90)]
    counters.restore({"step": 7})
    assert counters.length_changes == []


def test_after_a_rollback_the_speed_is_measured_anew() -> None:
    """Steps that ran before it gave a negative time of a step, and ended the run."""
    counters, target = Counters(), TimeTarget(300.0)
    for epoch in range(1, 9):
        counters.step = 50 * epoch
        target.change_length(counters, 4.0 + 5 * epoch, 2800, 50)
    changes = list(counters.length_changes)
    target.restart()
    for epoch in range(1, 5):
        counters.step = 50 * epoch
        assert target.change_length(counters, 44.0 + 5 * epoch, 2400, 50) is None
    assert counters.length_changes == changes
