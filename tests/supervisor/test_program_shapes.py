"""Programs of other shapes: `drivetrain.prepare` and `drivetrain.train` give the weights of a loop by hand, or a way out.

Each row is written once as a loop by hand and once with the library. What is refused names another way, which is run, too.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import drivetrain
from tests.supervisor.circle_training import no_report

__all__ = ["no_report"]

torch.set_num_threads(1)
TOLERANCE = 1e-6
OFF: dict[str, Any] = {"cpu_threads": 1, "precision": "fp32"}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw_whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


X = draw(96, 8)
W = draw(8, 3, seed=1)
Y, NUMBERS = (X @ W).argmax(1), (X @ W)[:, 0]


def mlp(outputs: int = 3, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, outputs))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def cut(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Batches of 16 rows of all tensors."""
    return list(zip(*(tensor.split(16) for tensor in tensors), strict=True))


def differ(one: nn.Module, two: nn.Module) -> float:
    """The largest difference of two networks in parameters and buffers."""
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel())


@dataclass
class Loop:
    """A program with a loop of its own."""

    build: Callable[[], nn.Module]
    batches: Sequence[Any]
    """What its loader yields, in the form that `prepare` takes."""
    by_hand: Callable[[nn.Module, Any], Tensor]
    """Computes the loss of a batch."""
    loss: Callable[..., Any] | None = None
    """The loss that `prepare` gets."""
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    settings: dict[str, Any] = field(default_factory=dict)


class Words(nn.Module):
    """Sums of word vectors, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(50, 8, sparse=True, mode="mean")

    def forward(self, words: Tensor) -> Tensor:
        vectors: Tensor = self.vectors(words)
        return vectors @ W


WORDS = [(draw_whole(50, 16, 6, seed=i), draw_whole(3, 16, seed=i)) for i in range(6)]


def build_with(change: Callable[[nn.Module], Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        network = mlp()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            change(network[0])
        return network

    return build


def plain(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def sparse(optimizer: Callable[[Any], torch.optim.Optimizer], **settings: Any) -> Loop:
    return Loop(Words, WORDS, plain, F.cross_entropy, optimizer, settings)


def layer_loop(change: Callable[[nn.Module], Any]) -> Loop:
    return Loop(build_with(change), cut(X, Y), plain, F.cross_entropy)


LOOPS = {
    "a classifier": Loop(lambda: mlp(dropout=0.2), cut(X, Y), plain, F.cross_entropy),
    "sparse gradients": sparse(sgd),
    "sparse gradients, SparseAdam": sparse(torch.optim.SparseAdam),
    "sparse gradients, Adagrad": sparse(torch.optim.Adagrad),
    "sparse gradients, several batches": sparse(sgd, accumulate=2),
    "sparse gradients, micro-batches": sparse(sgd, optimize=OFF | {"micro_batch": 5}),
    "pruned": layer_loop(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)),
    "old weight_norm": layer_loop(nn.utils.weight_norm),
    "old spectral_norm": layer_loop(nn.utils.spectral_norm),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's Adagrad
@pytest.mark.parametrize("program", LOOPS.values(), ids=LOOPS)
def test_a_loop_trains_as_by_hand(program: Loop) -> None:
    def build() -> nn.Module:
        torch.manual_seed(1)
        return program.build()

    model, prepared = build(), build()
    optimizer, every = program.optimizer(model.parameters()), program.settings.get("accumulate", 1)
    torch.manual_seed(5)
    for number, batch in enumerate(copy.deepcopy(program.batches)):
        if number % every == 0:
            optimizer.zero_grad()
        (program.by_hand(model, batch) / every).backward()
        if number % every == every - 1:
            optimizer.step()
    torch.manual_seed(5)
    settings: dict[str, Any] = {"optimize": OFF, "quiet": True} | program.settings
    with drivetrain.prepare(prepared, program.optimizer, loss=program.loss, **settings) as step:
        for batch in copy.deepcopy(program.batches):
            step(batch)
    assert differ(model, prepared) <= TOLERANCE
    assert differ(model, build()) > 1e-3, "nothing was trained"


@dataclass
class Refusal:
    """What is refused, with the words of its message and another way that works."""

    call: Callable[[Path], Any]
    words: tuple[str, ...]
    way_out: Callable[[Path], Any]


def train(folder: Path, model: nn.Module, data: Any = (X, Y), **settings: Any) -> drivetrain.Result:
    defaults: dict[str, Any] = {"epochs": 1, "batch_size": 32, "optimize": OFF | {"measure": "off"}, "quiet": True}
    return drivetrain.train(model, data, data, runs=folder, **defaults | settings)


def prune_half(layer: nn.Module) -> None:
    prune.l1_unstructured(layer, "weight", 0.5)


def end_pruning(folder: Path) -> None:
    model = build_with(prune_half)()
    prune.remove(model.get_submodule("0"), "weight")
    train(folder, model)


def train_dense_words(folder: Path) -> None:
    model = Words()
    model.vectors.sparse = False
    train(folder, model, (WORDS[0][0], WORDS[0][1]))


REFUSALS = {
    "pruned": Refusal(
        lambda folder: train(folder, build_with(prune_half)(), optimizer=torch.optim.Adam),
        ("0.weight is computed by torch.nn.utils.prune", "prune.remove(model.get_submodule('0'), 'weight')", "prepare"),
        end_pruning,
    ),
    "old weight_norm": Refusal(
        lambda folder: train(folder, build_with(nn.utils.weight_norm)(), optimizer=torch.optim.Adam),
        ("0.weight is kept by torch.nn.utils.weight_norm", "torch.nn.utils.parametrizations.weight_norm"),
        lambda folder: train(folder, build_with(nn.utils.parametrizations.weight_norm)(), optimizer=torch.optim.Adam),
    ),
    "sparse gradients": Refusal(
        lambda folder: train(folder, Words(), WORDS[0], optimizer=torch.optim.Adam),
        ("vectors has sparse=True", "leave out sparse=True where vectors is made", "prepare"),
        train_dense_words,
    ),
    "sparse gradients and Adam": Refusal(
        lambda folder: run_steps(Words(), WORDS, torch.optim.Adam),
        ("is Adam, whose step() raised", "SparseAdam"),
        lambda folder: run_steps(Words(), WORDS, torch.optim.SparseAdam),
    ),
}


def run_steps(model: nn.Module, batches: Sequence[Any], optimizer: Any = sgd, loss: Any = F.cross_entropy) -> None:
    with drivetrain.prepare(model, optimizer, loss=loss, optimize=OFF, quiet=True) as step:
        for batch in batches:
            step(batch)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_what_is_refused_names_a_way_that_works(refusal: Refusal, tmp_path: Path) -> None:
    with pytest.raises((drivetrain.SpecError, drivetrain.DataError)) as caught:
        refusal.call(tmp_path)
    lines = str(caught.value)
    assert [words for words in refusal.words if words not in lines] == [], lines
    assert "\n  possible: " in lines
    assert "\n  do: " in lines
    refusal.way_out(tmp_path)
