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
from torch.utils.data import DataLoader, Dataset, TensorDataset

import drivetrain
from tests.messages import omits, says
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
    """What its loader yields."""
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


class Graphs:
    """A batch of graphs: their nodes, the graph of each node, and the label of each graph."""

    def __init__(self, x: Tensor, of: Tensor, y: Tensor) -> None:
        self.x, self.of, self.y = x, of, y

    def to(self, device: Any) -> Graphs:
        return Graphs(self.x.to(device), self.of.to(device), self.y.to(device))


def draw_graphs(seed: int) -> Graphs:
    sizes = torch.arange(8) + 2 + seed
    return Graphs(draw(int(sizes.sum()), 4, seed=seed), torch.arange(8).repeat_interleave(sizes), torch.arange(8) % 2)


GRAPHS = [draw_graphs(seed) for seed in range(6)]


class GraphNet(nn.Module):
    """Sums its nodes by graph; returns outputs, or the loss if it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def add_up(self, x: Tensor, of: Tensor) -> Tensor:
        return torch.zeros(8, 2).index_add(0, of, self.layer(x))

    def forward(self, x: Any, of: Tensor | None = None, y: Tensor | None = None) -> Any:
        if isinstance(x, Graphs):
            return self.add_up(x.x, x.of)
        assert of is not None
        return self.add_up(x, of) if y is None else {"loss": F.cross_entropy(self.add_up(x, of), y)}


def graph_loss(model: nn.Module, batch: Any) -> Tensor:
    """Of a batch in one of the forms of a row."""
    if isinstance(batch, Graphs):
        return F.cross_entropy(model(batch), batch.y)
    if isinstance(batch, dict):
        loss: Tensor = model(**batch)["loss"]
        return loss
    return F.cross_entropy(model(*batch[0]), batch[1])


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


def from_pair(loss: Callable[[Any, Any], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    return lambda model, batch: loss(model(batch[0]), batch[1])


class Recurrent(nn.Module):
    """A language model that takes and returns its hidden state, or takes packed sequences."""

    def __init__(self, packed: bool = False) -> None:
        super().__init__()
        self.vectors, self.cell, self.last = nn.Embedding(20, 8), nn.LSTM(8, 8), nn.Linear(8, 20)
        self.packed = packed

    def forward(self, words: Any, state: Any = None) -> Any:
        if self.packed:
            vectors = words._replace(data=self.vectors(words.data))
            return self.last(self.cell(vectors)[1][0][-1])
        outputs, state = self.cell(self.vectors(words), state)
        return self.last(outputs).flatten(0, 1), state


STATE = (draw(1, 4, 8), draw(1, 4, 8, seed=1))
SENTENCES = [draw_whole(20, 11, 4, seed=i) for i in range(6)]
LENGTHS = torch.tensor([9, 7, 4, 2])
PACKED = [(nn.utils.rnn.pack_padded_sequence(s[:9], LENGTHS), s[10]) for s in SENTENCES]


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


class Encoder(nn.Module):
    """A variational autoencoder: what it restores, with mean and spread of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.restore = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mean, spread = self.code(x).chunk(2, 1)
        return self.restore(mean + torch.randn_like(mean) * spread.exp()), mean, spread


