"""The ladder: known delays come out as known ratios, what fails is a row, and the command measures a real job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from drivetrain.cli import main
from drivetrain.plan import plan
from drivetrain.system.console import open_console
from drivetrain.tuning import speed_table
from drivetrain.tuning.paired_timing import PairedTiming
from drivetrain.tuning.processes.speed import Ablation, Failed
from drivetrain.tuning.speed_table import AblationStep
from tests import tiny
from tests.paths import ROOT
from tests.supervisor.tiny_run import TEXT

GAINS = {"packed_dropout": 2.0, "channels_last": 1.25, "fused_optimizer": 1.1}


def make_plan(on: Sequence[str]) -> plan.Plan:
    return plan.resolve(tiny.job(), tiny.machine()).with_only(on)


@dataclass
class Fake:
    """A variant whose step takes a known time."""

    step_seconds: float
    loss: float = 1.0
    batch: float = 16.0
    added_bytes: int = 1 << 30
    first_seconds: float = 5.0
    notes: list[str] = field(default_factory=list)

    @property
    def numbers(self) -> list[tuple[float, float]]:
        return [(self.loss, 1.0)] * 4

    def time_steps(self, count: int) -> float:
        return count * self.step_seconds


def starter(fails: str = "", hinder: float = 1.0) -> Callable[..., Fake]:
    """Variants whose speed follows from the settings of their plan; `hinder` is a slowdown if all are on."""

    def start(variant_plan: plan.Plan, is_other_job: bool = False) -> Fake:
        enabled = [row.name for row in variant_plan.list_enabled() if row.name in GAINS]
        if fails in enabled:
            raise Failed("no room")
        speed = np.prod([GAINS[name] for name in enabled]) / (hinder if len(enabled) == len(GAINS) else 1.0)
        return Fake(0.1 / float(speed), batch=32.0 if is_other_job else 16.0)

    return start


def measure_ladder(fails: str = "", enabled: Sequence[str] = tuple(GAINS)) -> list[AblationStep]:
    ablation = Ablation(make_plan(enabled), starter(fails), lambda text: None)  # type: ignore[arg-type]
    return ablation.measure(["train.batch_size=32"] if enabled else [])


def test_known_delays_give_known_ratios() -> None:
    ladder = measure_ladder()
    ratios = {(r.kind, r.name): r.pair.median for r in ladder if r.pair}
    for name, gain in GAINS.items():
        assert ratios["added", name] == pytest.approx(gain)
        assert ratios["without", name] == pytest.approx(gain)
    assert ratios["all", "all together"] == pytest.approx(2.75)
    assert ratios["against", "train.batch_size=32"] == pytest.approx(2.0), "samples count, not steps"
    assert [r.kind for r in ladder] == ["plain", *["added"] * 3, "all", *["without"] * 3, "against"]
    assert ladder[0].samples_per_second == pytest.approx(160)


def test_a_failed_ablation_step_is_a_row_and_the_rest_continues() -> None:
    ladder = measure_ladder(fails="channels_last")
    rows = {(r.kind, r.name): r for r in ladder}
    assert rows["added", "channels_last"].note == "failed: no room"
    assert rows["added", "channels_last"].pair is None
    assert ("without", "channels_last") not in rows
    total = rows["all", "all together"].pair
    assert total is not None
    assert total.median == pytest.approx(2.2)


def test_the_speed_of_plain_is_that_of_its_fastest_block() -> None:
    """It was described before its comparisons, by its only block so far, which runs while the process warms up."""

    class Warming(Fake):
        def time_steps(self, count: int) -> float:
            self.step_seconds = min(self.step_seconds, 0.01)
            return count * self.step_seconds

    ablation = Ablation(make_plan(tuple(GAINS)), lambda *_: Warming(0.1), lambda text: None)  # type: ignore[arg-type]
    plain, *others = ablation.measure()
    assert plain.samples_per_second == pytest.approx(1600)
    assert all(step.samples_per_second == plain.samples_per_second for step in others)


def test_without_optimizations_there_is_nothing_to_compare() -> None:
    assert [r.kind for r in measure_ladder(enabled=())] == ["plain"]


def test_the_table_has_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    ladder = measure_ladder(fails="channels_last")
    open_console().print(speed_table.ablation_table(ladder))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 1 + len(ladder) + 1, "a head, and a note below the one that failed"
    assert any(line.startswith("+ packed_dropout") and "2.00x [2.00-2.00]" in line for line in lines)
    assert any(line.startswith("- fused_optimizer") and "1.10x" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_numbers_are_formatted_for_readers(capsys: pytest.CaptureFixture[str]) -> None:
    """No powers of ten for milliseconds, and no column that nobody fills."""
    rungs = [
        AblationStep(
            "plain",
            "plain",
            samples_per_second=66.4,
            step_seconds=1.86,
            loss_off=0.0,
            first_seconds=0.0,
        ),
        AblationStep(
            "added",
            "denormals",
            True,
            PairedTiming((2.0, 2.0, 2.0)),
            samples_per_second=0.52,
            step_seconds=0.0483,
            loss_off=9.94e-8,
            first_seconds=0.1,
        ),
    ]
    open_console().print(speed_table.ablation_table(rungs))
    text = capsys.readouterr().out
    assert "e+" not in text
    for cell in ("1,860", "66.4", "0.52", "48.3", "9.9e-8"):
        assert cell in text.split()
    assert "first step" not in text
    assert "memory" not in text
    open_console().print(speed_table.ablation_table([replace(rungs[1], first_seconds=7.4)]))
    assert "first step" in (second_output := capsys.readouterr().out)
    assert "+7 s" in second_output


def test_disabled_optimizations_are_named() -> None:
    text = speed_table.describe_skipped(make_plan(["fused_optimizer"]))
    assert "compile (false)" in text
    assert "fused_optimizer" not in text


@pytest.fixture(scope="module")
def bench_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A real ladder of two optimizations, with a variant at the end."""
    folder = tmp_path_factory.mktemp("bench")
    labels = np.arange(160) % 3
    images = (np.random.default_rng(0).random((160, 8, 8)) * 255).astype(np.uint8)
    np.savez(folder / "images.npz", images=images, labels=labels)
    job = folder / "tiny.yaml"
    job.write_text(TEXT)
    off = {
        "allocator": "off",
        "openmp_runtime": "off",
        "denormals": "false",
        "precision": "fp32",
        "compile": "false",
        "channels_last": "false",
        "cpu_threads": "1",
    }
    sets = [word for name, value in off.items() for word in ("--set", f"optimize.{name}={value}")]
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "bench",
        "speed",
        str(job),
        *sets,
        "--against",
        "train.batch_size=8",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "bench-speed-tiny", done.stdout


