"""Losses against torch's own, and parts against the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL, Head, mark_partial
from drivetrain.job.train import BinaryCrossEntropy, CrossEntropy, Focal, Huber, MeanSquaredError
from drivetrain.training import losses

HEAD = Head("", classes=("a", "b", "c"))


def compute_loss(objective: losses.Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    return objective(outputs, {"": targets}, objective.denominators({"": targets}))


def make_objective(spec: losses.Spec, weights: Tensor | None = None, head: Head = HEAD) -> losses.Objective:
    return losses.Objective({"": head}, {"": losses.HeadLoss(losses.build_terms(spec), weights)})


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.2, 1.0, 3.0])])
def test_cross_entropy_is_torchs(smoothing: float, weights: Tensor | None) -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(20, 3), torch.randint(0, 3, (20,))
    expected = F.cross_entropy(outputs, targets, weight=weights, label_smoothing=smoothing)
    loss = compute_loss(
        make_objective(CrossEntropy(name="cross-entropy", label_smoothing=smoothing), weights), outputs, targets
    )
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_with_class_weights_are_torchs(smoothing: float) -> None:
    """As mixup makes them. Each class has its weight; divided by the mean weight, as torch does for class indices."""
    torch.manual_seed(0)
    outputs, weights = torch.randn(20, 3), torch.tensor([0.2, 1.0, 3.0])
    one, other = (F.one_hot(torch.randint(0, 3, (20,)), 3).float() for _ in range(2))
    targets = 0.7 * one + 0.3 * other
    expected = F.cross_entropy(outputs, targets, weight=weights, label_smoothing=smoothing, reduction="sum")
    objective = make_objective(CrossEntropy(name="cross-entropy", label_smoothing=smoothing), weights)
    torch.testing.assert_close(compute_loss(objective, outputs, targets), expected / (targets @ weights).sum())
    # With whole classes it is the loss that torch has for their indices.
    indices = F.cross_entropy(outputs, one.argmax(1), weight=weights, label_smoothing=smoothing)
    torch.testing.assert_close(compute_loss(objective, outputs, one), indices)


@pytest.mark.parametrize(
    "targets", [torch.tensor([0, 2, 2, 1]), torch.eye(3)[[0, 2, 2, 1]] * 0.8 + 0.2 / 3], ids=["hard", "soft"]
)
def test_focal_weighs_classes(targets: Tensor) -> None:
    torch.manual_seed(0)
    outputs, weights = torch.randn(4, 3), torch.tensor([0.2, 1.0, 3.0])
    p, soft = outputs.softmax(dim=1), losses.to_probabilities(targets, 3, torch.float32)
    expected = (-weights * soft * (1 - p) ** 2 * p.log()).sum() / (soft @ weights).sum()
    torch.testing.assert_close(
        compute_loss(make_objective(Focal(name="focal", gamma=2.0), weights), outputs, targets), expected
    )


def test_soft_targets() -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(8, 3), torch.rand(8, 3).softmax(dim=1)
    expected = -(targets * outputs.log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(
        compute_loss(make_objective(CrossEntropy(name="cross-entropy")), outputs, targets), expected
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_by_its_formula(gamma: float) -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(30, 3), torch.randint(0, 3, (30,))
    p = outputs.softmax(dim=1)[torch.arange(30), targets]
    expected = (-((1 - p) ** gamma) * p.log()).mean()
    torch.testing.assert_close(
        compute_loss(make_objective(Focal(name="focal", gamma=gamma)), outputs, targets), expected
    )


@pytest.mark.parametrize("gamma", [0.01, 0.5, 0.99, 1.0, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_focal_has_a_gradient_where_a_sample_is_certain(gamma: float, smoothing: float) -> None:
    outputs = torch.tensor([[200.0, -200.0, 0.0], [-200.0, 200.0, 0.0], [0.1, 0.2, 0.3]], requires_grad=True)
    loss = compute_loss(
        make_objective(Focal(name="focal", gamma=gamma, label_smoothing=smoothing)), outputs, torch.zeros(3).long()
    )
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert gradient[2].abs().min() > 0


def test_binary_focal_weights_class_one_with_alpha() -> None:
    head = Head("", classes=("no", "yes"))
    torch.manual_seed(0)
    outputs, targets = torch.randn(30, 2), torch.randint(0, 2, (30,))
    p = outputs.softmax(dim=1)[torch.arange(30), targets]
    alpha = torch.where(targets == 1, 0.25, 0.75)
    expected = (-alpha * (1 - p) ** 2 * p.log()).mean()
    torch.testing.assert_close(
        compute_loss(make_objective(Focal(name="focal", alpha=0.25), head=head), outputs, targets), expected
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (MeanSquaredError(name="mse"), lambda o, t: F.mse_loss(o, t)),
        (Huber(name="huber", delta=0.5), lambda o, t: F.huber_loss(o, t, delta=0.5)),
        (BinaryCrossEntropy(name="bce"), lambda o, t: F.binary_cross_entropy_with_logits(o, t)),
    ],
)
def test_other_losses_are_torchs(spec: losses.Spec, expected: object) -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(12, 3), torch.rand(12, 3)
    torch.testing.assert_close(compute_loss(make_objective(spec), outputs, targets), expected(outputs, targets))


@pytest.mark.parametrize("size", [1, 2, 4, 8, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_micro_batches_add_up_to_the_batch(size: int, dtype: torch.dtype) -> None:
    """With class weights and an uneven last part, gradients of parts sum to the gradient of the whole."""
    torch.manual_seed(0)
    weight = torch.randn(4, 3, dtype=dtype, requires_grad=True)
    inputs, targets = torch.randn(13, 4, dtype=dtype), torch.randint(0, 3, (13,))
    objective = make_objective(CrossEntropy(name="cross-entropy", label_smoothing=0.1), torch.tensor([0.3, 1.0, 2.5]))
    over = objective.denominators({"": targets})
    (full,) = torch.autograd.grad(objective(inputs @ weight, {"": targets}, over), weight)
    total = torch.zeros_like(full)
    for start in range(0, 13, size):
        part = {"": targets[start : start + size]}
        total += torch.autograd.grad(objective(inputs[start : start + size] @ weight, part, over), weight)[0]
    relative = float((total - full).norm() / full.norm())
    assert relative <= (1e-5 if dtype == torch.float32 else 1e-12)


def test_balanced_weights() -> None:
    weights = losses.balance_classes(torch.tensor([0, 0, 0, 1]), 3)
    torch.testing.assert_close(weights, torch.tensor([4 / 9, 4 / 3, 0.0]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_of_labels_are_torchs_pos_weight(smoothing: float) -> None:
    torch.manual_seed(0)
    outputs, targets, weights = torch.randn(20, 3), torch.randint(0, 2, (20, 3)).float(), torch.tensor([5.0, 1.0, 0.5])
    head = Head("", classes=("a", "b", "c"), several=True)
    spec = BinaryCrossEntropy(name="bce", label_smoothing=smoothing)
    objective = losses.build_objective(spec, {"": head}, {"": targets}, {"c": 0.5, "a": 5.0})
    soft = targets * (1 - smoothing) + smoothing / 2
    expected = F.binary_cross_entropy_with_logits(outputs, soft, pos_weight=weights)
    torch.testing.assert_close(compute_loss(objective, outputs, targets), expected)


def test_named_weights_are_those_of_their_classes() -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(20, 3), torch.randint(0, 3, (20,))
    objective = losses.build_objective(None, {"": HEAD}, {"": targets}, {"c": 5.0})
    expected = F.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 1.0, 5.0]))
    torch.testing.assert_close(compute_loss(objective, outputs, targets), expected)


def test_balanced_labels() -> None:
    """Negatives for each positive; a label that is never or always true is not weighted."""
    weights = losses.balance_labels(torch.tensor([[1.0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]))
    torch.testing.assert_close(weights, torch.tensor([3.0, 1.0, 1.0]))


def heads_with_gaps(count: int = 24) -> tuple[dict[str, Head], dict[str, Tensor], dict[str, Tensor]]:
    """Make two heads, outputs and targets; some samples lack a label for one head, and three only have one for the second."""
    torch.manual_seed(0)
    heads = {name: Head(name, ("a", "b", "c"), weight=weight) for name, weight in (("one", 0.3), ("two", 1.0))}
    targets = {name: torch.randint(0, 3, (count,)) for name in heads}
    targets["one"][::5] = NO_LABEL
    targets["two"][1:7] = NO_LABEL
    outputs = {name: torch.randn(count, 3, dtype=torch.float64, requires_grad=True) for name in heads}
    return mark_partial(heads, [targets]), outputs, targets


@pytest.mark.parametrize("weighting", ["none", "balanced", {"a": 3.0}], ids=["plain", "balanced", "numbers"])
@pytest.mark.parametrize(
    "spec", [CrossEntropy(name="cross-entropy", label_smoothing=0.1), Focal(name="focal", gamma=2.0)]
)
def test_a_sample_without_a_label_counts_for_the_other_heads_alone(spec: losses.Spec, weighting: Any) -> None:
    """As if each head were trained with the samples that have its label; and in any cut into micro-batches."""
    heads, outputs, targets = heads_with_gaps()
    objective = losses.build_objective(spec, heads, targets, weighting)
    assert not any(loss.is_unweighted for loss in objective.losses.values())
    loss = objective(outputs, targets, objective.denominators(targets))
    head_losses = []
    for name, head in heads.items():
        rows = targets[name] != NO_LABEL
        plain_heads = {"": replace(head, name="", partial=False)}
        head_objective = losses.build_objective(spec, plain_heads, {"": targets[name][rows]}, weighting)
        head_targets = {"": targets[name][rows]}
        head_losses.append(head_objective(outputs[name][rows], head_targets, head_objective.denominators(head_targets)))
    torch.testing.assert_close(loss, sum(head_losses))
    whole_gradient = torch.autograd.grad(loss, [*outputs.values()])
    assert (whole_gradient[0][::5] == 0).all()
    for size in (1, 3, 10):
        parts = range(0, 24, size)
        sums = [objective.denominators({k: y[i : i + size] for k, y in targets.items()}) for i in parts]
        over = {name: torch.stack([one[name] for one in sums]).sum() for name in heads}
        shares = [
            objective(
                {k: x[i : i + size] for k, x in outputs.items()}, {k: y[i : i + size] for k, y in targets.items()}, over
            )
            for i in parts
        ]
        torch.testing.assert_close(torch.stack(shares).sum(), loss)
        for gradient, expected in zip(
            torch.autograd.grad(torch.stack(shares).sum(), [*outputs.values()]), whole_gradient, strict=True
        ):
            torch.testing.assert_close(gradient, expected)


def test_a_head_without_any_label_in_a_batch_adds_nothing() -> None:
    heads, outputs, targets = heads_with_gaps()
    objective = losses.build_objective(None, heads, targets, "none")
    targets["two"][:] = NO_LABEL
    loss = objective(outputs, targets, objective.denominators(targets))
    loss.backward()
    assert torch.isfinite(loss)
    assert (outputs["two"].grad == 0).all()
    assert (outputs["one"].grad != 0).any()
