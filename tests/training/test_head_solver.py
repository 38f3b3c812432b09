"""Solved heads: the same weights as scikit-learn's solvers find, of a loss that steps only come near to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL
from drivetrain.job.train import BinaryCrossEntropy, CrossEntropy, MeanSquaredError
from drivetrain.training import head_solver, losses
from drivetrain.training.head_solver import HeadFeatures, solve_head
from drivetrain.training.losses import HeadLoss

CLASSES = 3
CROSS_ENTROPY = losses.build_terms(CrossEntropy(name="cross-entropy"))


def draw_samples(count: int, seed: int = 0, width: int = 12) -> HeadFeatures:
    """Features of different scales, far from 0, and the class that a noisy linear rule gives them."""
    draw = torch.Generator().manual_seed(seed)
    rule = torch.randn(width, CLASSES, generator=torch.Generator().manual_seed(99))
    standard = torch.randn(count, width, generator=draw)
    classes = (standard @ rule + 2 * torch.randn(count, CLASSES, generator=draw)).argmax(1)
    return HeadFeatures(standard * torch.logspace(-2, 2, width) + 5, classes)


def standardize(training: Any, features: Any) -> np.ndarray:
    return ((features - training.mean(0)) / training.std(0, correction=0)).numpy()


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 3.0, 0.5])])
def test_classes_have_the_probabilities_of_logistic_regression(weights: Tensor | None) -> None:
    training, held_out = draw_samples(400), draw_samples(300, seed=1)
    solved = solve_head(training, held_out, HeadLoss(CROSS_ENTROPY, weights), CLASSES)
    # The mean loss is weighted: the penalty of scikit-learn, which adds up, is that of the sum of weights.
    total = 400.0 if weights is None else float(weights[training.targets].sum())
    reference = LogisticRegression(
        C=400 / total / solved.penalty,
        class_weight=None if weights is None else dict(enumerate(weights.tolist())),
        tol=1e-8,
        max_iter=5000,
    ).fit(standardize(training.features, training.features), training.targets.numpy())
    expected = reference.predict_proba(standardize(training.features, held_out.features))
    outputs = held_out.features @ solved.weight.T + solved.bias
    np.testing.assert_allclose(outputs.softmax(1).numpy(), expected, atol=2e-3)


def test_numbers_are_those_of_ridge_regression() -> None:
    training, held_out = draw_samples(300), draw_samples(200, seed=1)
    rule = torch.randn(12, 2, generator=torch.Generator().manual_seed(5)) / torch.logspace(-2, 2, 12)[:, None]
    training, held_out = (
        HeadFeatures(part.features, part.features @ rule + part.targets[:, None].float())
        for part in (training, held_out)
    )
    loss = HeadLoss(losses.build_terms(MeanSquaredError(name="mse")), None)
    solved = solve_head(training, held_out, loss, 2)
    # The mean over both outputs, and half a penalty beside whole squares.
    reference = Ridge(alpha=solved.penalty, tol=1e-10).fit(
        standardize(training.features, training.features), training.targets.numpy()
    )
    expected = reference.predict(standardize(training.features, held_out.features))
    assert solved.bias is not None
    np.testing.assert_allclose((held_out.features @ solved.weight.T + solved.bias).numpy(), expected, atol=5e-2)


def test_several_labels_are_solved_one_by_one() -> None:
    training, held_out = draw_samples(400), draw_samples(300, seed=1)
    training, held_out = (
        HeadFeatures(part.features, torch.stack([part.targets == 0, part.targets != 1], 1).float())
        for part in (training, held_out)
    )
    loss = HeadLoss(losses.build_terms(BinaryCrossEntropy(name="bce")), None, several=True)
    solved = solve_head(training, held_out, loss, 2)
    for label in range(2):
        reference = LogisticRegression(C=1 / (2 * solved.penalty), tol=1e-8, max_iter=5000).fit(
            standardize(training.features, training.features), training.targets[:, label].numpy()
        )
        expected = reference.predict_proba(standardize(training.features, held_out.features))[:, 1]
        outputs = (held_out.features @ solved.weight.T + solved.bias)[:, label]
        np.testing.assert_allclose(outputs.sigmoid().numpy(), expected, atol=2e-3)


def test_the_penalty_is_the_one_with_the_smallest_validation_loss() -> None:
    """Few samples with many features need a strong one, many samples with few features a weak one."""
    loss = HeadLoss(CROSS_ENTROPY, None)
    few = solve_head(draw_samples(40, width=60), draw_samples(300, seed=1, width=60), loss, CLASSES)
    many = solve_head(draw_samples(4000), draw_samples(300, seed=1), loss, CLASSES)
    assert few.penalty > many.penalty
    assert few.tried_penalties < len(head_solver.PENALTIES)


def test_samples_without_a_label_count_nothing() -> None:
    training, held_out = draw_samples(400), draw_samples(300, seed=1)
    loss = HeadLoss(CROSS_ENTROPY, None, partial=True)
    gaps = training.targets.clone()
    gaps[::2] = NO_LABEL
    half = HeadFeatures(training.features[1::2], training.targets[1::2])
    with_gaps = solve_head(HeadFeatures(training.features, gaps), held_out, loss, CLASSES)
    torch.testing.assert_close(with_gaps.weight, solve_head(half, held_out, loss, CLASSES).weight)


def test_in_pieces_the_solution_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    training, held_out, loss = draw_samples(400), draw_samples(300, seed=1), HeadLoss(CROSS_ENTROPY, None)
    in_one_piece = solve_head(training, held_out, loss, CLASSES)
    monkeypatch.setattr(head_solver, "CHUNK_VALUES", 12 * 70)
    in_pieces = solve_head(training, held_out, loss, CLASSES)
    assert in_pieces.penalty == in_one_piece.penalty
    outputs = [held_out.features @ solved.weight.T + solved.bias for solved in (in_one_piece, in_pieces)]
    torch.testing.assert_close(*(one.softmax(1) for one in outputs), atol=2e-3, rtol=0)


@pytest.mark.parametrize("noise", [1e-33, 1e-9])
@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_features_that_are_only_rounding_have_no_weight(noise: float, constant: float) -> None:
    """Scaled up, they had weights of 1e30: the first step after an unfreezing had infinite gradients."""
    training, held_out = draw_samples(400), draw_samples(300, seed=1)
    training.features[:, 3] = constant + noise * torch.randn(400, generator=torch.Generator().manual_seed(2))
    solved = solve_head(training, held_out, HeadLoss(CROSS_ENTROPY, None), CLASSES)
    assert not solved.weight[:, 3].any()
    assert float(solved.weight.abs().max()) < 1e4


@pytest.mark.parametrize("case", ["one class only", "a constant feature", "no bias", "a class in validation only"])
def test_odd_samples_give_finite_weights(case: str) -> None:
    training, held_out = draw_samples(60), draw_samples(40, seed=1)
    if case == "one class only":
        training = HeadFeatures(training.features, torch.zeros(60, dtype=torch.int64))
    if case == "a class in validation only":
        training = HeadFeatures(training.features, training.targets.clamp_max(1))
    if case == "a constant feature":
        training.features[:, 3] = 7.0
    solved = solve_head(training, held_out, HeadLoss(CROSS_ENTROPY, None), CLASSES, has_bias=case != "no bias")
    assert bool(solved.weight.isfinite().all())
    assert (solved.bias is None) == (case == "no bias")
    assert np.isfinite([solved.training_loss, solved.validation_loss]).all()


def test_without_time_the_first_penalty_is_taken() -> None:
    loss = HeadLoss(CROSS_ENTROPY, None)
    solved = solve_head(draw_samples(100), draw_samples(50, seed=1), loss, CLASSES, has_time=lambda: False)
    assert (solved.penalty, solved.tried_penalties) == (head_solver.PENALTIES[0], 1)
