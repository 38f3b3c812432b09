"""Threads, OpenMP runtime and allocator: measured in children, decided right, taken by a new process, ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from drivetrain.data.load_data import load
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware, Libraries
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.models.build import build
from drivetrain.plan import effective_plan, evidence, plan
from drivetrain.system import process_tree
from drivetrain.system.child_process import ChildEnded
from drivetrain.tuning import process_settings, tuner
from drivetrain.tuning.measuring_child import VariantReady
from drivetrain.tuning.paired_timing import TimedBlock
from drivetrain.tuning.tuner_state import TunerState
from tests import tiny
from tests.messages import says
from tests.paths import IMPORTS, ROOT

NUMBERS = [(1.0, 2.0), (0.9, 1.9), (0.8, 1.8), (0.7, 1.7)]


def start_tuning(machine_plan: plan.Plan) -> TunerState:
    unused: Any = None
    return TunerState(machine_plan, unused)


def make_machine() -> Hardware:
    tiny_machine = tiny.machine()
    cpu = replace(tiny_machine.cpu, host=2, affinity=2, cores=2, budget=2, cpuset=None, quota=None)
    return replace(tiny_machine, cpu=cpu, libraries=Libraries(iomp5="/lib/libiomp5.so", tcmalloc="/lib/libtcmalloc.so"))


def test_promising_candidates_come_first_and_requested_values_are_not_measured() -> None:
    machine = make_machine()
    candidates = process_settings.list_candidates(tiny.job(), machine, plan.resolve(tiny.job(), machine))
    assert [(o.name, value) for o, value in candidates] == [
        ("cpu_threads", 1),
        ("allocator", "off"),
        ("openmp_runtime", "off"),
    ]
    job_with_values = tiny.job(optimize="cpu_threads: 2, allocator: off")
    candidates = process_settings.list_candidates(job_with_values, machine, plan.resolve(job_with_values, machine))
    assert [(o.name, value) for o, value in candidates] == [("openmp_runtime", "off")]


def make_hyperthreads(cores: int, budget: int) -> Hardware:
    machine = make_machine()
    return replace(machine, cpu=replace(machine.cpu, host=budget, affinity=budget, cores=cores, budget=budget))


@pytest.mark.parametrize(
    ("cores", "budget", "measured_threads"), [(1, 2, [2]), (2, 2, [1]), (4, 8, [8, 2]), (4, 4, [2])]
)
def test_hyperthreads_are_measured_beside_their_cores(cores: int, budget: int, measured_threads: list[int]) -> None:
    machine = make_hyperthreads(cores, budget)
    machine_plan = plan.resolve(tiny.job(), machine)
    assert machine_plan.value("cpu_threads") == cores
    candidates = process_settings.list_candidates(tiny.job(), machine, machine_plan)
    assert [value for o, value in candidates if o.name == "cpu_threads"] == measured_threads


def test_two_hyperthreads_are_used_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = make_hyperthreads(1, 2)
    monkeypatch.setattr(process_settings, "VariantPool", Shop({"cpu_threads 2": 0.8}))
    machine_plan = plan.resolve(tiny.job(), machine)
    candidates = process_settings.list_candidates(tiny.job(), machine, machine_plan)
    state = start_tuning(machine_plan)
    process_settings.measure(SpecSource(Path("tiny.yaml")), machine, state, candidates, 3000.0, 60.0, print)
    measurements = state.measurements
    assert measurements["cpu_threads"].value == 2
    assert plan.resolve(tiny.job(), machine, measured=measurements).value("cpu_threads") == 2


@dataclass
class KnownChild:
    """A child of known speed and numbers."""

    seconds: float
    numbers: Sequence[tuple[float, float]] = tuple(NUMBERS)
    closed: bool = False

    @property
    def ready(self) -> VariantReady:
        return VariantReady(list(self.numbers), self.seconds, self.seconds, 16.0, [])

    def time_steps(self, count: int) -> TimedBlock:
        return TimedBlock(count, count * self.seconds, 0.0)

    def close(self) -> None:
        self.closed = True


class Shop:
    """A workshop whose sides are as slow as a table says."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table, self.variants = table, list[KnownChild]()

    def __call__(self, *arguments: object, **options: object) -> Shop:
        return self

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *arguments: object) -> None:
        pass

    def start(self, variant_plan: plan.Plan, timeout: float | None = None) -> KnownChild:
        assert timeout is not None
        side = KnownChild(0.1)
        for name, value in ((row.name, row.value) for row in variant_plan.decisions):
            effect = self.table.get(f"{name} {value}")
            if isinstance(effect, Exception):
                raise effect
            if isinstance(effect, list):
                side.numbers = effect
            elif effect:
                side.seconds *= effect
        self.variants.append(side)
        return side


