"""Solves the heads of a frozen network on its features, in place of the epochs in which nothing else is trained.

Layers that are unfrozen later go on from there: first probe, then fine-tune (Kumar et al. 2022).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from drivetrain.data.dataset import NO_LABEL, Split
from drivetrain.job.formatting import format_metric
from drivetrain.models import forward
from drivetrain.system.fault_points import fault_point
from drivetrain.training.evaluation import validation
from drivetrain.training.losses import HeadLoss
from drivetrain.training.run import Run


def announce_solving(run: Run) -> None:
    """Say whether the heads are solved, and why not where only they are trained at first."""
    if run.solves_heads:
        run.events.add("heads", f"solved in place of {_describe_replaced_epochs(run)} (train.solve_heads)")
    elif run.unsolved_reason and not run.counters.step:
        run.events.add("heads", f"trained step by step, not solved: {run.unsolved_reason}")


def solve_heads(run: Run) -> None:
    """Solve the heads of the run's network, and go to the end of the epochs that this takes the place of."""
    fault_point("solve heads", run)
    began = time.monotonic()
    with run.clock.phase("train"):
        training, held_out = (
            validation.with_smaller_batches(run, "the features", partial(_collect_in_batches, run, split))
            for split in (run.dataset.train, run.dataset.validation)
        )
        collected = time.monotonic()
        solutions = {
            name: solve_head(
                training[name],
                held_out[name],
                run.step.objective.losses[name],
                layer.out_features,
                has_bias=layer.bias is not None,
            )
            for name, layer in run.solved_layers.items()
        }
    loss = sum(run.dataset.heads[name].weight * solution.training_loss for name, solution in solutions.items())
    with run.signals.protect_section(), torch.no_grad():
        for name, layer in run.solved_layers.items():
            layer.weight.copy_(solutions[name].weight)
            if (bias := solutions[name].bias) is not None:
                layer.bias.copy_(bias)
        _pass_replaced_epochs(run)
        assert run.metrics is not None
        run.metrics.write(run.counters.step, run.counters.epoch, {"train/loss": loss})
    seconds = f"{collected - began:.1f} s for the features, {time.monotonic() - collected:.1f} s for the solution"
    run.events.add("heads", f"{'; '.join(map(_describe_solution, solutions.items()))} ({seconds})", run.counters.step)


def _describe_solution(head: tuple[str, Solution]) -> str:
    name, solution = head
    return (
        f"{name + ' ' if name else ''}solved with penalty {solution.penalty:g} of {solution.tried_penalties} tried: loss "
        f"{format_metric(solution.training_loss)}, validation {format_metric(solution.validation_loss)}"
    )


def _describe_replaced_epochs(run: Run) -> str:
    """The epochs that are not trained."""
    later = run.network.unfreezing.epochs
    epochs = later[0] if later else run.job.train.epochs
    return "the epoch" if epochs == 1 else f"the first {epochs} epochs" if later else f"all {epochs} epochs"


def _pass_replaced_epochs(run: Run) -> None:
    """Set the counters to the evaluation at the end of the epochs that were not trained."""
    counters, later = run.counters, run.network.unfreezing.epochs
    counters.solved = True
    counters.samples += len(run.dataset.train)
    if later:
        # The schedule goes by steps: what is unfrozen learns at the rate of its epoch.
        counters.epoch, counters.step = later[0] - 1, later[0] * run.batches.per_epoch
    else:
        counters.step += 1


def _collect_in_batches(run: Run, split: Split, size: int) -> dict[str, HeadFeatures]:
    seen: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: seen.__setitem__(name, inputs[0]))
        for name, layer in run.solved_layers.items()
    ]
    features: dict[str, list[Tensor]] = {name: [] for name in run.solved_layers}
    targets: dict[str, list[Tensor]] = {name: [] for name in run.solved_layers}
    run.model.eval()
    try:
        with forward.without_gradients(run.model):
            for batch, _ in validation.micro_batches(run, split, size):
                run.step.outputs_in_fp32(batch.inputs)
                owners = {name: next(other for other in seen if seen[other] is seen[name]) for name in seen}
                for name in run.solved_layers:
                    targets[name].append(batch.targets[name])
                    if owners[name] == name:
                        features[name].append(seen[name].flatten(0, -2).float())
    finally:
        for handle in handles:
            handle.remove()
    # Outside of inference mode, so that gradients can be computed from them.
    vectors = {name: torch.cat([*parts]).clone() for name, parts in features.items() if parts}
    return {name: HeadFeatures(vectors[owners[name]], torch.cat(parts).clone()) for name, parts in targets.items()}


