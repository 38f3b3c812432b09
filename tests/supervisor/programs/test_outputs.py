"""Programs whose networks return several outputs, losses by name, or outputs and loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.supervisor.programs.comparison import (
    NUMBERS,
    Loop,
    Refusal,
    X,
    Y,
    check_loop,
    check_refusal,
    cut,
    draw,
    mlp,
    no_report,
    plain_pair,
    run_steps,
    train,
)

__all__ = ["no_report"]


class Several(nn.Module):
    """Several outputs, as a mapping, a tuple or one tensor."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.body, self.classes, self.number, self.form = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1), form

    def forward(self, x: Tensor) -> Any:
        hidden = F.relu(self.body(x))
        outputs = {"class": self.classes(hidden), "number": self.number(hidden)}
        if self.form == "one":
            return torch.cat([*outputs.values()], 1)
        return outputs if self.form == "mapping" else tuple(outputs.values())


def two_losses(outputs: Any, targets: Any) -> Tensor:
    classes, number = outputs.values() if isinstance(outputs, dict) else outputs
    labels, value = targets.values() if isinstance(targets, dict) else targets
    return F.cross_entropy(classes, labels) + F.mse_loss(number.squeeze(1), value)


class Detector(nn.Module):
    """Takes a list of pictures of several sizes with a list of their boxes, and returns its losses by name."""

    def __init__(self, form: str = "mapping") -> None:
        super().__init__()
        self.layer, self.form = nn.Conv2d(3, 4, 3), form

    def forward(self, pictures: list[Tensor], boxes: list[dict[str, Any]]) -> Any:
        made = [self.layer(picture[None]).mean((0, 2, 3)) for picture in pictures]
        near = [F.mse_loss(m, box["box"].mean(0)) for m, box in zip(made, boxes, strict=True)]
        losses = {"box": torch.stack(near).mean(), "size": torch.stack(made).pow(2).mean()}
        if self.form == "sum":
            return losses["box"] + losses["size"]
        return losses


def draw_pictures(seed: int) -> tuple[list[Tensor], list[dict[str, Any]]]:
    boxes = [{"box": draw(count, 4, seed=seed), "name": f"{count}.png"} for count in (1, 2, 3)]
    return [draw(3, 6 + size, 8, seed=seed) for size in range(3)], boxes


PICTURES = [draw_pictures(seed) for seed in range(6)]


def add_losses(model: nn.Module, batch: Any) -> Tensor:
    made = model(*batch)
    return torch.stack([*made.values()]).sum() if isinstance(made, dict) else made


class Returning(nn.Module):
    """A model that returns outputs and loss, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.network(x)
        return outputs, F.cross_entropy(outputs, y)


TWO = [(x, {"class": y, "number": n}) for x, y, n in cut(X, Y, NUMBERS)]
ALL_IN_ONE = [{"x": x, "class": y, "number": n} for x, y, n in cut(X, Y, NUMBERS)]
LOOPS = {
    "several outputs": plain_pair(two_losses, lambda: Several("mapping"), TWO),
    "several outputs, a list of targets": plain_pair(
        two_losses, lambda: Several("tuple"), [(x, list(targets.values())) for x, targets in TWO]
    ),
    "several outputs, clipped": plain_pair(two_losses, lambda: Several("mapping"), TWO, clip_norm=0.1),
    "a mapping with other keys": Loop(
        lambda: Several("mapping"),
        [((batch["x"],), batch) for batch in ALL_IN_ONE],
        lambda model, batch: two_losses(model(*batch[0]), (batch[1]["class"], batch[1]["number"])),
        lambda outputs, batch: two_losses(outputs, (batch["class"], batch["number"])),
    ),
    "lists of pictures and boxes": Loop(lambda: Detector("sum"), PICTURES, add_losses),
    "a mapping of losses": Loop(
        Detector,
        [(batch, batch[-1]) for batch in PICTURES],
        lambda model, batch: add_losses(model, batch[0]),
        lambda outputs, targets: sum(outputs.values()),
    ),
    "outputs and loss": Loop(
        Returning,
        [(batch, batch[-1]) for batch in cut(X, Y)],
        lambda model, batch: model(*batch[0])[1],
        lambda outputs, targets: outputs[1],
    ),
}


class Nodes(nn.Module):
    """Takes a graph with all of its nodes as one sample."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.network, self.change = mlp(), change

    def forward(self, nodes: Tensor) -> Any:
        return self.change(self.network(nodes))