@pytest.mark.nightly
def test_the_command_measures_a_real_job(bench_run: tuple[Path, str]) -> None:
    folder, output = bench_run
    data = json.loads((folder / "speed.json").read_text())
    rows = {(row["kind"], row["name"]): row for row in data["steps"]}
    names = "packed_dropout", "fused_optimizer"
    assert set(rows) == {
        ("plain", "plain"),
        *(("added", name) for name in names),
        ("all", "all together"),
        *(("without", name) for name in names),
        ("against", "train.batch_size=8"),
    }
    assert rows["added", "packed_dropout"]["loss_off"] < 1e-4, "compared without dropout, which draws other numbers"
    assert rows["added", "fused_optimizer"]["loss_off"] < 1e-4, "same batches, same first weights"
    for row in rows.values():
        assert row["samples_per_second"] > 0
        assert row["added_bytes"] >= 0
        assert row["kind"] == "plain" or row["pair"]["low"] <= row["pair"]["median"] <= row["pair"]["high"]
    assert sorted(path.name for path in folder.iterdir()) == ["hardware.json", "job", "plan.json", "speed.json"]
    assert "\n- fused_optimizer  " in output


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--against", "train.batchsize=8"], 'did you mean "batch_size"'),
        (["--set", "data.train=nowhere"], "nowhere"),
    ],
)
def test_options_that_make_no_sense(
    options: list[str],
    expected: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drivetrain.system.signals.install_handler", lambda handler: None)
    monkeypatch.chdir(tmp_path)
    assert main.main(["bench", "speed", str(ROOT / "jobs" / "digits.yaml"), *options]) in (2, 3)
    assert expected in capfd.readouterr().err
