"""Numbers that are not finite, thrown at many short runs: in the loss, a gradient, an input, a buffer, a weight.

Whatever happens, no checkpoint and no model folder ever holds one; a skipped step leaves every weight as it was; the
run ends done or with exit 5, as the number of bad steps in a row says.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from drivetrain.errors import NumericsError
from drivetrain.models import safetensors_file
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.training import loop, run
from drivetrain.training.saver import Saver
from tests import tiny
from tests.newest_checkpoint import load_latest
from tests.training.hooked_run import SilentProgress, nan_gradient, nan_input, read_rows

NIGHTLY = int(os.environ.get("DRIVETRAIN_NUMBERS", "200"))
STEPS = 12
"""Of the tiny job."""
BAD = (float("nan"), float("inf"), -float("inf"))


def loss(tiny_run: run.Run) -> None:
    """The network's outputs, and with them the loss."""
    handle = tiny_run.model.register_forward_hook(
        lambda module, given, outputs: (handle.remove(), outputs * float("nan"))[1]  # type: ignore[has-type]
    )


def buffer(tiny_run: run.Run) -> None:
    next(b for n, b in tiny_run.model.named_buffers() if n.endswith("running_var")).fill_(float("inf"))


def weight(tiny_run: run.Run) -> None:
    next(tiny_run.model.parameters()).data.view(-1)[3] = float("nan")


KINDS: dict[str, Callable[[run.Run], Any]] = {
    "input": nan_input,
    "gradient": nan_gradient,
    "loss": loss,
    "buffer": buffer,
    "weight": weight,
}


def spoil_steps(tiny_run: run.Run, faults: dict[int, str]) -> None:
    """Something bad before the forward pass of each of these steps, once; weights must stay over a skipped step."""
    faults_ahead = dict(faults)
    weights_before: list[dict[str, torch.Tensor]] = []

    def hook(module: torch.nn.Module, inputs: Any) -> Any:
        number = tiny_run.counters.step + 1
        if module.training and number in faults_ahead:
            return KINDS[faults_ahead.pop(number)](tiny_run)
        return None

    tiny_run.model.register_forward_pre_hook(hook)
    step, skipped = tiny_run.step.compute_gradients, tiny_run.numerics.record_skipped

    def compute_gradients(batch: Any, share: Any) -> Any:
        weights_before[:] = [{name: value.clone() for name, value in tiny_run.model.named_parameters()}]
        return step(batch, share)

    def unmoved(*arguments: Any) -> None:
        weights_now = dict(tiny_run.model.named_parameters())
        assert all(
            torch.equal(value, weights_now[name]) or not torch.isfinite(weights_now[name]).all()
            for name, value in weights_before[0].items()
        )
        skipped(*arguments)

    tiny_run.step.compute_gradients = compute_gradients  # type: ignore[assignment, method-assign]
    tiny_run.numerics.record_skipped = unmoved  # type: ignore[assignment, method-assign]


def train_with_faults(folder: Path, draw: random.Random) -> tuple[dict[int, str], str]:
    """One run with faults at random steps; what they were, and how it ended."""
    tiny_run = tiny.assemble_run(folder, tiny.job(train="ema: 0.5"))
    tiny_run.metrics = MetricsLog(folder)
    saver = Saver(tiny_run)
    saver.kind, saver.interval = "steps", draw.choice((1, 2, 5))
    first = draw.randint(1, STEPS - 1)
    in_a_row = range(first, min(STEPS, first + draw.choice((1, 1, 2, 3, 4))) + 1)
    faults = {number: draw.choice(tuple(KINDS)) for number in in_a_row}
    faults |= {draw.randint(1, STEPS): draw.choice(tuple(KINDS)) for _ in range(draw.randint(0, 2))}
    saver.save_final()
    spoil_steps(tiny_run, faults)
    try:
        ending = loop.fit(tiny_run, saver, SilentProgress())  # type: ignore[arg-type]
        saver.save_final()
    except NumericsError as error:
        ending = f"exit {error.exit_code}"
    finally:
        tiny_run.metrics.close()
    return faults, ending


def check(numbers: range, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Runs by number; how many ended how. Every file of weights is looked at when it is written, and once more at the end."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    plain, file_count = safetensors_file.write, [0]

    def write(path: Path, tensors: safetensors_file.Tensors) -> None:
        assert all(torch.isfinite(value.float()).all() for value in tensors.values()), path
        file_count[0] += 1
        plain(path, tensors)

    monkeypatch.setattr(safetensors_file, "write", write)
    endings: dict[str, int] = {}
    for number in numbers:
        run_folder = folder / str(number)
        run_folder.mkdir()
        faults, ending = train_with_faults(run_folder, random.Random(number))
        endings[ending] = endings.get(ending, 0) + 1
        for path in (run_folder / "checkpoints").glob("*/*.safetensors"):
            values = safetensors.torch.load_file(path).values()
            assert all(torch.isfinite(value.float()).all() for value in values), (number, path, faults)
        assert load_latest(run_folder / "checkpoints")[0] is not None
        assert read_rows(run_folder, "events.jsonl"), (number, faults)
    assert set(endings) <= {"all 3 epochs trained", "exit 5"}, endings
    return endings | {"files of weights": file_count[0]}


def test_ten_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(check(range(10), tmp_path, monkeypatch)) == 3


@pytest.mark.nightly
def test_two_hundred_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endings = check(range(1000, 1000 + NIGHTLY), tmp_path, monkeypatch)
    print(f"{NIGHTLY} runs, none of whose checkpoints holds a number that is not finite: {endings}")