def first_three(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[..., :3].reshape(-1, 3), targets.reshape(-1))


def train_graph(folder: Path, change: Callable[[Tensor], Any]) -> None:
    data = (X[None, :8], Y[None, :8])
    train(folder, Nodes(change), data, loss=first_three, targets="other", batch_size=1)


REFUSALS = {
    "rows of one sample": Refusal(
        lambda folder: train_graph(folder, lambda outputs: outputs[0]),
        ("gives shape (8, 3) for 1 samples", "such as outputs[None]", "prepare"),
        lambda folder: train_graph(folder, lambda outputs: outputs),
    ),
    "several outputs for other targets": Refusal(
        lambda folder: train_graph(folder, lambda outputs: (outputs, outputs)),
        ("gives a tuple of 2", "with a loss that splits them; drivetrain.prepare accepts any"),
        lambda folder: train_graph(folder, lambda outputs: torch.cat([outputs, outputs], 2)),
    ),
    "several targets": Refusal(
        lambda folder: train(folder, Several("one"), [(x, (y, n)) for x, y, n in zip(X, Y, NUMBERS, strict=True)]),
        ("the target of sample 0 is a tuple of 2", "put its numbers into one tensor, which your loss takes apart"),
        lambda folder: train(
            folder,
            Several("one"),
            (X, torch.stack([Y, NUMBERS, NUMBERS], 1)),
            loss=lambda o, t: F.cross_entropy(o[:, :3], t[:, 0].long()) + F.mse_loss(o[:, 3], t[:, 1]),
            targets="other",
        ),
    ),
    "outputs and loss": Refusal(
        lambda folder: run_steps(Returning(), cut(X, Y), loss=None),
        ("gives a tuple of 2", "loss=lambda outputs, targets: outputs[1]", "step((batch, batch[-1]))"),
        lambda folder: run_steps(
            Returning(), [(batch, batch[-1]) for batch in cut(X, Y)], loss=lambda outputs, targets: outputs[1]
        ),
    ),
    "losses by name": Refusal(
        lambda folder: run_steps(
            Detector(), [dict(zip(("pictures", "boxes"), b, strict=True)) for b in PICTURES], loss=None
        ),
        ("gives a mapping of box, size", "loss=lambda outputs, batch: sum(outputs.values())"),
        lambda folder: run_steps(
            Detector(),
            [dict(zip(("pictures", "boxes"), b, strict=True)) for b in PICTURES],
            loss=lambda outputs, batch: sum(outputs.values()),
        ),
    ),
    "keys that are no arguments": Refusal(
        lambda folder: run_steps(Several("mapping"), ALL_IN_ONE, loss=two_losses),
        ("keys x, class, number", "unexpected keyword argument 'class'", "step(((batch['x'],), batch))"),
        lambda folder: run_steps(
            Several("mapping"),
            [((batch["x"],), batch) for batch in ALL_IN_ONE],
            loss=lambda o, b: two_losses(o, (b["class"], b["number"])),
        ),
    ),
}


@pytest.mark.parametrize("program", LOOPS.values(), ids=LOOPS)
def test_a_loop_with_several_outputs_trains_as_by_hand(program: Loop) -> None:
    check_loop(program)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_refused_outputs_have_another_way(refusal: Refusal, tmp_path: Path) -> None:
    check_refusal(refusal, tmp_path)