def variational(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
    restored, mean, spread = outputs
    return F.mse_loss(restored, x) + 0.1 * (mean.pow(2) + spread.exp() - spread).mean()


class Views(nn.Module):
    """One network over several inputs; their outputs as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp(4)

    def forward(self, *views: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(self.network, views))


def contrast(outputs: Sequence[Tensor], targets: Any) -> Tensor:
    codes = F.normalize(torch.cat([*outputs]), dim=1)
    count = len(codes) // 2
    likeness = (codes @ codes.T / 0.5).masked_fill(torch.eye(2 * count, dtype=torch.bool), -1e9)
    return F.cross_entropy(likeness, torch.arange(2 * count).roll(count))


class Student(nn.Module):
    """A student next to its frozen teacher: the outputs of both."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = mlp(), mlp().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.student(x), self.teacher(x)], 1)


def distill(outputs: Tensor, targets: Tensor) -> Tensor:
    ours, theirs = outputs.chunk(2, 1)
    return F.cross_entropy(ours, targets) + F.kl_div(F.log_softmax(ours, 1), theirs.softmax(1), reduction="batchmean")


def quantiles(outputs: Tensor, targets: Tensor) -> Tensor:
    levels = torch.tensor([0.1, 0.5, 0.9])
    errors = targets.reshape(-1, 1) - outputs
    return torch.maximum(levels * errors, (levels - 1) * errors).mean()


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
TRIPLETS = [((x, x.roll(1, 0), x.roll(2, 0)), None) for (x,) in cut(X)]
NOISY = [((x, x + 0.1 * draw(16, 8, seed=3)), None) for (x,) in cut(X)]


def plain_pair(loss: Callable[..., Any], build: Callable[[], nn.Module], batches: Any, **settings: Any) -> Loop:
    return Loop(build, batches, from_pair(loss), loss, settings=settings)


def hand_views(loss: Callable[..., Any]) -> Callable[[nn.Module, Any], Tensor]:
    return lambda model, batch: loss(model(*batch[0]), batch[1])


def triplet(outputs: Any, targets: Any) -> Tensor:
    return F.triplet_margin_loss(*outputs)


def state_loss(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], targets.reshape(-1))


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
    "graphs as objects": Loop(GraphNet, GRAPHS, graph_loss, lambda o, graphs: F.cross_entropy(o, graphs.y)),
    "graphs as objects, several batches": Loop(
        GraphNet, GRAPHS, graph_loss, lambda o, graphs: F.cross_entropy(o, graphs.y), settings={"accumulate": 3}
    ),
    "graphs as tensors": Loop(GraphNet, [((b.x, b.of), b.y) for b in GRAPHS], graph_loss, F.cross_entropy),
    "graphs as mappings": Loop(GraphNet, [{"x": b.x, "of": b.of, "y": b.y} for b in GRAPHS], graph_loss),
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
    "a hidden state": Loop(
        Recurrent,
        [((s[:-1], STATE), s[1:]) for s in SENTENCES],
        lambda model, batch: state_loss(model(*batch[0]), batch[1]),
        state_loss,
    ),
    "no hidden state yet": Loop(
        Recurrent,
        [((s[:-1], None), s[1:]) for s in SENTENCES],
        lambda model, batch: state_loss(model(*batch[0]), batch[1]),
        state_loss,
    ),
    "packed sequences": plain_pair(F.cross_entropy, lambda: Recurrent(packed=True), PACKED),
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
    "a variational autoencoder": plain_pair(variational, Encoder, cut(X, X)),
    "two views": Loop(Views, NOISY, hand_views(contrast), contrast),
    "triplets": Loop(Views, TRIPLETS, hand_views(triplet), triplet),
    "triplets, flat": Loop(
        Views,
        [(*inputs, target) for inputs, target in TRIPLETS],
        lambda model, batch: triplet(model(*batch[:-1]), None),
        triplet,
    ),
    "distillation": plain_pair(distill, Student, cut(X, Y)),
    "quantiles": plain_pair(quantiles, mlp, cut(X, NUMBERS)),
    "float64": plain_pair(F.cross_entropy, lambda: mlp().double(), cut(X.double(), Y)),
    "float64, micro-batches": plain_pair(
        F.cross_entropy, lambda: mlp().double(), cut(X.double(), Y), optimize=OFF | {"micro_batch": 5}
    ),
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
            if "clip_norm" in program.settings:
                nn.utils.clip_grad_norm_(model.parameters(), program.settings["clip_norm"])
            optimizer.step()
    torch.manual_seed(5)
    settings: dict[str, Any] = {"optimize": OFF, "quiet": True} | program.settings
    with drivetrain.prepare(prepared, program.optimizer, loss=program.loss, **settings) as step:
        for batch in copy.deepcopy(program.batches):
            step(batch)
    assert differ(model, prepared) <= TOLERANCE
    assert differ(model, build()) > 1e-3, "nothing was trained"