@pytest.mark.parametrize(
    ("table", "values", "text"),
    [
        ({"cpu_threads 1": 0.8}, {"cpu_threads": 1}, "1 1.25x [1.25-1.25], loss ok"),
        ({"cpu_threads 1": 1.3, "allocator off": 1.1}, {}, "1 0.77x [0.77-0.77], loss ok"),
        ({"cpu_threads 1": 1.01}, {}, "1 0.99x [0.99-0.99], loss ok"),
        ({"cpu_threads 1": 0.8, "allocator off": 0.9}, {"cpu_threads": 1, "allocator": "off"}, "1 1.25x"),
        ({"cpu_threads 1": [(1.0, 2.0), (0.95, 1.9), (0.8, 1.8), (0.7, 1.7)]}, {}, "1 vetoed: loss 0.95 at step 2"),
        ({"cpu_threads 1": ChildEnded("Illegal instruction")}, {}, "1 failed: Illegal instruction"),
    ],
)
def test_children_of_known_speed(
    monkeypatch: pytest.MonkeyPatch, table: dict[str, Any], values: dict[str, object], text: str
) -> None:
    machine, shop, messages = make_machine(), Shop(table), list[str]()
    monkeypatch.setattr(process_settings, "VariantPool", shop)
    machine_plan = plan.resolve(tiny.job(), machine)
    candidates = process_settings.list_candidates(tiny.job(), machine, machine_plan)
    state = start_tuning(machine_plan)
    process_settings.measure(SpecSource(Path("tiny.yaml")), machine, state, candidates, 3000.0, 60.0, messages.append)
    measurements = state.measurements
    planned_values = {name: machine_plan.value(name) for name in measurements}
    assert {name: row.value for name, row in measurements.items()} == planned_values | values
    assert measurements["cpu_threads"].text.startswith(text)
    assert sum(not side.closed for side in shop.variants) == 1  # the workshop ends the last one


def test_an_exact_setting_must_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = make_machine()
    near = [(loss * (1 + 1e-5), norm) for loss, norm in NUMBERS]
    monkeypatch.setattr(process_settings, "VariantPool", Shop({"cpu_threads 1": near, "allocator off": near}))
    machine_plan = plan.resolve(tiny.job(), machine)
    state = start_tuning(machine_plan)
    process_settings.measure(
        SpecSource(Path("tiny.yaml")),
        machine,
        state,
        process_settings.list_candidates(tiny.job(), machine, machine_plan),
        3e3,
        60.0,
        lambda text: None,
    )
    assert "loss ok" in state.measurements["cpu_threads"].text
    assert "vetoed: " in state.measurements["allocator"].text


@pytest.mark.parametrize(
    ("seconds", "standing", "own_bytes", "expected"),
    [
        (3.0, 1.0, 1, "not enough time"),
        (14.0, 1.0, 1, "not enough time"),
        (60.0, 25.0, 1, "not enough time"),
        (60.0, 1.0, 1 << 60, "do not fit into"),
    ],
)
def test_without_time_or_memory_no_child_is_started(
    monkeypatch: pytest.MonkeyPatch, seconds: float, standing: float, own_bytes: int, expected: str
) -> None:
    machine, shop, messages = make_machine(), Shop({}), list[str]()
    monkeypatch.setattr(process_settings, "VariantPool", shop)
    monkeypatch.setattr(process_tree, "sum_memory_bytes", lambda: own_bytes)
    machine_plan = plan.resolve(tiny.job(), machine)
    candidates = process_settings.list_candidates(tiny.job(), machine, machine_plan)
    state = start_tuning(machine_plan)
    process_settings.measure(
        SpecSource(Path("tiny.yaml")), machine, state, candidates, 3e3, seconds, messages.append, standing
    )
    assert not state.measurements
    assert expected in messages[0]
    assert not shop.variants


