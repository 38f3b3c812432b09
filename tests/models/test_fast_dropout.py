"""Tests for dropout from packed bits: its distribution, its gradient, its seed, and where torch's is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from drivetrain import optimizations
from drivetrain.hardware import facts as hardware
from drivetrain.job.workload import Workload
from drivetrain.models.fast_dropout import MIN_ELEMENTS, DropoutFromBits, restore_layers
from drivetrain.optimizations import packed_dropout
from tests import tiny
from tests.axes import each_once
from tests.messages import get_message
from tests.paths import MACHINES


def drop_ones(rate: float, shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(seed)
    result: torch.Tensor = DropoutFromBits(rate)(torch.ones(shape, dtype=dtype))
    return result


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_rate_mean_and_neighbours_are_those_of_dropout(rate: float) -> None:
    """Within five standard errors; elements four apart share a 64-bit number, so lags 1 to 8 must show nothing."""
    count = 1 << 21
    x = drop_ones(rate, (count,))
    is_kept = (x != 0).double()
    error = (rate * (1 - rate) / count) ** 0.5
    assert abs(float(is_kept.mean()) - (1 - rate)) < 5 * error + 1 / 65536
    assert float(x.max()) == pytest.approx(1 / (1 - rate), rel=1e-4)
    assert abs(float(x.double().mean()) - 1) < 5 * error / (1 - rate)
    centred = is_kept - is_kept.mean()
    for lag in range(1, 9):
        together = float((centred[lag:] * centred[:-lag]).mean() / centred.var())
        assert abs(together) < 5 / count**0.5, f"lag {lag}: {together}"


def test_a_kept_unit_is_scaled_by_the_rounded_rate() -> None:
    """The rate is rounded to 1/65536, and the scale with it, so that the mean does not move."""
    kept_of_65536 = round(0.9 * 65536)
    assert float(drop_ones(0.1, (MIN_ELEMENTS,), dtype=torch.float64).max()) == 65536 / kept_of_65536


@pytest.mark.parametrize(
    ("dtype", "shape"),
    each_once(
        [torch.float32, torch.bfloat16, torch.float16, torch.float64],
        [(MIN_ELEMENTS,), (1, MIN_ELEMENTS + 3), (7, 1023, 5), (2, 64, 19, 23)],
    ),
)
def test_shape_type_and_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(shape, dtype=dtype).requires_grad_()
    y = DropoutFromBits(0.3)(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert 0.6 < float((y != 0).float().mean()) < 0.8


def test_the_result_depends_on_the_seed_only() -> None:
    one, same, other = (
        drop_ones(0.5, (MIN_ELEMENTS,), 1),
        drop_ones(0.5, (MIN_ELEMENTS,), 1),
        drop_ones(0.5, (MIN_ELEMENTS,), 2),
    )
    assert torch.equal(one, same)
    assert 0.45 < float((one == other).float().mean()) < 0.55
    torch.manual_seed(1)
    layer = DropoutFromBits(0.5)
    assert not torch.equal(layer(torch.ones(MIN_ELEMENTS)), layer(torch.ones(MIN_ELEMENTS)))


def test_recomputed_blocks_use_the_same_dropout_masks() -> None:
    """Gradient checkpointing runs the forward pass twice."""
    torch.manual_seed(0)
    layer, x = DropoutFromBits(0.5), torch.ones(MIN_ELEMENTS, requires_grad=True)
    y = checkpoint(layer, x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize(
    ("layer", "x", "training"),
    [
        (DropoutFromBits(0.3), torch.randn(MIN_ELEMENTS - 1), True),
        (DropoutFromBits(0.0), torch.randn(MIN_ELEMENTS), True),
        (DropoutFromBits(1.0), torch.randn(MIN_ELEMENTS), True),
        (DropoutFromBits(1e-6), torch.randn(MIN_ELEMENTS), True),
        (DropoutFromBits(0.3, inplace=True), torch.randn(MIN_ELEMENTS), True),
        (DropoutFromBits(0.3), torch.randn(MIN_ELEMENTS), False),
    ],
)
def test_small_and_compiled_calls_use_torchs_dropout(layer: nn.Dropout, x: torch.Tensor, training: bool) -> None:
    layer.train(training)
    torch.manual_seed(3)
    outputs = layer(x.clone())
    torch.manual_seed(3)
    assert torch.equal(outputs, nn.functional.dropout(x, layer.p, training))


@pytest.mark.parametrize(
    ("machine", "facts", "value", "reason"),
    [
        ("laptop", Workload(layers={"Dropout": 2}), True, "same distribution, different random numbers"),
        ("laptop", None, True, "same distribution"),
        ("laptop", Workload(layers={"Linear": 2}), False, "the network has no dropout layer"),
        ("laptop", Workload(layers={"Dropout2d": 2}), False, "the network has no dropout layer"),
        ("t4", Workload(layers={"Dropout": 2}), False, "a GPU already generates dropout masks in parallel"),
    ],
)
def test_it_is_chosen_on_cpus_with_dropout(machine: str, facts: Workload | None, value: bool, reason: str) -> None:
    choice = packed_dropout.choose(tiny.job(), hardware.read_hardware(MACHINES / f"{machine}.json"), facts)
    assert (choice.value, reason in choice.reason) == (value, True), choice


def test_layers_are_switched_in_place(tmp_path: Path) -> None:
    training_run = tiny.assemble_run(tmp_path, tiny.job())
    training_run = replace(training_run, model=nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Dropout2d(0.5)))
    assert packed_dropout.effective(training_run) is False
    packed_dropout.apply(training_run, True)
    assert [type(m) for m in training_run.model] == [nn.Linear, DropoutFromBits, nn.Dropout2d]  # type: ignore[attr-defined]
    assert packed_dropout.effective(training_run) is True
    assert next(o for o in optimizations.every() if o.name == "packed_dropout").off is False


def test_a_compiled_network_uses_torchs_dropout_masks() -> None:
    compiled_job = tiny.job(optimize="compile: true")
    choice = packed_dropout.choose(compiled_job, tiny.machine(), Workload(layers={"Dropout": 2}))
    assert (choice.value, get_message("use-torch-own-dropout") in choice.reason) == (False, True)


def test_tensor_subclasses_use_torchs_dropout() -> None:
    layer = DropoutFromBits(0.5)
    outputs = torch.vmap(layer, randomness="different")(torch.ones(3, MIN_ELEMENTS))
    assert 0.4 < float((outputs == 0).float().mean()) < 0.6
    nested = torch.nested.nested_tensor([torch.ones(200, 100), torch.ones(300, 100)], layout=torch.jagged)
    assert layer(nested).is_nested


def test_the_users_network_is_returned_unchanged() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    network[1].__class__ = DropoutFromBits
    restore_layers(network)
    assert type(network[1]) is nn.Dropout
