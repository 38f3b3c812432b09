"""Sparse rows compute the same as the dense matrix, and heads solved on them equal those from scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL
from drivetrain.job.train import CrossEntropy
from drivetrain.training import head_solver, losses
from drivetrain.training.head_solver import HeadFeatures, solve_head
from drivetrain.training.losses import HeadLoss
from drivetrain.training.sparse_rows import SparseProduct, SparseRows

WIDTH, CLASSES = 40, 3
COLUMNS = torch.tensor([[3, 5, 3, 0], [0, 0, 0, 0], [9, 1, 5, 0]])
VALUES = torch.tensor([[1.0, 2.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [4.0, 1.0, -1.0, 0.0]])


def make_dense(rows: SparseRows) -> Tensor:
    return rows.multiply(torch.eye(rows.width))


def draw_texts(count: int, seed: int = 0) -> HeadFeatures:
    """Draw rows of ten words, small ids being frequent, and classes by a noisy rule."""
    draw = np.random.default_rng(seed)
    columns = torch.from_numpy((WIDTH * draw.random((count, 10)) ** 2).astype(np.int64))
    rule = torch.from_numpy(np.random.default_rng(99).normal(size=(WIDTH, CLASSES))).float()
    classes = (rule[columns].sum(1) + torch.from_numpy(draw.normal(size=(count, CLASSES)))).argmax(1)
    return HeadFeatures(SparseRows.from_padded(columns, torch.full(columns.shape, 32 / 10**0.5), WIDTH), classes)


def test_columns_that_are_twice_in_a_row_are_added_up() -> None:
    rows = SparseRows.from_padded(COLUMNS, VALUES, 10)
    expected = torch.zeros(3, 10)
    expected[0, 3], expected[0, 5] = 1.5, 2.0
    expected[2, 9], expected[2, 1], expected[2, 5] = 4.0, 1.0, -1.0
    assert torch.equal(make_dense(rows), expected)
    assert rows.counts.tolist() == [2, 0, 3]
    assert torch.equal(make_dense(rows.transposed), expected.T)
    assert torch.equal(make_dense(SparseRows.join([rows, rows])), torch.cat([expected, expected]))
    chosen = torch.tensor([True, False, True])
    assert torch.equal(make_dense(rows[chosen]), expected[chosen])
    factors = torch.tensor([0, 1, 0, 0, 0, 2.0, 0, 0.5, 0, 0])
    assert torch.equal(make_dense(rows.weigh_columns(factors)), expected[:, [1, 5, 7]] * torch.tensor([1, 2.0, 0.5]))
    assert torch.equal(make_dense(rows.weigh_columns(torch.zeros(10))), torch.zeros(3, 0))
    lengths = expected.norm(dim=1, keepdim=True).clamp_min(1e-9)
    torch.testing.assert_close(make_dense(rows.normalize()), expected / lengths)


def test_the_gradient_is_that_of_the_dense_product() -> None:
    rows, weight = SparseRows.from_padded(COLUMNS, VALUES, 10), torch.randn(10, CLASSES, requires_grad=True)
    (SparseProduct.apply(rows, weight) ** 2).sum().backward()
    gradient, weight.grad = weight.grad, None
    ((make_dense(rows) @ weight) ** 2).sum().backward()
    torch.testing.assert_close(gradient, weight.grad)


def test_probabilities_are_those_of_logistic_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_solver, "MAX_SPARSE_ITERATIONS", 200)
    training, held_out = draw_texts(600), draw_texts(300, seed=1)
    assert isinstance(training.features, SparseRows)
    assert isinstance(held_out.features, SparseRows)
    loss = HeadLoss(losses.build_terms(CrossEntropy(name="cross-entropy")), None)
    solved = solve_head(training, held_out, loss, CLASSES)
    assert solved.rarity is not None
    fitted, features = (
        make_dense(replace(rows, values=rows.values * solved.rarity[rows.columns]).normalize())
        for rows in (training.features, held_out.features)
    )
    reference = LogisticRegression(C=1 / solved.penalty, tol=1e-8, max_iter=5000).fit(fitted, training.targets)
    assert solved.bias is not None
    outputs = features @ solved.weight.T + solved.bias
    np.testing.assert_allclose(outputs.softmax(1).numpy(), reference.predict_proba(features), atol=5e-3)


def test_a_word_of_one_text_alone_has_no_weight() -> None:
    training = draw_texts(200)
    assert isinstance(training.features, SparseRows)
    last = torch.tensor([[WIDTH - 1]])
    wide = SparseRows.join([training.features, SparseRows.from_padded(last + 1, torch.ones(1, 1), WIDTH + 1)])
    wide = SparseRows(wide.columns, wide.values, wide.counts, WIDTH + 1)
    targets = torch.cat([training.targets, torch.tensor([0])])
    loss = HeadLoss(losses.build_terms(CrossEntropy(name="cross-entropy")), None)
    solved = solve_head(HeadFeatures(wide, targets), HeadFeatures(wide, targets), loss, CLASSES)
    assert not solved.weight[:, WIDTH].any()
    assert solved.weight.isfinite().all()


@pytest.mark.parametrize("case", ["nothing in common", "empty", "no labels"])
def test_odd_texts_give_finite_weights(case: str) -> None:
    columns = torch.arange(6)[:, None] if case == "nothing in common" else torch.zeros(6, 1, dtype=torch.int64)
    values = torch.ones(6, 1) if case != "empty" else torch.zeros(6, 1)
    targets = torch.full((6,), NO_LABEL) if case == "no labels" else torch.arange(6) % CLASSES
    samples = HeadFeatures(SparseRows.from_padded(columns, values, 10), targets)
    loss = HeadLoss(losses.build_terms(CrossEntropy(name="cross-entropy")), None, partial=True)
    solved = solve_head(samples, samples, loss, CLASSES)
    assert solved.bias is not None
    assert solved.weight.isfinite().all()
    assert solved.bias.isfinite().all()