@dataclass
class Training:
    """A program that hands its loop to `drivetrain.train`."""

    build: Callable[[], nn.Module]
    data: Any
    loss: Any
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    settings: dict[str, Any] = field(default_factory=dict)


class Pairs(Dataset[Any]):
    """Items of two inputs and a target."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return X[index], X[(7 * index + 3) % len(X)], Y[index]


class NestedPairs(Pairs):
    def __getitem__(self, index: int) -> Any:
        *inputs, target = super().__getitem__(index)
        return tuple(inputs), target


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(16, 3)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        outputs: Tensor = self.network(torch.cat([one, two], 1))
        return outputs


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


class Enlarger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


CROSS_ENTROPY = nn.CrossEntropyLoss()
SMALL = F.avg_pool2d(draw(96, 1, 8, 8), 2)
TRAININGS = {
    "classes": Training(mlp, TensorDataset(X, Y), CROSS_ENTROPY),
    "weighted classes": Training(mlp, TensorDataset(X, Y), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))),
    "log probabilities": Training(lambda: mlp().append(nn.LogSoftmax(1)), TensorDataset(X, Y), F.nll_loss),
    "labels": Training(mlp, TensorDataset(X, F.one_hot(Y, 3)), lambda o, t: F.multilabel_soft_margin_loss(o, t)),
    "several numbers": Training(mlp, TensorDataset(X, X @ W), nn.MSELoss()),
    "pictures to pictures": Training(Enlarger, TensorDataset(SMALL, draw(96, 1, 8, 8)), nn.L1Loss()),
    "items of two inputs": Training(Joined, Pairs(), CROSS_ENTROPY),
    "nested items": Training(Joined, NestedPairs(), CROSS_ENTROPY),
    "arrays of two inputs": Training(Joined, TensorDataset(X, X.roll(1, 0), Y), CROSS_ENTROPY),
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
    "float64 data": Training(mlp, TensorDataset(X.double(), Y), lambda o, t: F.cross_entropy(o, t)),
}


@pytest.mark.parametrize("program", TRAININGS.values(), ids=TRAININGS)
def test_a_training_is_that_of_a_loop_by_hand(program: Training, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = program.build()
    trained = copy.deepcopy(model)
    loader = DataLoader(program.data, 32)
    optimizer = program.optimizer(model.parameters())
    for _ in range(2):
        for *inputs, target in loader:
            optimizer.zero_grad()
            flat = inputs[0] if isinstance(inputs[0], list) else inputs
            program.loss(
                model(*(value.float() if value.is_floating_point() else value for value in flat)), target
            ).backward()
            if "clip_norm" in program.settings:
                nn.utils.clip_grad_norm_(model.parameters(), program.settings["clip_norm"])
            optimizer.step()
    last = copy.deepcopy(trained)

    def keep(info: drivetrain.TrainingInfo) -> None:
        last.load_state_dict(trained.state_dict())

    settings: dict[str, Any] = {"loss": program.loss, "optimizer": program.optimizer(trained.parameters())}
    train(tmp_path, trained, loader, epochs=2, on_epoch=keep, batch_size=32, **settings | program.settings)
    assert differ(model, last) <= TOLERANCE


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
    "items that are mappings": Refusal(
        lambda folder: train(folder, mlp(), [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]),
        ("sample 0 is a dict of 2", "(inputs, target)", "prepare"),
        lambda folder: run_steps(mlp(), cut(X, Y)),
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
    "items of several sizes": Refusal(
        lambda folder: train(folder, mlp(), [(draw(2 + i % 3, 8), 0) for i in range(8)]),
        ("samples 0 and 1 differ in shape", "pad or crop them", "prepare"),
        lambda folder: run_steps(GraphNet(), GRAPHS, loss=lambda o, graphs: F.cross_entropy(o, graphs.y)),
    ),
    "batches of graphs": Refusal(
        lambda folder: train(folder, GraphNet(), DataLoader(range(8), 32, collate_fn=lambda items: GRAPHS[0])),  # type: ignore[arg-type]
        ("collate_fn gives a Graphs", "prepare"),
        lambda folder: run_steps(GraphNet(), GRAPHS, loss=lambda o, graphs: F.cross_entropy(o, graphs.y)),
    ),
    "a float64 network": Refusal(
        lambda folder: train(folder, mlp().double(), (X.double(), Y)),
        ("must have the same dtype", "here they are float64", "call .float() on it", "prepare keeps float64"),
        lambda folder: train(folder, mlp().double().float(), (X.double(), Y)),
    ),
    "a network in bf16": Refusal(
        lambda folder: train(folder, mlp().bfloat16()),
        ("here they are bfloat16", "call .float() on it"),
        lambda folder: train(folder, mlp().bfloat16().float()),
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
    "too many inputs": Refusal(
        lambda folder: run_steps(mlp(), [(*batch, None) for batch in cut(X, X)]),
        ("the batch has 2 inputs", "too many positional arguments"),
        lambda folder: run_steps(mlp(), cut(X, Y)),
    ),
    "micro-batches of graphs": Refusal(
        lambda folder: run_steps(
            GraphNet(), GRAPHS, loss=lambda o, b: F.cross_entropy(o, b.y), optimize=OFF | {"micro_batch": 2}
        ),
        ("optimize.micro_batch is 2", "the batch holds a Graphs", "leave out micro_batch"),
        lambda folder: run_steps(GraphNet(), GRAPHS, loss=lambda o, b: F.cross_entropy(o, b.y)),
    ),
    "memory for graphs": Refusal(
        lambda folder: run_steps(GraphNet(), GRAPHS, loss=lambda o, b: raise_out_of_memory()),
        ("out of memory with the whole batch", "the batch holds a Graphs"),
        lambda folder: run_steps(GraphNet(), GRAPHS, loss=lambda o, b: F.cross_entropy(o, b.y)),
    ),
    "sparse gradients and Adam": Refusal(
        lambda folder: run_steps(Words(), WORDS, torch.optim.Adam),
        ("is Adam, whose step() raised", "SparseAdam"),
        lambda folder: run_steps(Words(), WORDS, torch.optim.SparseAdam),
    ),
}


def run_steps(
    model: nn.Module, batches: Sequence[Any], optimizer: Any = sgd, loss: Any = F.cross_entropy, optimize: Any = OFF
) -> None:
    with drivetrain.prepare(model, optimizer, loss=loss, optimize=optimize, quiet=True) as step:
        for batch in batches:
            step(batch)


def raise_out_of_memory() -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_what_is_refused_names_a_way_that_works(refusal: Refusal, tmp_path: Path) -> None:
    with pytest.raises((drivetrain.SpecError, drivetrain.DataError, drivetrain.OutOfMemory)) as caught:
        refusal.call(tmp_path)
    lines = str(caught.value)
    assert [words for words in refusal.words if words not in lines] == [], lines
    assert "\n  possible: " in lines
    assert "\n  do: " in lines
    refusal.way_out(tmp_path)


def test_float64_data_and_a_trainable_loss_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, mlp(), (X.double() / 3, Y), quiet=False)
    assert says(capsys.readouterr().out, "float64-numbers-rounded")
    train(tmp_path, mlp(), (X.double(), Y), quiet=False)
    assert omits(capsys.readouterr().out, "float64-numbers-rounded")

    class Centers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.zeros(3, 3))

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - self.centers[targets]).pow(2).mean()

    for loss in (Centers(), Centers().forward):
        run_steps(mlp(), cut(X, Y), loss=loss)
        assert says(capsys.readouterr().out, "loss-not-trained-here", "centers")
