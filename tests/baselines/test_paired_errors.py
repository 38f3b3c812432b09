"""The margin of a difference between a network and a simple model comes from the samples on which they differ."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drivetrain.baselines.paired_errors import (
    FIRST_SAMPLES,
    MAX_SAMPLES,
    NetworkOutputs,
    PairedErrors,
    compute_network_outputs,
)
from drivetrain.data.custom.map_dataset import ArraySplit
from drivetrain.data.dataset import Head
from drivetrain.training import losses

CLASSES = Head("", ("no", "yes"))
NUMBERS = Head("", columns=("price",), mean=(0.0,), std=(1.0,), low=(-9.0,), high=(9.0,))


def make_split(inputs: Tensor, targets: Tensor) -> ArraySplit:
    return ArraySplit("samples", (inputs,), None, targets={"": targets})


def estimate(
    network: Tensor, model: Tensor, targets: Tensor, head: Head, of: int = 1, has_neighbors: bool = False
) -> dict[str, float]:
    """Estimate margins from outputs for the first of `of` equal parts of all samples."""
    split = make_split(torch.zeros(len(targets) * of, 1), targets.repeat(of, *[1] * (targets.ndim - 1)))
    objective = losses.build_objective(None, {"": head}, split.targets, "none")
    outputs = NetworkOutputs(np.arange(len(targets)), {"": network}, has_neighbors)
    return PairedErrors(outputs, split, {"": head}, objective, "validation/").estimate_margins({"": model})


def answer(is_right: Tensor) -> Tensor:
    """Outputs (N, 2) of a classifier for samples of the class `yes`."""
    return torch.stack([(~is_right).float(), is_right.float()], 1)


def test_one_sample_of_69_is_no_difference() -> None:
    right = torch.ones(69, dtype=torch.bool)
    right[7] = False
    targets = torch.ones(69, dtype=torch.int64)
    margin = estimate(answer(torch.ones_like(right)), answer(right), targets, CLASSES)["validation/accuracy"]
    assert 1 / 69 < margin <= 4 / 69


def test_samples_that_both_have_right_or_wrong_add_nothing() -> None:
    right = torch.arange(1_000) % 3 > 0
    targets = torch.ones(1_000, dtype=torch.int64)
    same = estimate(answer(right), answer(right), targets, CLASSES)["validation/accuracy"]
    assert same == pytest.approx(4 / 1_000)  # as if four samples differed
    few = right.clone()
    few[:30] = ~few[:30]
    paired = estimate(answer(right), answer(few), targets, CLASSES)["validation/accuracy"]
    apart = 1.96 * (2 * (2 / 3) * (1 / 3) / 1_000) ** 0.5  # of two models on samples of their own
    assert 0 < paired < apart / 2


@pytest.mark.parametrize(("head", "metric"), [(CLASSES, "accuracy"), (NUMBERS, "rmse")])
def test_the_interval_contains_the_true_difference(head: Head, metric: str) -> None:
    """It should in 95 of 100 draws; below 88 or above 99 the width would be wrong."""
    random = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(100):
        shared, own = torch.rand(400, generator=random), torch.rand(400, generator=random)
        if head.classes:
            # The network is right in 80 %, the model in 64 %, 4 of 5 of the same samples.
            network, model = answer(shared < 0.8), answer((shared < 0.8) & (own < 0.8))
            targets, truth, difference = torch.ones(400, dtype=torch.int64), 0.16, 0.0
            difference = float((network[:, 1] - model[:, 1]).mean())
        else:
            noise, more = torch.randn(400, 1, generator=random), torch.randn(400, 1, generator=random)
            network, model, targets = noise, noise + more, torch.zeros(400, 1)
            truth = 1 - 2**0.5
            difference = float(network.square().mean() ** 0.5 - model.square().mean() ** 0.5)
        margin = estimate(network, model, targets, head)[f"validation/{metric}"]
        covered += abs(difference - truth) <= margin
    assert 88 <= covered <= 99


@pytest.mark.parametrize(("has_neighbors", "low", "high"), [(True, 0, 10), (False, 25, 100)])
def test_windows_that_err_together_are_left_out_together(has_neighbors: bool, low: int, high: int) -> None:
    """One of two equal models is called better in 5 of 100 draws, and far more often if windows count as independent."""
    random = torch.Generator().manual_seed(0)
    targets, called = torch.ones(640, dtype=torch.int64), 0
    for _ in range(100):
        network, model = (answer((torch.rand(80, generator=random) < 0.8).repeat_interleave(8)) for _ in range(2))
        margin = estimate(network, model, targets, CLASSES, has_neighbors=has_neighbors)["validation/accuracy"]
        called += abs(float((network[:, 1] - model[:, 1]).mean())) > margin
    assert low <= called <= high


def test_more_samples_than_were_compared_halve_the_margin_when_there_are_four_times_as_many() -> None:
    right = torch.arange(200) % 7 > 0
    targets = torch.ones(200, dtype=torch.int64)
    once, four_times = (
        estimate(answer(torch.ones_like(right)), answer(right), targets, CLASSES, of)["validation/accuracy"]
        for of in (1, 4)
    )
    assert four_times == pytest.approx(once / 2)


def test_samples_are_compared_as_long_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    split = make_split(torch.arange(5_000.0)[:, None], torch.zeros(5_000, dtype=torch.int64))

    def compute(seconds: float) -> NetworkOutputs | None:
        device = torch.device("cpu")
        return compute_network_outputs(nn.Identity(), {"": CLASSES}, split, lambda x, *_: x, device, seconds)

    everything = compute(60.0)
    assert everything is not None
    assert len(everything.ids) == MAX_SAMPLES
    assert torch.equal(everything.outputs[""][:, 0], torch.from_numpy(everything.ids).float())
    assert (np.diff(everything.ids) > 0).all()
    assert len(set(everything.ids // 1_000)) == 5  # from all of the split
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    shorter = compute(60.0)
    assert shorter is not None
    assert len(shorter.ids) == FIRST_SAMPLES  # more begin only if there is time


def test_too_few_samples_have_no_margin() -> None:
    split = make_split(torch.zeros(19, 1), torch.zeros(19, dtype=torch.int64))
    device = torch.device("cpu")
    assert compute_network_outputs(nn.Identity(), {"": CLASSES}, split, lambda x, *_: x, device, 60.0) is None
