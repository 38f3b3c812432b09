"""The learning-rate range test: its rule on known curves, the sweep on a real run, the command and its files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.errors import NumericsError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.tuning.processes import lr
from drivetrain.tuning.processes.lr import measure_losses, suggest_rate
from tests import tiny
from tests.messages import says
from tests.supervisor.tiny_run import TEXT

torch.set_num_threads(1)
RATES = np.geomspace(1e-6, 10, 100)


def make_falling_loss(middle: float, noise: float = 0.02) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A loss that falls from 2 to 0.5 around a rate, over about two decades."""
    where = np.log10(RATES) - np.log10(middle)
    return 1.25 - 0.75 * np.tanh(where) + noise * np.random.default_rng(0).standard_normal(100)


@pytest.mark.parametrize("middle", [1e-4, 3e-3, 5e-2])
def test_the_suggestion_is_where_the_loss_falls_fastest(middle: float) -> None:
    suggestion = suggest_rate(RATES, make_falling_loss(middle), 100)
    assert suggestion is not None
    assert abs(np.log10(suggestion / middle)) < 0.25


def test_a_later_divergence_does_not_shift_the_suggestion() -> None:
    losses = np.where(RATES < 1, make_falling_loss(1e-3), 50.0 * RATES)
    suggestion = suggest_rate(RATES, losses, 100)
    assert suggestion is not None
    assert abs(np.log10(suggestion / 1e-3)) < 0.25


@pytest.mark.parametrize("kind", ["flat", "rising", "short"])
def test_no_suggestion_if_the_loss_does_not_clearly_fall(kind: str) -> None:
    noise = np.random.default_rng(1).standard_normal(100)
    curve = {"flat": 2 + 0.1 * noise, "rising": 2 + RATES + 0.1 * noise, "short": make_falling_loss(1e-3)[:10]}[kind]
    assert suggest_rate(RATES[: len(curve)], curve, 100) is None


def test_the_sweep_tries_every_rate_and_learns_on_the_way(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(train="optimizer: {name: adamw, lr: 1.0}, schedule: cosine"))
    rates, losses = measure_losses(run, 1e-6, 0.1, 60)
    np.testing.assert_allclose(rates, np.geomspace(1e-6, 0.1, 60)[: len(rates)])
    assert len(losses) == len(rates)
    assert losses[-10:].mean() < 0.6 * losses[:10].mean()
    suggestion = suggest_rate(rates, losses, 60)
    assert suggestion is not None
    assert 1e-4 < suggestion < 0.1
    assert not list(tmp_path.iterdir())


def test_the_sweep_trains_as_training_does(tmp_path: Path) -> None:
    """A sweep at one rate has the losses of training steps."""
    job = tiny.job("optimizer: {name: adamw, lr: 0.01}, schedule: constant")
    steps = tiny.losses(tiny.assemble_run(tmp_path / "1", job), 10)
    swept = measure_losses(tiny.assemble_run(tmp_path / "2", job), 0.01, 0.01, 10)[1]
    assert swept.tolist() == steps


def test_the_sweep_ends_when_the_loss_diverges(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(train="clip_norm: null, optimizer: {name: sgd, lr: 1.0}"))
    rates, losses = measure_losses(run, 1e-3, 1e6, 80)
    assert 16 <= len(rates) < 80
    assert np.isfinite(losses).all()
    assert losses[-1] > losses[0]


def test_numbers_from_the_first_rate_on_are_needed(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job(train="clip_norm: null, optimizer: {name: sgd, lr: 1.0}"))
    with pytest.raises(NumericsError, match=r"(?s)NaN or infinite from a learning rate of .* on.*clip_norm=1"):
        measure_losses(run, 1e30, 1e38, 40)


def test_the_command_writes_numbers_and_no_run(tmp_path: Path) -> None:
    labels = np.arange(160) % 3
    images = (np.random.default_rng(0).random((160, 8, 8)) * 120).astype(np.uint8)
    images[np.arange(160), labels * 2] += 120
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    job, out = tmp_path / "tiny.yaml", tmp_path / "runs" / "bench-lr-tiny"
    job.write_text(TEXT)
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "bench",
        "lr",
        str(job),
        "--set",
        "train.optimizer.name=sgd",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads((out / "lr.json").read_text())
    assert stored["optimizer"] == "sgd"
    rates = [row["lr"] for row in stored["steps"]]
    np.testing.assert_allclose(rates, RATES[: len(rates)])
    assert not (out / "state.json").exists()
    assert list((tmp_path / "runs").iterdir()) == [out]
    line = re.search(r"optimizer: \{name: sgd, lr: (\S+)\}", done.stdout)
    assert line, done.stdout
    assert float(line[1]) == stored["suggested"]
    assert job_spec.load(job, [f"train.{line[0]}".replace(": ", "=", 1)]).train.optimizer.lr == stored["suggested"]


def test_no_suggestion_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny.assemble_run(tmp_path, tiny.job())
    flat = 2 + 0.1 * np.random.default_rng(1).standard_normal(100)
    lr.report(run, RATES, flat, tmp_path)
    assert says(capsys.readouterr().out, "learning-rate-suggested-loss")
    assert json.loads((tmp_path / "lr.json").read_text())["suggested"] is None
