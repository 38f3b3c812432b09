"""Labels that are probably wrong: those that were planted are found, and few others."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from drivetrain.inference import suspicious_labels
from drivetrain.inference.suspicious_labels import LabelReview, SuspiciousLabel, find_suspicious
from tests.messages import says, says_only


@pytest.mark.parametrize("share", [0.05])
def test_planted_labels_are_found(share: float) -> None:
    """Of real digits, judged by a small kernel model over folds: nearly all that are flagged are planted, and most of them."""
    images, truth = load_digits(return_X_y=True)
    images, truth = images[:600], truth[:600]
    draw = np.random.default_rng(0)
    planted = set(draw.choice(len(truth), round(share * len(truth)), replace=False).tolist())
    labels = truth.copy()
    rows = sorted(planted)
    labels[rows] = (labels[rows] + draw.integers(1, 10, len(rows))) % 10
    model = make_pipeline(Nystroem(gamma=0.03, n_components=100, random_state=0), LogisticRegression(C=3, max_iter=100))
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    probabilities = cross_val_predict(model, images / 16, labels, cv=folds, method="predict_proba")
    suspicious = find_suspicious(probabilities, labels)
    right = [truth[row] == suggestion for row, suggestion in suspicious if row in planted]
    assert len(right) > 0.9 * len(suspicious)
    assert len(right) > 0.5 * len(planted)
    assert np.mean(right) > 0.9


def test_it_is_the_confident_joint_of_the_paper() -> None:
    """Against the definition, sample by sample (Northcutt et al. 2021, equations 1 and 2)."""
    draw = np.random.default_rng(3)
    probabilities = draw.dirichlet(np.ones(4), 300)
    labels = draw.integers(0, 4, 300)
    thresholds = [
        np.mean([p[k] for p, label in zip(probabilities, labels, strict=True) if label == k]) for k in range(4)
    ]
    expected = set()
    for row, (p, label) in enumerate(zip(probabilities, labels, strict=True)):
        confident = [k for k in range(4) if p[k] >= thresholds[k]]
        if confident and (guess := max(confident, key=lambda k: p[k])) != label:
            expected.add((row, guess))
    assert set(find_suspicious(probabilities, labels)) == expected


def test_sure_models_that_agree_with_every_label_suspect_none() -> None:
    labels = np.arange(60) % 3
    probabilities = np.full((60, 3), 0.02)
    probabilities[np.arange(60), labels] = 0.96
    assert find_suspicious(probabilities, labels) == []


def test_a_class_without_samples_is_never_suggested_and_the_clearest_comes_first() -> None:
    labels = np.array([0] * 10 + [1] * 10)
    probabilities = np.tile([0.8, 0.1, 0.1], (20, 1))
    probabilities[10:] = [0.1, 0.8, 0.1]
    probabilities[0] = [0.05, 0.05, 0.9]
    probabilities[1] = [0.02, 0.97, 0.01]
    probabilities[11] = [0.85, 0.1, 0.05]
    assert find_suspicious(probabilities, labels) == [(1, 1), (11, 0)]


def test_the_table_has_all_and_the_terminal_the_first(tmp_path: Path) -> None:
    suspicious = [SuspiciousLabel(f"a.csv row {n}\x1b", "kind", "x", "y", 0.01, 0.9) for n in range(20)]
    path = suspicious_labels.write(tmp_path, suspicious)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[1] == ["a.csv row 0\x1b", "kind", "x", "y", "0.0100", "0.9000"]
    assert len(rows) == 21
    lines = LabelReview(suspicious, 400, 300).describe()
    assert says_only(lines[0], "labels-look-wrong-runs", 20, 400, "5.0", "75.0")
    assert lines[1] == "labels: a.csv row 0\\x1b: kind: x (1%), rather y (90%)"
    assert len(lines) == 2 + suspicious_labels.MAX_SHOWN
    assert "none of 400" in LabelReview([], 400, 390).describe()[0]
    assert says(LabelReview([], 0, 0).describe()[0], "output-exclusive-classes")


def test_classes_that_are_taken_for_each_other_are_named() -> None:
    labels = np.repeat([0, 1, 2, 3], 20)
    predicted = labels.copy()
    predicted[20:26] = 2
    predicted[40:43] = 1
    predicted[60:62] = 0  # two of forty samples
    pairs = suspicious_labels.find_confused_pairs(predicted, labels, ["cat", "lynx", "puma", "dog"])
    assert len(pairs) == 1
    assert says(LabelReview([], 80, 69, pairs).describe()[1], "labels-hard-apart", "lynx", "puma", 9, 40)