PENALTIES = (10_000.0, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
"""Factors of half the squared weights of standardized features, beside the sum of the losses: 1 / C of scikit-learn."""
ROUNDING_SHARE = 1e-6
"""Deviations smaller than this part of the feature's largest value, or of a usual feature's deviation, say nothing."""
MAX_WORSE_IN_A_ROW = 2
"""Penalties with a larger validation loss than the best one after which smaller ones are not tried."""
MAX_ITERATIONS = 300
"""Of L-BFGS for each penalty, which starts from the solution of the one before."""
CHUNK_VALUES = 1 << 24
"""Feature values whose outputs and gradients are computed at once."""


@dataclass(frozen=True)
class HeadFeatures:
    """What goes into a head, and what should come out."""

    features: Tensor
    """(N, width) float32."""
    targets: Tensor
    """(N,) classes, or (N, outputs)."""


@dataclass(frozen=True)
class Solution:
    """A solved head."""

    weight: Tensor
    """(outputs, width), for the features as they were given."""
    bias: Tensor | None
    """(outputs,)."""
    penalty: float
    training_loss: float
    validation_loss: float
    tried_penalties: int = 0
    """Number of penalties."""


def solve_head(
    training: HeadFeatures, held_out: HeadFeatures, loss: HeadLoss, outputs: int, *, has_bias: bool = True
) -> Solution:
    """The weights with the smallest loss plus penalty; of the penalties, the one with the smallest validation loss.

    The loss of a linear head is a convex function of its weights, so it has one smallest value, which L-BFGS reaches (Liu
    & Nocedal 1989) and a few epochs of steps do not.

    Args:
        training: what is fitted.
        held_out: what the penalty is chosen by.
        loss: of the head, with its class weights.
        outputs: of the head.
        has_bias: whether the layer has a bias; without one, features are scaled only.
    """
    training, held_out = _drop_unlabelled(training, loss), _drop_unlabelled(held_out, loss)
    # Features of one scale: the penalty treats all alike, and L-BFGS needs fewer iterations. Without a bias nothing can
    # make up for a shift.
    scale = _measure_scale(training.features)
    mean = training.features.mean(dim=0) if has_bias else torch.zeros_like(scale)
    fitted, validated = _standardize(training, mean, scale), _standardize(held_out, mean, scale)
    weight = torch.zeros(outputs, len(scale), device=scale.device, requires_grad=True)
    bias = torch.zeros(outputs, device=scale.device, requires_grad=has_bias)
    best: Solution | None = None
    worse_in_a_row = tried = 0
    # From the strongest penalty to the weakest, so that each solution is near the one before.
    for penalty in PENALTIES:
        training_loss = _minimize(fitted, loss, weight, bias, penalty)
        with torch.no_grad():
            validation_loss = sum(float(part) for part in _loss_parts(validated, loss, weight, bias))
        tried += 1
        worse_in_a_row += 1
        # Without labelled validation samples the strongest penalty is kept.
        if best is None or validation_loss < best.validation_loss:
            original_weight = weight.detach() / scale
            original_bias = bias.detach() - original_weight @ mean if has_bias else None
            best, worse_in_a_row = Solution(original_weight, original_bias, penalty, training_loss, validation_loss), 0
        if worse_in_a_row == MAX_WORSE_IN_A_ROW:
            break
    assert best is not None
    return replace(best, tried_penalties=tried)


def _measure_scale(features: Tensor) -> Tensor:
    """The standard deviation of each feature, (width,); infinite where it is nothing but rounding.

    Networks have units that are the same for every sample up to the last digit. Scaled up to 1, that noise would get
    weights of 1e30, and with them gradients that are not finite.
    """
    scale = features.std(dim=0, correction=0)
    noise = ROUNDING_SHARE * torch.maximum(scale.square().mean().sqrt(), features.abs().amax(dim=0))
    return torch.where(scale > noise, scale, torch.inf)


def _drop_unlabelled(samples: HeadFeatures, loss: HeadLoss) -> HeadFeatures:
    """The samples that have a class."""
    if not loss.partial or samples.targets.ndim > 1:
        return samples
    labelled = samples.targets != NO_LABEL
    return HeadFeatures(samples.features[labelled], samples.targets[labelled])


def _standardize(samples: HeadFeatures, mean: Tensor, scale: Tensor) -> HeadFeatures:
    return HeadFeatures((samples.features - mean) / scale, samples.targets)


def _minimize(samples: HeadFeatures, loss: HeadLoss, weight: Tensor, bias: Tensor, penalty: float) -> float:
    """Take weight and bias to the smallest loss plus penalty, in place; returns the loss alone."""
    parameters = [parameter for parameter in (weight, bias) if parameter.requires_grad]
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=MAX_ITERATIONS,
        history_size=20,
        tolerance_grad=1e-5,
        tolerance_change=1e-8,
        line_search_fn="strong_wolfe",
    )
    factor = penalty / (2 * max(1, len(samples.features)))

    def compute_loss() -> float:
        optimizer.zero_grad()
        penalized = factor * weight.square().sum()
        penalized.backward()  # type: ignore[no-untyped-call]
        total = float(penalized.detach())
        # Part by part, so that the outputs of all samples never lie in memory together.
        for part in _loss_parts(samples, loss, weight, bias):
            part.backward()  # type: ignore[no-untyped-call]
            total += float(part.detach())
        return total

    optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return sum(float(part) for part in _loss_parts(samples, loss, weight, bias))


def _loss_parts(samples: HeadFeatures, loss: HeadLoss, weight: Tensor, bias: Tensor) -> Iterator[Tensor]:
    """The mean loss of the samples as summands, each a scalar."""
    total = loss.weights(samples.targets).sum(dtype=torch.float64).clamp_min(torch.finfo(torch.float32).tiny)
    rows = max(1, CHUNK_VALUES // max(1, samples.features.shape[1]))
    for start in range(0, len(samples.features), rows):
        outputs = samples.features[start : start + rows] @ weight.T + bias
        yield loss.weighted_terms(outputs, samples.targets[start : start + rows]).sum() / total
