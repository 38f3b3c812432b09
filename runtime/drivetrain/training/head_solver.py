"""Finds the weights of a linear model with the smallest loss on fixed features, for heads and simple models.

The loss of a linear model is a convex function of its weights, so it has a single minimum. L-BFGS reaches it (Liu &
Nocedal 1989); a few epochs of steps do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL
from drivetrain.training.losses import HeadLoss
from drivetrain.training.optimizer import unhook
from drivetrain.training.sparse_rows import SparseProduct, SparseRows

PENALTIES = (10_000.0, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
"""Factors of half the squared weights of standardized features, added to the summed losses: 1 / C of scikit-learn."""
SPARSE_PENALTIES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Penalties for sparse rows of length 1."""
ROUNDING_SHARE = 1e-6
"""Deviations below this share of a feature's largest value, or of a usual feature's deviation, are rounding errors."""
MAX_WORSE_IN_A_ROW = 2
"""Number of penalties in a row without a new best validation loss after which no smaller penalty is tried."""
MAX_ITERATIONS, MAX_SPARSE_ITERATIONS = 100, 25
"""L-BFGS iterations for each penalty, from the solution of the last one; 15 sparse ones were enough for 4,000 texts."""
HISTORY, SPARSE_HISTORY = 20, 5
"""Number of earlier gradients that L-BFGS keeps."""
CHUNK_VALUES = 1 << 24
"""Number of feature values in one computation of outputs and gradients."""

Matrix = Tensor | SparseRows
"""Features (N, width) float32."""


def count_bytes(features: Matrix) -> int:
    """Count the bytes of features."""
    if isinstance(features, Tensor):
        return features.nbytes
    return features.columns.nbytes + features.values.nbytes + features.counts.nbytes


@dataclass(frozen=True)
class HeadFeatures:
    """Inputs and targets of a head."""

    features: Matrix
    targets: Tensor
    """(N,) classes, or (N, outputs)."""

    def drop_unlabelled(self, loss: HeadLoss) -> HeadFeatures:
        """Return only the samples that have a class."""
        if not loss.partial or self.targets.ndim > 1:
            return self
        labelled = self.targets != NO_LABEL
        return HeadFeatures(self.features[labelled], self.targets[labelled])


@dataclass(frozen=True)
class Solution:
    """A solved head."""

    weight: Tensor
    """(outputs, width), for features that are not scaled."""
    bias: Tensor | None
    """(outputs,)."""
    penalty: float
    training_loss: float
    validation_loss: float
    tried_penalties: int = 0
    rarity: Tensor | None = None
    """For sparse features, the factor of each column, (width,), applied before each row is divided by its length."""


class Standardization:
    """Scales features to mean 0 and deviation 1: the penalty treats them alike, and L-BFGS needs fewer iterations.

    Args:
        features: features of the training samples.
        has_bias: whether the layer has a bias; without it nothing can undo a shift, so features are only divided.
    """

    def __init__(self, features: Matrix, *, has_bias: bool = True) -> None:
        assert isinstance(features, Tensor)
        self.scales = _measure_scale(features)
        self.mean = features.mean(dim=0) if has_bias else torch.zeros_like(self.scales)

    def scale(self, features: Matrix) -> Matrix:
        """Return the standardized features."""
        assert isinstance(features, Tensor)
        return (features - self.mean) / self.scales

    def restore(self, solution: Solution) -> Solution:
        """Return the solution for features that are not standardized."""
        weight = solution.weight / self.scales
        bias = None if solution.bias is None else solution.bias - weight @ self.mean
        return replace(solution, weight=weight, bias=bias)


class RarityScaling:
    """TF-IDF: columns used in few rows count more, columns used in too few rows are skipped, all rows have length 1."""

    def __init__(self, features: Matrix) -> None:
        assert isinstance(features, SparseRows)
        self.rarity = features.measure_rarity()

    def scale(self, features: Matrix) -> Matrix:
        """Return the used columns, with rows scaled to length 1."""
        assert isinstance(features, SparseRows)
        return features.weigh_columns(self.rarity).normalize()

    def restore(self, solution: Solution) -> Solution:
        """Return the solution for all columns; their rows are scaled as here."""
        weight = torch.zeros(len(solution.weight), len(self.rarity), device=self.rarity.device)
        weight[:, self.rarity != 0] = solution.weight
        return replace(solution, weight=weight, rarity=self.rarity)


Scaling = Standardization | RarityScaling
"""How features are scaled before a linear model is fitted to them."""


def solve_head(
    training: HeadFeatures,
    held_out: HeadFeatures,
    loss: HeadLoss,
    outputs: int,
    *,
    has_bias: bool = True,
    has_time: Callable[[], bool] = lambda: True,
) -> Solution:
    """Find the weights with the smallest loss plus penalty, for the penalty with the smallest validation loss.

    Args:
        training: samples to fit.
        held_out: validation samples that choose the penalty.
        loss: loss of the head, with its class weights.
        outputs: number of outputs of the head.
        has_bias: whether the layer has a bias; without a bias, features are scaled but not shifted.
        has_time: function that returns whether there is time for another penalty.
    """
    # Measured over all texts, so that heads share it even if each has labels for different texts.
    rarity = RarityScaling(training.features) if isinstance(training.features, SparseRows) else None
    training, held_out = training.drop_unlabelled(loss), held_out.drop_unlabelled(loss)
    scaling: Scaling = rarity or Standardization(training.features, has_bias=has_bias)
    fitted = replace(training, features=scaling.scale(training.features))
    validated = replace(held_out, features=scaling.scale(held_out.features))
    best: Solution | None = None
    worse_in_a_row = tried = 0
    for solution in solve_path(fitted, loss, outputs, SPARSE_PENALTIES if rarity else PENALTIES, has_bias=has_bias):
        with torch.no_grad():
            validation_loss = _sum_loss(validated, loss, solution.weight.T, solution.bias)
        tried += 1
        worse_in_a_row += 1
        # Without labelled validation samples, the strongest penalty wins.
        if best is None or validation_loss < best.validation_loss:
            best = replace(solution, validation_loss=validation_loss)
            worse_in_a_row = 0
        if worse_in_a_row == MAX_WORSE_IN_A_ROW or not has_time():
            break
    assert best is not None
    return scaling.restore(replace(best, tried_penalties=tried))


