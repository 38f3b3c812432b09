"""`drivetrain.prepare` and `drivetrain.train` update with the gradients of their own batches, whatever other code has left."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import drivetrain
from tests.supervisor.circle_training import make_circle

torch.set_num_threads(1)
REAL = torch.randn(96, 2, generator=torch.Generator().manual_seed(0)) + 2
X, Y = make_circle(96).tensors
OFF = {"cpu_threads": 1}
Pair = tuple[nn.Module, nn.Module]


def build_pair() -> Pair:
    torch.manual_seed(1)
    generator = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    return generator, nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


def build_optimizers(pair: Pair) -> tuple[torch.optim.Optimizer, ...]:
    return tuple(torch.optim.Adam(network.parameters(), lr=1e-2) for network in pair)


def play(
    pair: Pair,
    step_generator: Callable[[Tensor, Tensor], Any],
    step_discriminator: Callable[[Tensor, Tensor], Any],
    batches: int,
) -> None:
    """Train generator and discriminator in turns, with `batches` batches of one between those of the other."""
    torch.manual_seed(3)
    for start in range(0, 96, 16):
        for x in REAL[start : start + 16].split(16 // batches):
            made, ones = pair[0](torch.randn(len(x), 4)).detach(), torch.ones(len(x), 1)
            step_discriminator(torch.cat([x, made]), torch.cat([ones, torch.zeros(len(x), 1)]))
            step_generator(torch.randn(len(x), 4), ones)


def play_by_hand(clip: float | None, batches: int) -> Pair:
    """Every gradient is computed for its own parameters alone, so nothing can leak."""
    pair = build_pair()
    sums: list[list[list[Tensor]]] = [[], []]

    def train(number: int, outputs: Tensor, targets: Tensor) -> None:
        parameters, optimizer = list(pair[number].parameters()), optimizers[number]
        sums[number].append(list(torch.autograd.grad(bce(outputs, targets) / batches, parameters)))
        if len(sums[number]) == batches:
            for parameter, *gradients in zip(parameters, *sums[number], strict=True):
                parameter.grad = torch.stack(gradients).sum(0)
            if clip:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            sums[number].clear()

    optimizers = build_optimizers(pair)
    play(
        pair,
        lambda noise, targets: train(0, pair[1](pair[0](noise)), targets),
        lambda x, targets: train(1, pair[1](x), targets),
        batches,
    )
    return pair


def differ(one: nn.Module, two: nn.Module) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("optimize", [{}, {"micro_batch": 8}], ids=["whole", "micro-batches"])
@pytest.mark.parametrize(("clip", "accumulate"), [(None, 1), (0.1, 1), (None, 2), (0.1, 2)])
def test_two_blocks_train_as_a_loop_by_hand(clip: float | None, accumulate: int, optimize: dict[str, Any]) -> None:
    """They leaked: 0.013 off after eight batches, as the generator's loss is that of the discriminator."""
    pair = build_pair()
    of_generator, of_discriminator = build_optimizers(pair)
    settings: dict[str, Any] = {"clip_norm": clip, "accumulate": accumulate, "quiet": True, "optimize": OFF | optimize}
    with (
        drivetrain.prepare(pair[1], of_discriminator, loss=bce, **settings) as discriminate,
        drivetrain.prepare(pair[0], of_generator, loss=lambda o, t: bce(pair[1](o), t), **settings) as generate,
    ):
        play(pair, lambda z, t: generate((z, t)), lambda x, t: discriminate((x, t)), accumulate)
    for ours, theirs in zip(pair, play_by_hand(clip, accumulate), strict=True):
        assert differ(ours, theirs) < 1e-6


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_flush_updates_with_the_mean_of_the_batches_that_are_there(count: int) -> None:
    """One of four batches made a quarter of the update. A skipped update, and gradients of other code, change nothing."""
    torch.manual_seed(1)
    ours = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    theirs, loss = copy.deepcopy(ours), nn.CrossEntropyLoss()
    batches = [(X[i : i + 16], Y[i : i + 16]) for i in range(0, 16 * count, 16)]
    sgd = torch.optim.SGD(ours.parameters(), lr=0.5)
    with drivetrain.prepare(ours, sgd, loss=loss, accumulate=4, clip_norm=0.1, quiet=True, optimize=OFF) as step:
        step((torch.full((4, 2), float("nan")), Y[:4]))
        step.flush()
        for batch in batches:
            loss(ours(X), Y).backward()
            step(batch)
        loss(ours(X), Y).backward()
        step.flush()
    by_hand = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for group in (batches[:4], batches[4:]):
        if group:
            value = torch.stack([loss(theirs(x), y) for x, y in group]).mean()
            by_hand.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
            by_hand.step()
    assert differ(ours, theirs) < 1e-6
    assert step.skipped == 1
    assert step.last
    assert step.last.loss == pytest.approx(float(value.detach()))


def test_gradients_of_a_callback_or_of_the_program_change_no_training(tmp_path: Path) -> None:
    """A network whose gradients were looked at before, or in a callback, trained with them."""
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    probed = copy.deepcopy(plain)

    def probe(info: object = None) -> None:
        nn.functional.cross_entropy(probed(X), Y).backward()

    for model, on_step in ((plain, None), (probed, probe)):
        if on_step:
            on_step()
        drivetrain.train(
            model,
            (X, Y),
            (X, Y),
            runs=tmp_path,
            new=True,
            epochs=2,
            batch_size=32,
            on_step=on_step,
            quiet=True,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            optimize=OFF | {"measure": "off"},
        )
    assert differ(plain, probed) == 0