TEXT = """
name: tiny
task: image-classification
data: {train: images.npz, validation: 0.25}
model: {name: small-cnn, width: 4}
train: {epochs: 2, batch_size: 16}
optimize: {compile: false, precision: fp32, channels_last: false, micro_batch: off, allocator: off, openmp_runtime: off}
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    labels = np.arange(160) % 3
    images = (np.random.default_rng(0).random((160, 8, 8)) * 120).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT)
    return path


def start_training(job: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "drivetrain", "train", str(job), "--runs", str(job.parent / "runs"), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows(job: Path, number: int) -> dict[str, dict[str, Any]]:
    data = json.loads((job.parent / "runs" / f"tiny-{number:03}" / "plan.json").read_text())
    return {row["name"]: row for row in data["decisions"]} | {"seen": data["seen"]}


needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: threads are not contested")


@needs_two
def test_measured_process_settings_are_used_by_a_new_process(job: Path) -> None:
    loaded_job, machine = job_spec.load(job), detect(job.parent)
    dataset = load(loaded_job)
    speed_key = tuner.make_speed_key(loaded_job, machine, dataset, build(loaded_job, dataset), True)
    row = evidence.Measurement(1, "1 1.25x [1.2-1.3], loss ok", "2026-11-21")
    evidence.store(machine, [speed_key], {"cpu_threads": row}, print)
    output, _ = start_training(job, "-v").communicate(timeout=120)
    assert says(output, "tune-measured-before")
    assert "plan: cpu_threads changed from 2 to 1: measured on 2026-11-21" in output
    decisions = rows(job, 1)
    assert (decisions["cpu_threads"]["source"], decisions["cpu_threads"]["evidence"]) == (
        "measured",
        "1 1.25x [1.2-1.3], loss ok",
    )
    assert decisions["seen"]["cpu_threads"] == {"asked": 1, "seen": 1, "same": True, "cause": None}
    # Known by the spec, the next run starts right away as it should; no torch is needed to know.
    evidence.store(machine, [evidence.make_early_key(machine, loaded_job)], evidence.load(machine, speed_key), print)
    assert (
        plan.resolve(loaded_job, machine, measured=evidence.load_process_settings(machine, loaded_job)).value(
            "cpu_threads"
        )
        == 1
    )
    job_without_measuring = job_spec.load(job, ["optimize.measure=off"])
    assert not evidence.load_process_settings(machine, job_without_measuring)


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    processes = psutil.Process(process.pid).children(recursive=True)
    return [child for child in processes if {"drivetrain.tuning.processes", "variant"} <= set(child.cmdline())]


@needs_two
def test_a_signal_ends_the_children_and_the_run_is_planned_anew(job: Path) -> None:
    training = start_training(job, "--set", "optimize.measure=full")
    deadline = time.monotonic() + 90
    while not (measuring_processes := children(training)) and training.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    training.send_signal(signal.SIGTERM)
    output, _ = training.communicate(timeout=60)
    assert training.returncode == 75, output
    assert measuring_processes
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in measuring_processes)
    assert not effective_plan.has_trained(job.parent / "runs" / "tiny-001")


@needs_two
@pytest.mark.nightly
def test_threads_are_measured_in_children_and_the_run_continues(job: Path) -> None:
    output, _ = start_training(job, "--set", "optimize.measure=full").communicate(timeout=300)
    assert "tune: cpu_threads 1 " in output
    assert "loss ok" in rows(job, 1)["cpu_threads"]["evidence"]


def test_what_the_reading_of_a_spec_prints_is_no_answer(tmp_path: Path) -> None:
    """The parent reads the standard output of these programs as answers, or prints its own results there."""
    code = (
        "import sys; from drivetrain.job_spec.spec_source import SpecSource; from drivetrain.tuning.processes import __main__;"
        "SpecSource.load = lambda self: (print('hub: a note'), sys.exit(0)); __main__.main()"
    )
    for program in ("variant", "final_plan"):
        command = [sys.executable, "-c", code, program, str(tmp_path), "{}", "job.yaml"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": IMPORTS}
        )
        assert (done.stdout, done.stderr) == ("", "hub: a note\n")


def test_a_cache_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine = make_machine()
    machine = replace(machine, storage=replace(machine.storage, cache=str(tmp_path / "file")))
    rows = {name: evidence.Measurement(1, "1", "2026-11-29") for name in ("cpu_threads", "channels_last")}
    lines: list[str] = []
    tuner.store_measurements(tiny.job(), machine, ("speed", ""), rows, lines.append)
    assert len(lines) == 1
