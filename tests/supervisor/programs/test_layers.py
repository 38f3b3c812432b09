"""Programs with other layers: sparse gradients, norms of weights, pruning, shared weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

from tests.supervisor.programs.comparison import (
    OFF,
    Loop,
    Refusal,
    Training,
    W,
    X,
    Y,
    build_with,
    check_loop,
    check_refusal,
    check_training,
    cut,
    draw_whole,
    mlp,
    no_report,
    plain,
    run_steps,
    sgd,
    train,
)

__all__ = ["no_report"]


class Words(nn.Module):
    """Sums of word vectors, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(50, 8, sparse=True, mode="mean")

    def forward(self, words: Tensor) -> Tensor:
        vectors: Tensor = self.vectors(words)
        return vectors @ W


WORDS = [(draw_whole(50, 16, 6, seed=i), draw_whole(3, 16, seed=i)) for i in range(6)]


def sparse(optimizer: Callable[[Any], torch.optim.Optimizer], **settings: Any) -> Loop:
    return Loop(Words, WORDS, plain, F.cross_entropy, optimizer, settings)


def layer_loop(change: Callable[[nn.Module], Any]) -> Loop:
    return Loop(build_with(change), cut(X, Y), plain, F.cross_entropy)


class Tied(nn.Module):
    """Layers that share weights, and a buffer that follows the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.two.weight = self.one.weight
        self.register_buffer("mean", torch.zeros(8))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        outputs: Tensor = self.last(torch.tanh(self.two(torch.tanh(self.one(x - self.mean)))))
        return outputs


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


CROSS_ENTROPY = nn.CrossEntropyLoss()


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
TRAININGS = {
    "shared weights": Training(Tied, TensorDataset(X, Y), CROSS_ENTROPY, torch.optim.Adadelta),
    "BatchNorm, clipped": Training(normalized, TensorDataset(X, Y), CROSS_ENTROPY, settings={"clip_norm": 0.1}),
    "weight_norm": Training(
        build_with(nn.utils.parametrizations.weight_norm), TensorDataset(X, Y), CROSS_ENTROPY, torch.optim.Adam
    ),
    "words": Training(
        lambda: nn.Sequential(nn.EmbeddingBag(50, 8), nn.Linear(8, 2)),
        TensorDataset(draw_whole(50, 96, 6), draw_whole(2, 96)),
        CROSS_ENTROPY,
    ),
}
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
        ("vectors has sparse=True", "remove sparse=True where vectors is made", "prepare"),
        train_dense_words,
    ),
    "sparse gradients and Adam": Refusal(
        lambda folder: run_steps(Words(), WORDS, torch.optim.Adam),
        ("is Adam, whose step() raised", "SparseAdam"),
        lambda folder: run_steps(Words(), WORDS, torch.optim.SparseAdam),
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's Adagrad
@pytest.mark.parametrize("program", LOOPS.values(), ids=LOOPS)
def test_a_loop_over_layers_trains_as_by_hand(program: Loop) -> None:
    check_loop(program)


@pytest.mark.parametrize("program", TRAININGS.values(), ids=TRAININGS)
def test_layers_are_trained_as_by_hand(program: Training, tmp_path: Path) -> None:
    check_training(program, tmp_path)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_refused_layers_have_another_way(refusal: Refusal, tmp_path: Path) -> None:
    check_refusal(refusal, tmp_path)
