"""The calibration itself: real probes within their time, once, and nothing that goes wrong stops a training."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.hardware import calibration_file
from drivetrain.hardware.calibration import Calibration
from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.system import cpu_starvation
from drivetrain.tuning.calibration import calibrate
from drivetrain.tuning.calibration.comparisons import Comparison
from drivetrain.tuning.calibration.probe_process import Session
from tests import calibrations
from tests.messages import begins_with, get_message, says, says_each, says_only
from tests.paths import IMPORTS

COMMAND = [sys.executable, "-m", "drivetrain", "calibrate", "--json"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hardware]:
    """This machine with a cache of the tests, and calibrations switched on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(calibration_file.SWITCH_VARIABLE, "on")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(tmp_path_factory.mktemp("work"))
        patch.setenv("PYTHONPATH", IMPORTS)
        yield detect(Path("runs"))


@pytest.fixture(scope="module")
def two_runs(machine: Hardware) -> list[subprocess.CompletedProcess[str]]:
    """The command, twice at once on a machine that is not calibrated yet."""
    running = [subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    texts = [process.communicate(timeout=120) for process in running]
    return [subprocess.CompletedProcess([], p.returncode, *text) for p, text in zip(running, texts, strict=True)]


def test_real_probes_end_within_their_time(two_runs: list[subprocess.CompletedProcess[str]], machine: Hardware) -> None:
    assert [(run.returncode, run.stderr) for run in two_runs] == [(0, ""), (0, "")]
    calibration = json.loads(two_runs[0].stdout)
    assert calibration["key"] == calibration_file.compute_key(machine)
    assert calibration["probes"]
    for probe in calibration["probes"]:
        assert 0 < probe["low"] <= probe["ratio"] <= probe["high"]
    works = {probe["work"] for probe in calibration["probes"]} | {
        line.split(" ")[0].strip(":") for line in calibration["missing"]
    }
    assert {"linear", "convolution", "attention", "recurrent", "dropout"} <= works


def test_of_two_at_once_one_measures_and_both_have_the_same(two_runs: list[subprocess.CompletedProcess[str]]) -> None:
    assert json.loads(two_runs[0].stdout) == json.loads(two_runs[1].stdout)


def test_afterwards_nothing_is_measured(two_runs: list[subprocess.CompletedProcess[str]], machine: Hardware) -> None:
    messages = list[str]()
    stored_text = calibration_file.find_path(machine).read_text()
    calibrated_machine = calibrate.attach_or_measure(machine, "linear", messages.append, messages.append)
    assert messages == []
    assert json.dumps(calibrated_machine.to_json()["calibration"]) == json.dumps(json.loads(stored_text))


class Fake:
    """Instead of the process: a calibration at once, or none."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        machine: Hardware,
        code: int = 0,
        *,
        writes: bool = True,
        ends: bool = True,
    ) -> None:
        self.calls = 0
        text = json.dumps(calibrations.add_calibration(machine, calibrations.make_probes(1.5)).to_json()["calibration"])
        program = "import sys, pathlib, time\n"
        program += f"pathlib.Path(sys.argv[1], 'calibration.json').write_text({text!r})\n" * writes
        program += f"sys.exit({code})" if ends else "time.sleep(600)"

        def command(folder: Path, seconds: float, *arguments: str) -> list[str]:
            self.calls += 1
            return [sys.executable, "-c", program, str(folder)]

        monkeypatch.setattr(calibrate, "probe_command", command)


@pytest.fixture
def uncalibrated_machine(machine: Hardware, tmp_path: Path) -> Hardware:
    return replace(machine, storage=replace(machine.storage, cache=str(tmp_path / "cache"), cache_writable=True))


def first_use(machine: Hardware) -> tuple[Hardware, list[str], list[str]]:
    messages, events = list[str](), list[str]()
    return calibrate.attach_or_measure(machine, "linear", messages.append, events.append), messages, events


def test_the_first_use_says_what_it_does_and_keeps_it(
    uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(monkeypatch, uncalibrated_machine)
    calibrated_machine, messages, events = first_use(uncalibrated_machine)
    assert calibrated_machine.calibration is not None
    assert events == []
    assert says_only(messages[0], "calibrate-measuring-machine-once", 10)
    count = len(calibrations.make_probes(1.5))
    assert messages[1] == f"calibrate: {count} comparisons in 8 s; not measured: 1; `drivetrain calibrate` shows them"
    assert first_use(uncalibrated_machine) == (calibrated_machine, [], [])
    assert fake.calls == 1


def test_again_measures_again(uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch, uncalibrated_machine)
    for _ in range(2):
        assert not calibrate.load_or_measure(uncalibrated_machine, measure_again=True).was_stored
    assert fake.calls == 2
    assert calibrate.load_or_measure(uncalibrated_machine).was_stored


def test_a_damaged_file_is_an_event_and_is_replaced(
    uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fake(monkeypatch, uncalibrated_machine)
    file = calibration_file.find_path(uncalibrated_machine)
    file.parent.mkdir(parents=True)
    file.write_text("{")
    calibrated_machine, _, events = first_use(uncalibrated_machine)
    assert calibrated_machine.calibration is not None
    assert events[0].startswith(f"the calibration {file} cannot be read: ")
    assert calibration_file.read_calibration(uncalibrated_machine) == (calibrated_machine.calibration, None)


def test_a_folder_that_cannot_be_written_is_an_event(
    uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fake(monkeypatch, uncalibrated_machine)
    Path(uncalibrated_machine.storage.cache).write_text("a file in its place")
    outcome = calibrate.load_or_measure(uncalibrated_machine)
    assert outcome.calibration is not None
    assert begins_with(outcome.events[0], "calibration-could-kept-serves")


def test_a_read_only_cache_is_not_calibrated_by_itself(
    uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(monkeypatch, uncalibrated_machine)
    read_only_machine = replace(
        uncalibrated_machine, storage=replace(uncalibrated_machine.storage, cache_writable=False)
    )
    calibrated_machine, messages, events = first_use(read_only_machine)
    assert (calibrated_machine.calibration, events, fake.calls) == (None, [], 0)
    assert says_each(messages, [get_message("calibrate-skipped-writable-every", uncalibrated_machine.storage.cache)])


def test_a_process_that_dies_is_an_event(uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    Fake(monkeypatch, uncalibrated_machine, code=3, writes=False)
    calibrated_machine, _, events = first_use(uncalibrated_machine)
    assert calibrated_machine.calibration is None
    assert says_each(events, [get_message("calibration-failed-process-ended", 3)])


def test_what_a_process_found_before_it_died_counts(
    uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fake(monkeypatch, uncalibrated_machine, code=3)
    calibrated_machine, _, events = first_use(uncalibrated_machine)
    assert calibrated_machine.calibration is not None
    assert says_each(events, [get_message("calibration-incomplete-process-ended", 3)])


def test_a_process_that_hangs_is_ended(uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        calibrate, "probe_command", lambda *arguments: [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    calibration = calibrate.load_or_measure(uncalibrated_machine, limit=calibrate.TimeLimit(0.5, 1.0)).calibration
    assert calibration is not None
    assert calibration.probes == ()
    assert says(calibration.missing[0], "comparison-ended-within", 1)
    # Nobody knows why: the line blamed other processes for all of the CPU time.
    assert "processes" not in calibrate.summarize(calibration)
    calibrated_machine, messages, events = first_use(uncalibrated_machine)
    assert (messages, events) == ([], [])
    assert begins_with(calibration_file.describe_missing(calibrated_machine), "machine-too-busy-too")


def test_what_is_not_compared_at_the_time_limit_is_missing(
    uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_calibration = calibrations.add_calibration(uncalibrated_machine, calibrations.make_probes(1.5)).calibration
    assert fake_calibration is not None
    Fake(monkeypatch, uncalibrated_machine, ends=False)
    calibration = calibrate.load_or_measure(uncalibrated_machine, limit=calibrate.TimeLimit(0.5, 1.0)).calibration
    assert calibration is not None
    assert calibration.missing[:-1] == fake_calibration.missing
    assert says(calibration.missing[-1], "comparison-ended-within", 1)


def test_the_waits_are_stored_with_every_comparison(machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed at its time limit: what it stored then said that it had never waited."""
    counters = itertools.count()
    monkeypatch.setattr(cpu_starvation, "read_waited_seconds", lambda: 1e3 * next(counters))
    monkeypatch.setattr(cpu_starvation, "read_stolen_seconds", lambda: 0.0)
    monkeypatch.setattr(ProcessCgroup, "read_throttled_seconds", lambda group: 1e3 * next(counters))
    stored = list[Calibration]()
    session = Session(machine, 0.0, stored.append)
    comparisons: list[tuple[str, Comparison]] = [("attention wide", lambda until: []), ("dropout", lambda until: [])]
    session._make_all(comparisons, time.monotonic() + 60, measure_waits=True)
    assert [(c.waited, c.throttled, len(c.missing)) for c in stored] == [(1.0, 1.0, 1), (1.0, 1.0, 2)]


def test_a_quota_that_leaves_no_time_is_named(uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        calibrate, "probe_command", lambda *arguments: [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    seconds = iter((3.0, 3.5))
    monkeypatch.setattr(ProcessCgroup, "read_throttled_seconds", lambda group: next(seconds))
    calibration = calibrate.load_or_measure(uncalibrated_machine, limit=calibrate.TimeLimit(0.5, 1.0)).calibration
    assert calibration is not None
    assert says(calibrate.summarize(calibration), "cpu-quota-used-time", 50)


def test_switched_off_nothing_happens(uncalibrated_machine: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(monkeypatch, uncalibrated_machine)
    monkeypatch.setenv(calibration_file.SWITCH_VARIABLE, "off")
    assert first_use(uncalibrated_machine) == (uncalibrated_machine, [], [])
    assert fake.calls == 0


@pytest.mark.parametrize(
    ("waited", "throttled", "expected_cause"),
    [
        (0.4, 0.0, "other processes took 40% of the CPU time"),
        (0.9, 0.02, "other processes took 88% of the CPU time"),
        (1.0, 0.4, "the CPU quota was used up for 40% of the time, and other processes took 60% of the CPU time"),
        (0.87, 0.85, "the CPU quota was used up for 85% of the time"),
    ],
)
def test_a_quota_is_not_called_a_busy_machine(waited: float, throttled: float, expected_cause: str) -> None:
    calibration = Calibration(key="k", date="2026-11-23", seconds=8.0, waited=waited, throttled=throttled, probes=())
    assert (
        calibrate.summarize(calibration) == f"0 comparisons in 8 s; {expected_cause}; `drivetrain calibrate` shows them"
    )
