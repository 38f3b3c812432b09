"""The simple models that a network is compared with. Each gives outputs as the network does: scores of classes, or numbers
in their scale, so that one evaluation serves all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL, Head, Split
from drivetrain.data.stateless_random import Ids

if TYPE_CHECKING:
    from drivetrain.baselines.sample_features import Features, Matrix

MAX_STEPS = 200
"""Of the solver of logistic regression; what has not converged by then hardly changes."""
PASSES = 5
"""Of stochastic gradient descent over the samples. On 12,800 texts of 41 classes they take 0.6 s, and 50 steps of L-BFGS 3.4 s,
and have 0.713 and 0.699 right.
"""
MIN_PROBABILITY = 1e-6
"""The probability of a class that a model has never seen: its logarithm must be finite."""

Predict = Callable[[Split, Ids], Tensor]
"""Outputs (N, outputs) of these samples."""
Array = npt.NDArray[Any]


def fit_constant(targets: Tensor, head: Head) -> Predict:
    """Return the same answer for every sample: shares of the classes, or the mean of the numbers, in training."""
    if not head.classes:
        answer = targets.float().mean(0)
    elif targets.ndim == 2:
        shares = targets.float().mean(0)
        answer = _log_odds(shares) if head.several else shares.clamp_min(MIN_PROBABILITY).log()
    else:
        counts = torch.bincount(targets[targets != NO_LABEL], minlength=len(head.classes)).float()
        answer = (counts / counts.sum().clamp_min(1)).clamp_min(MIN_PROBABILITY).log()
    return lambda split, ids: answer.expand(len(ids), -1)


def fit_linear(features: Features, split: Split, ids: Ids, targets: Tensor, head: Head, seed: int) -> Predict:
    """Logistic regression, or ridge regression for numbers."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    ids, targets = _drop_unlabelled(ids, targets)
    columns = features.read_linear(split, ids)
    # Statistics and pixels of different sizes would take the solver thousands of steps. Sparse columns are alike already,
    # and would become dense.
    scaling = [] if hasattr(columns, "indptr") else [StandardScaler()]
    if not head.classes:
        ridge = make_pipeline(*scaling, Ridge(alpha=1.0, random_state=seed)).fit(columns, targets.numpy())
        return lambda other, numbers: _as_numbers(ridge.predict(features.read_linear(other, numbers)))

    def create_logistic() -> Any:
        if features.has_unit_rows:
            strength = 1 / (features.looseness * len(ids))
            return SGDClassifier(loss="log_loss", alpha=strength, max_iter=PASSES, tol=None, random_state=seed)
        return make_pipeline(*scaling, LogisticRegression(C=features.looseness, max_iter=MAX_STEPS, random_state=seed))

    with warnings.catch_warnings(category=ConvergenceWarning, action="ignore"):
        return _fit_classifiers(create_logistic, columns, targets, head, features.read_linear)


def fit_trees(features: Features, split: Split, ids: Ids, targets: Tensor, head: Head, seed: int) -> Predict:
    """Boosted trees with scikit-learn's defaults."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    ids, targets = _drop_unlabelled(ids, targets)
    columns, categories = features.read_trees(split, ids)

    def read(other: Split, numbers: Ids) -> Matrix:
        return features.read_trees(other, numbers)[0]

    def create_trees(kind: Any) -> Any:
        return kind(categorical_features=categories or None, random_state=seed)

    if not head.classes:
        models = [
            create_trees(HistGradientBoostingRegressor).fit(columns, targets[:, column].numpy())
            for column in range(targets.shape[1])
        ]
        return lambda other, numbers: _as_numbers(
            np.stack([model.predict(read(other, numbers)) for model in models], axis=1)
        )
    return _fit_classifiers(lambda: create_trees(HistGradientBoostingClassifier), columns, targets, head, read)


def _fit_classifiers(
    create: Callable[[], Any], columns: Matrix, targets: Tensor, head: Head, read: Callable[[Split, Ids], Matrix]
) -> Predict:
    """One classifier for exclusive classes, one a label for labels that can be true together."""
    if head.several:
        models = [_fit_label(create, columns, targets[:, label].numpy()) for label in range(len(head.classes))]

        def predict_labels(split: Split, ids: Ids) -> Tensor:
            rows = read(split, ids)
            return _log_odds(torch.stack([model(rows) for model in models], dim=1))

        return predict_labels
    classes = (targets.argmax(1) if targets.ndim == 2 else targets).numpy()
    if len(np.unique(classes)) < 2:
        return fit_constant(torch.from_numpy(classes), head)
    model = create().fit(columns, classes)

    def predict_classes(split: Split, ids: Ids) -> Tensor:
        probabilities = np.full((len(ids), len(head.classes)), MIN_PROBABILITY)
        probabilities[:, model.classes_] = model.predict_proba(read(split, ids))
        return torch.from_numpy(np.log(np.maximum(probabilities, MIN_PROBABILITY))).float()

    return predict_classes


def _fit_label(create: Callable[[], Any], columns: Matrix, truth: Array) -> Callable[[Matrix], Tensor]:
    """Return the probability that one label is true; its share if training has it in all samples or in none."""
    present = truth >= 0.5
    if present.all() or not present.any():
        return lambda rows: torch.full((rows.shape[0],), float(present.mean()))
    model = create().fit(columns, present)
    return lambda rows: torch.from_numpy(model.predict_proba(rows)[:, 1]).float()


def _drop_unlabelled(ids: Ids, targets: Tensor) -> tuple[Ids, Tensor]:
    """Return the samples that have a label for this head."""
    if targets.ndim == 2 or targets.is_floating_point():
        return ids, targets
    known = (targets != NO_LABEL).numpy()
    return ids[known], targets[torch.from_numpy(known)]


def _log_odds(shares: Tensor) -> Tensor:
    bounded = shares.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return (bounded / (1 - bounded)).log()


def _as_numbers(values: Array) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float32).reshape(len(values), -1))
