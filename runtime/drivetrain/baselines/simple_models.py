"""Fits the simple models that are compared with a network.

Their outputs have the form of a network's outputs, scores of classes or scaled numbers, so one evaluation serves all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL, Head, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.training import losses
from drivetrain.training.head_solver import HeadFeatures, Matrix, multiply, solve_path

if TYPE_CHECKING:
    from drivetrain.baselines.sample_features import SampleFeatures

MIN_PROBABILITY = 1e-6
"""Probability of a class that a model has never seen; its logarithm must be finite."""

Predict = Callable[[Split, Ids], Tensor]
"""Function that computes the outputs (N, outputs) of samples."""
Array = npt.NDArray[Any]


def fit_constant(targets: Tensor, head: Head) -> Predict:
    """Fit a constant answer: the shares of the classes, or the mean of the numbers."""
    if not head.classes:
        answer = targets.float().mean(0)
    elif targets.ndim == 2:
        shares = targets.float().mean(0)
        answer = _log_odds(shares) if head.several else shares.clamp_min(MIN_PROBABILITY).log()
    else:
        counts = torch.bincount(targets[targets != NO_LABEL], minlength=len(head.classes)).float()
        answer = (counts / counts.sum().clamp_min(1)).clamp_min(MIN_PROBABILITY).log()
    return lambda split, ids: answer.expand(len(ids), -1)


def fit_linear(features: SampleFeatures, split: Split, ids: Ids, targets: Tensor, head: Head, seed: int) -> Predict:
    """Fit a logistic regression, or a ridge regression for numbers."""
    plain_head = replace(head, class_weights=None, label_smoothing=None)
    loss = losses.build_objective(None, {"": plain_head}, {}, "none").losses[""]
    ids, targets = _drop_unlabelled(ids, targets)
    if not len(ids):
        return fit_constant(targets, head)
    columns = features.read_linear(split, ids)
    scaling = features.fit_scaling(columns)

    def scale(matrix: Matrix) -> Matrix:
        return scaling.scale(matrix) if scaling else matrix

    samples = HeadFeatures(scale(columns), targets)
    solution = next(solve_path(samples, loss, head.outputs, [_choose_penalty(features.penalty, head)]))

    def predict(split: Split, ids: Ids) -> Tensor:
        rows = scale(features.read_linear(split, ids))
        products = torch.cat([*multiply(rows, solution.weight.T)])
        return products if solution.bias is None else products + solution.bias

    return predict


def _choose_penalty(penalty: float, head: Head) -> float:
    """Choose the penalty that gives the same solution as `penalty`, which is 1 / C or alpha, in scikit-learn."""
    if head.several:
        return penalty / head.outputs  # the loss is the mean over the labels
    if not head.classes:
        return 2 * penalty / head.outputs  # here the squares of weights count half, in scikit-learn in full
    return 2 * penalty if head.outputs == 2 else penalty  # scikit-learn has one row of weights for two classes


def fit_trees(features: SampleFeatures, split: Split, ids: Ids, targets: Tensor, head: Head, seed: int) -> Predict:
    """Fit boosted trees with scikit-learn's defaults."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    ids, targets = _drop_unlabelled(ids, targets)
    columns, categories = features.read_trees(split, ids)

    def read(split: Split, ids: Ids) -> Array:
        return features.read_trees(split, ids)[0]

    def create_trees(kind: Any) -> Any:
        return kind(categorical_features=categories or None, random_state=seed)

    if not head.classes:
        models = [create_trees(HistGradientBoostingRegressor).fit(columns, column.numpy()) for column in targets.T]
        return lambda split, ids: _as_numbers(np.stack([model.predict(read(split, ids)) for model in models], axis=1))
    return _fit_classifiers(lambda: create_trees(HistGradientBoostingClassifier), columns, targets, head, read)


def _fit_classifiers(
    create: Callable[[], Any], columns: Array, targets: Tensor, head: Head, read: Callable[[Split, Ids], Array]
) -> Predict:
    """Fit one classifier for exclusive classes, or one for each label if labels can be true together."""
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


def _fit_label(create: Callable[[], Any], columns: Array, truth: Array) -> Callable[[Array], Tensor]:
    """Fit the probability of one label; it is constant if all training samples have the label, or none."""
    present = truth >= 0.5
    if present.all() or not present.any():
        return lambda rows: torch.full((rows.shape[0],), float(present.mean()))
    model = create().fit(columns, present)
    return lambda rows: torch.from_numpy(model.predict_proba(rows)[:, 1]).float()


def _drop_unlabelled(ids: Ids, targets: Tensor) -> tuple[Ids, Tensor]:
    """Drop the samples without a label for this head."""
    if targets.ndim == 2 or targets.is_floating_point():
        return ids, targets
    has_label = targets != NO_LABEL
    return ids[has_label.numpy()], targets[has_label]


def _log_odds(shares: Tensor) -> Tensor:
    bounded = shares.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return (bounded / (1 - bounded)).log()


def _as_numbers(values: Array) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float32).reshape(len(values), -1))
