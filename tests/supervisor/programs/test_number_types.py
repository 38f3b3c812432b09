"""Programs in float64 and bf16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from tests.messages import omits, says
from tests.supervisor.programs.comparison import (
    OFF,
    Loop,
    Refusal,
    Training,
    X,
    Y,
    check_loop,
    check_refusal,
    check_training,
    cut,
    mlp,
    no_report,
    plain_pair,
    train,
)

__all__ = ["no_report"]

LOOPS = {
    "float64": plain_pair(F.cross_entropy, lambda: mlp().double(), cut(X.double(), Y)),
    "float64, micro-batches": plain_pair(
        F.cross_entropy, lambda: mlp().double(), cut(X.double(), Y), optimize=OFF | {"micro_batch": 5}
    ),
}
TRAININGS = {
    "float64 data": Training(mlp, TensorDataset(X.double(), Y), lambda o, t: F.cross_entropy(o, t)),
}
REFUSALS = {
    "a float64 network": Refusal(
        lambda folder: train(folder, mlp().double(), (X.double(), Y)),
        ("must have the same dtype", "here they are float64", "call .float() on it", "prepare keeps float64"),
        lambda folder: train(folder, mlp().double().float(), (X.double(), Y)),
    ),
    "a network in bf16": Refusal(
        lambda folder: train(folder, mlp().bfloat16()),
        ("here they are bfloat16", "call .float() on it"),
        lambda folder: train(folder, mlp().bfloat16().float()),
    ),
}


@pytest.mark.parametrize("program", LOOPS.values(), ids=LOOPS)
def test_a_loop_in_float64_trains_as_by_hand(program: Loop) -> None:
    check_loop(program)


@pytest.mark.parametrize("program", TRAININGS.values(), ids=TRAININGS)
def test_float64_data_are_trained_as_by_hand(program: Training, tmp_path: Path) -> None:
    check_training(program, tmp_path)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_refused_number_types_have_another_way(refusal: Refusal, tmp_path: Path) -> None:
    check_refusal(refusal, tmp_path)


def test_float64_numbers_that_are_rounded_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, mlp(), (X.double() / 3, Y), quiet=False)
    assert says(capsys.readouterr().out, "float64-numbers-rounded")
    train(tmp_path, mlp(), (X.double(), Y), quiet=False)
    assert omits(capsys.readouterr().out, "float64-numbers-rounded")
