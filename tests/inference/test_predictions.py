"""What is printed reads back to what `evaluate` used."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import Head, Split
from drivetrain.inference import predictions
from drivetrain.training.evaluation.scores import NumberScores

OUTPUTS = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
SCALES = {
    "far from zero": ((-5e8, 1.7e9), (2.236, 0.5)),
    "tiny": ((1e-12, -3e-15), (1e-14, 7e-17)),
    "large": ((1e30, -4e25), (3e29, 1e24)),
    "usual": ((0.1, 20.0), (0.3, 5.0)),
}


class Rows:
    """Rows without content."""

    targets: dict[str, torch.Tensor] = {}  # noqa: RUF012 - a protocol's attribute

    def __len__(self) -> int:
        return len(OUTPUTS)

    def gather(self, ids: Any) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError

    def title(self, index: int) -> str:
        return str(index)


def print_answers(head: Head, outputs: torch.Tensor, **options: bool) -> list[dict[str, Any]]:
    """The predictions, after a way through JSON, which writes numbers as CSV does."""
    rows: Split = Rows()
    batches = [(np.arange(len(outputs)), {"": outputs})]
    answers = [answer[""] for _, answer in predictions.compute_answers(batches, {"": head}, rows, **options)]
    return list(json.loads(json.dumps(answers)))


@pytest.mark.parametrize("case", SCALES)
def test_printed_numbers_are_exactly_those_that_are_scored(case: str) -> None:
    mean, std = SCALES[case]
    head = Head("", columns=("a", "b"), mean=mean, std=std)
    read = np.array([[row["prediction"]["a"], row["prediction"]["b"]] for row in print_answers(head, OUTPUTS)])
    np.testing.assert_array_equal(read, OUTPUTS.double().numpy() * np.array(std) + np.array(mean))


@pytest.mark.parametrize("case", SCALES)
def test_the_error_of_what_is_printed_is_that_of_evaluate(case: str) -> None:
    mean, std = SCALES[case]
    head = Head("", columns=("a",), mean=mean[:1], std=std[:1])
    outputs = OUTPUTS[:, :1]
    targets = outputs + 0.01 * torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    scores = NumberScores(head)
    scores.update(outputs, targets)
    read = np.array([row["prediction"] for row in print_answers(head, outputs)])
    truth = targets.double().numpy()[:, 0] * std[0] + mean[0]
    digits = abs(mean[0]) * 2.0**-52  # what float64 has near the mean
    assert np.abs(read - truth).mean() == pytest.approx(scores.compute()["mae"], rel=1e-9, abs=2 * digits)


def test_printed_probabilities_are_exactly_those_of_float32() -> None:
    head = Head("", classes=("no", "yes"))
    shares = predictions.compute_probabilities(head, OUTPUTS)
    rows = print_answers(head, OUTPUTS, with_probabilities=True)
    read = np.array([[row["probabilities"][name] for name in head.classes] for row in rows], np.float32)
    np.testing.assert_array_equal(read, shares.numpy())
    np.testing.assert_array_equal(np.array([row["probability"] for row in rows], np.float32), shares.max(1)[0].numpy())
    assert all(len(str(row["probability"])) <= 13 for row in rows)


def test_outputs_of_unknown_meaning_are_printed_in_full() -> None:
    read = np.array([row["prediction"] for row in print_answers(Head(""), OUTPUTS)])
    np.testing.assert_array_equal(read, OUTPUTS.double().numpy())
