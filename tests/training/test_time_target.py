"""The share of `train.within` that is used: by the clock of all commands, or by the number of epochs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job.train import Train
from drivetrain.training.lockstep import Lockstep, RankStatus
from drivetrain.training.optimizer import build, build_rates
from drivetrain.training.time_target import COMMAND_BEGAN, ENDING_SECONDS, Counters, TimeTarget
from drivetrain.training.user_parts import UserParts
from tests import tiny
from tests.messages import says


@dataclass
class Clock:
    """A clock that tests set."""

    now: float = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.delenv(COMMAND_BEGAN, raising=False)
    return clock


def job(within: str = "100s", sections: str = "baselines: off", train: str = "") -> Job:
    return tiny.job(f"within: {within}{train}", epochs=Train.model_fields["epochs"].default, sections=sections)


def test_the_share_is_that_of_the_time_between_the_first_step_and_the_end(clock: Clock) -> None:
    target = TimeTarget(job(), 1000.0, 4, 2)
    clock.now += 13
    target.begin()
    assert target.measure_share(0, 0.0) == 0
    # Of 100 s, 13 have passed and 7 are for the end: 80 s to train.
    clock.now += 40
    assert target.measure_share(0, 0.4) == pytest.approx(0.5)
    # An evaluation of 10 s, and a test of half as many samples, leave 65 s.
    target.add_evaluation(10.0)
    target.add_evaluation(2.0)
    assert target.measure_share(0, 0.4) == pytest.approx(40 / 65)
    clock.now += 26
    assert target.measure_share(0, 0.4) == 1


def test_an_evaluation_that_was_not_timed_is_assumed_by_the_fastest_step(clock: Clock) -> None:
    target = TimeTarget(job(), 1000.0, 30, 0)
    target.begin()
    clock.now += 9
    target.measure_share(1, 0.1)
    assert target.seconds_left() == pytest.approx(100 - 7 - 9 - 25)  # at most a quarter of the time
    clock.now += 0.5
    target.measure_share(2, 0.2)
    assert target.seconds_left() == pytest.approx(100 - 7 - 9.5 - 30 / 3 * 0.5)


@pytest.mark.parametrize(("start", "ending"), [(6, 7), (20, 10), (60, 14)])
def test_a_slow_start_keeps_up_to_twice_the_time_for_the_end(clock: Clock, start: int, ending: int) -> None:
    target = TimeTarget(job("200s"), 1000.0, 1, 0)
    clock.now += start
    target.begin()
    assert target.seconds_left() == 200 - start - ending


def test_a_hundred_epochs_end_a_training_of_few_samples(clock: Clock) -> None:
    target = TimeTarget(job("24h"), 1000.0, 1, 0)
    target.begin()
    clock.now += 1
    assert target.measure_share(500, 50.0) == 0.5
    assert target.measure_share(1000, 100.0) == 1


@pytest.mark.parametrize(("within", "reserved"), [("20s", 2), ("60s", 6), ("200s", 10), ("10m", 30), ("10h", 60)])
def test_simple_models_have_a_part_of_the_time(clock: Clock, within: str, reserved: int) -> None:
    without_models, with_models = (
        TimeTarget(job(within, f"baselines: {value}"), 1000.0, 1, 0) for value in ("off", "auto")
    )
    assert without_models.seconds - without_models.seconds_left() == ENDING_SECONDS
    assert without_models.seconds_left() - with_models.seconds_left() == pytest.approx(reserved)


def test_a_time_without_room_for_a_training_is_refused(clock: Clock) -> None:
    target = TimeTarget(job("20s"), 1000.0, 1, 0)
    clock.now += 12
    with pytest.raises(SpecError) as error:
        target.begin()
    (problem,) = error.value.problems
    assert problem.key == "train.within"
    assert says(problem.given, "first-step-begins-after", 12, 7)
    enough = TimeTarget(job(problem.possible.split()[0]), 1000.0, 1, 0)
    enough.begin()


def test_the_time_between_two_commands_does_not_count(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND_BEGAN, "990.0")
    first = TimeTarget(job(), 1000.0, 1, 0)
    clock.now += 5
    first.begin()
    clock.now += 20
    state = first.state(0.25)
    assert first.read_clock() == 35
    # A second trainer of the same command, or a rollback.
    clock.now += 5
    restarted = TimeTarget(job(), clock.now, 1, 0)
    assert restarted.load(state) == 0.25
    restarted.begin()
    assert restarted.read_clock() == 40
    assert restarted.measure_share(0, 0.0) == pytest.approx(20 / (20 + 100 - 40 - 10))
    # Another command, an hour later.
    clock.now += 3600
    monkeypatch.setenv(COMMAND_BEGAN, str(clock.now - 3))
    resumed = TimeTarget(job(), clock.now, 1, 0)
    resumed.load(state)
    resumed.begin()
    assert resumed.read_clock() == 38
    assert resumed.measure_share(0, 0.0) == pytest.approx(20 / (20 + 100 - 38 - 9))
    # A run that extends this one has more time, so its share is another one.
    assert TimeTarget(job("200s"), clock.now, 1, 0).load(state) == 0


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "linear"])
def test_the_schedule_follows_the_share_and_ends_near_zero(schedule: str) -> None:
    spec = job(train=f", schedule: {schedule}")
    optimizer = build(spec, torch.nn.Linear(2, 2))
    rates = build_rates(spec.train, optimizer, UserParts(), 50, lambda kind, text: None)
    counters = Counters(step=7)
    values = [rates.set(counters, 1.0, share / 200) for share in range(201)]
    peak = max(values)
    assert peak == pytest.approx(spec.train.optimizer.lr, rel=0.01)
    assert values[-1] < 0.001 * peak
    top = values.index(peak)
    assert values[top:] == sorted(values[top:], reverse=True)
    assert rates.set(counters, 1.0, 1.2) == values[-1]


def test_all_processes_take_the_share_of_the_first_one() -> None:
    lockstep = Lockstep()
    lockstep.measure_time_share = lambda: 0.4
    assert lockstep.make_status() == (0, 0.4, 0)
    assert lockstep.agree_on_error([RankStatus(0, 0.3), RankStatus(0, 0.4)]) is None
    assert lockstep.time_share == 0.3