def solve_path(
    samples: HeadFeatures,
    loss: HeadLoss,
    outputs: int,
    penalties: Sequence[float],
    *,
    has_bias: bool = True,
) -> Iterator[Solution]:
    """Yield the solution for each penalty, in units of scaled features; each search starts from the last solution."""
    features, device = samples.features, samples.targets.device
    width = features.width if isinstance(features, SparseRows) else features.shape[1]
    weight = torch.zeros(width, outputs, device=device)
    bias = torch.zeros(outputs, device=device) if has_bias else None
    for penalty in penalties:
        weight, bias, training_loss = _minimize(samples, loss, weight, bias, penalty)
        yield Solution(weight.T, bias, penalty, training_loss, training_loss)


def _measure_scale(features: Tensor) -> Tensor:
    """Measure the standard deviation of each feature, (width,); infinite if it is only rounding noise.

    Networks have units that differ between samples only in the last digit. Scaled up to 1, this noise would get weights
    of 1e30 and gradients that are not finite.
    """
    if not len(features):
        return features.new_full(features.shape[1:], torch.inf)
    scale = features.std(dim=0, correction=0)
    noise = ROUNDING_SHARE * torch.maximum(scale.square().mean().sqrt(), features.abs().amax(dim=0))
    return torch.where(scale > noise, scale, torch.inf)


def _minimize(
    samples: HeadFeatures, loss: HeadLoss, weight: Tensor, bias: Tensor | None, penalty: float
) -> tuple[Tensor, Tensor | None, float]:
    """Minimize the loss plus penalty from this weight (width, outputs) and bias; returns them and the loss alone."""
    is_sparse = isinstance(samples.features, SparseRows)
    units = _choose_units(samples.features, penalty * weight.shape[1])
    in_units = (weight / units).requires_grad_()
    biases = [] if bias is None else [bias.clone().requires_grad_()]
    optimizer = unhook(torch.optim.LBFGS)(
        [in_units, *biases],
        max_iter=MAX_SPARSE_ITERATIONS if is_sparse else MAX_ITERATIONS,
        history_size=SPARSE_HISTORY if is_sparse else HISTORY,
        tolerance_grad=1e-5,
        tolerance_change=1e-8,
        line_search_fn="strong_wolfe",
    )
    factor = penalty / (2 * max(1, len(samples.features)))

    def compute_loss() -> float:
        optimizer.zero_grad()
        weight = (in_units.detach() * units).requires_grad_()
        penalized = factor * weight.square().sum()
        penalized.backward()  # type: ignore[no-untyped-call]
        total = float(penalized.detach())
        # In pieces, so that the outputs of all samples are never in memory at once.
        for summand in _yield_loss(samples, loss, weight, *biases):
            summand.backward()  # type: ignore[no-untyped-call]
            total += float(summand.detach())
        assert weight.grad is not None
        in_units.grad = weight.grad * units
        return total

    optimizer.step(compute_loss)
    weight = in_units.detach() * units
    bias = biases[0].detach() if biases else None
    with torch.no_grad():
        training_loss = _sum_loss(samples, loss, weight, bias)
    return weight, bias, training_loss


def _choose_units(features: Matrix, penalty: float) -> Tensor:
    """Choose the units of weights, (width, 1), in which the loss is about equally curved in all directions.

    A column used in few rows changes the loss much less than a column used in most rows. Without these units, L-BFGS
    needs four times as many steps.
    """
    if isinstance(features, Tensor):
        return torch.ones(1, 1, device=features.device)  # standardized
    squares = torch.zeros(features.width, device=features.values.device)
    squares.index_add_(0, features.columns, features.values.square())
    return (max(1, len(features)) / (squares + penalty)).sqrt()[:, None]


def multiply(features: Matrix, weight: Tensor) -> Iterator[Tensor]:
    """Yield the products of features with a weight (width, outputs); for dense features, in groups of rows."""
    if isinstance(features, SparseRows):
        yield SparseProduct.apply(features, weight.contiguous())  # type: ignore[no-untyped-call]
        return
    rows = max(1, CHUNK_VALUES // max(1, features.shape[1]))
    for start in range(0, len(features), rows):
        yield features[start : start + rows] @ weight


def _sum_loss(samples: HeadFeatures, loss: HeadLoss, weight: Tensor, bias: Tensor | None) -> float:
    """Compute the mean loss of the samples."""
    return sum(map(float, _yield_loss(samples, loss, weight, bias)))


def _yield_loss(samples: HeadFeatures, loss: HeadLoss, weight: Tensor, bias: Tensor | None = None) -> Iterator[Tensor]:
    """Yield summands of the mean loss of the samples, each a scalar."""
    total = loss.weights(samples.targets).sum(dtype=torch.float64).clamp_min(torch.finfo(torch.float32).tiny)
    start = 0
    for products in multiply(samples.features, weight):
        end = start + len(products)
        outputs = products if bias is None else products + bias
        yield loss.weighted_terms(outputs, samples.targets[start:end]).sum() / total
        start = end
