"""Data, networks and losses of one's own: what can go wrong when they run, each with its message; and what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset, random_split

from runtime import losses
from runtime.data import own
from runtime.data.batches import Batches, fetch
from runtime.data.dataset import Dataset, Head
from runtime.data.given import ArraySplit
from runtime.data.items import ItemSplit, opened
from runtime.data.load import load
from runtime.errors import DataError, SpecError
from runtime.models.build import Model, build
from runtime.own_loss import OwnTerms
from tests.own_job import DATA, MODEL, job

torch.set_num_threads(1)

TRAINING = "data.file: training data of load() in my_data.py:"
NETWORK = "model.file: the network of build() in my_model.py"
MY_LOSS = {"train": "loss: {file: my_loss.py}"}
ITEMS = """
import torch
from torch.utils.data import Dataset

class Points(Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        {item}

def load():
    return Points({size}), Points(8)
"""
LOADS = "import numpy as np\nimport torch\nfrom torch.utils.data import *\n\ndef load():\n    {body}\n"


def items(item: str, size: int = 24) -> dict[str, str]:
    return {"my_data.py": ITEMS.format(item=item, size=size)}


def loads(body: str) -> dict[str, str]:
    return {"my_data.py": LOADS.format(body=body)}


def both(arrays: str) -> dict[str, str]:
    return loads(f"part = {arrays}\n    return part, part")


def network(change: str, to: str) -> dict[str, str]:
    assert change in MODEL
    return {"my_model.py": MODEL.replace(change, to)}


def terms(body: str) -> dict[str, str]:
    return {"my_loss.py": f"from torch import nn\ndef loss():\n    return {body}\n"}


# Files, parts of the spec, and what the first lines of the message are.
BAD: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "data that raises": (loads("return int('x')"), {},
        "data.file: load() in my_data.py raised ValueError: invalid literal for int() with base 10: 'x'\n"
        "    my_data.py:6: in load: return int('x')"),
    "one part only": (loads("return TensorDataset(torch.zeros(3, 4))"), {},
        "data.file: load() in my_data.py returned a TensorDataset\n  possible: a pair: (training data, validation data)"),
    "no function": ({"my_data.py": DATA + "\nload = 3\n"}, {},
        "data.file: load() in my_data.py raised TypeError: load is of type int and cannot be called"),
    "a script that exits": ({"my_data.py": "import sys\nsys.exit('no licence')\ndef load():\n    pass\n"}, {},
        "data.file: load() in my_data.py raised SystemExit: no licence\n    my_data.py:2: sys.exit('no licence')"),
    "no samples": (items("return torch.zeros(4), 0", size=0), {}, f"{TRAINING} has no samples"),
    "items that raise": (items("return torch.zeros(4), [0, 1][i]"), {},
        f"{TRAINING} sample 2 raised IndexError: list index out of range\n"
        "    my_data.py:10: in __getitem__: return torch.zeros(4), [0, 1][i]"),
    "items that differ": (items("return torch.zeros(5 if i == 3 else 4), i % 2"), {},
        f"{TRAINING} samples 0 and 3 differ in shape: (4,), () and (5,), ()"),
    "items without target": (items("return torch.zeros(4)"), {}, f"{TRAINING} sample 0 is an array of shape (4,)"),
    "items as mappings": (items("return {{'x': 1, 'y': 2}}"), {}, f"{TRAINING} sample 0 is a dict of 2"),
    "a target of unknown type": (items("return torch.zeros(4), 'cat'"), {}, f"{TRAINING} the target of sample 0 is a str"),
    "an input of unknown type": (items("return (torch.zeros(4), None), 1"), {}, f"{TRAINING} an input of sample 0 is None"),
    "a loader": (loads("loader = DataLoader(TensorDataset(torch.zeros(3, 4)))\n    return loader, loader"), {},
        f"{TRAINING} is a DataLoader, which gives no sample by its number"),
    "None": (loads("return None, None"), {}, f"{TRAINING} is None, which gives no sample by its number"),
    "lengths": (both("torch.zeros(3, 4), torch.zeros(2)"), {}, f"{TRAINING} the arrays have 3, 2 samples"),
    "inputs alone": (both("(torch.zeros(3, 4),)"), {}, f"{TRAINING} is a tuple of 1"),
    "NaN": (both("np.array([[1.0], [np.nan]]), np.zeros(2)"), {},
        f"{TRAINING} array 0: sample 1 has NaN or infinite values"),
    "infinity": (both("np.zeros((3, 4)), np.array([1, np.inf, 2])"), {},
        f"{TRAINING} array 1: sample 1 has NaN or infinite values"),
    "texts": (both("np.array(['a', 'b']), np.zeros(2)"), {},
        f"{TRAINING} array 0: is an array of shape (2,) with values of type <U1"),
    "ragged": (both("np.zeros((2, 3)), [[1], [2, 3]]"), {}, f"{TRAINING} array 1: is no array: "),
    "complex": (both("torch.zeros(2, 3, dtype=torch.cfloat), torch.zeros(2)"), {}, f"{TRAINING} array 0: holds complex"),
    "a number": (both("torch.zeros(2, 3), 5"), {}, f"{TRAINING} array 1: is a single number"),
    "negative classes": (both("torch.zeros(3, 4), torch.arange(3) - 1"), {}, f"{TRAINING} a target is -1"),
    "one class": (both("torch.zeros(3, 4), torch.ones(3).long()"), {}, f"{TRAINING} all targets are 1"),
    "counts as classes": (both("torch.zeros(3, 4), torch.arange(3) * 700"), {},
        f"{TRAINING} targets are whole numbers up to 1,400, more than samples"),
    "too few names": ({}, {"data": "names: [a]"}, "data.names: is a list of 1, and the targets have 2 classes"),
    "a class without a name": (items("return torch.zeros(4), 7 if i == 1 else 0"), {"data": "names: [a, b]"},
        f"{TRAINING} a target is 7\n  possible: class indices from 0 to 1"),
    "no labels": ({}, {"data": "targets: labels"}, "data.targets: is labels, and the targets are int64 of shape (samples)"),
    "a loss for numbers": ({}, {"train": "loss: mse"},
        "train.loss: is mse\n  possible: the targets are classes (int64), for which there is cross-entropy, focal, "
        "or a loss of your own"),
    "weights of classes": ({}, {"data": "targets: numbers", "train": "class_weights: balanced"},
        "train.class_weights: is balanced"),
    "a metric that is not there": ({}, {"checkpoint": "best: validation/rmse"},
        "checkpoint.best: is validation/rmse\n  possible: the targets are classes (int64), with the metrics "
        "train/loss, validation/loss, validation/accuracy, validation/f1"),
    "a metric to stop by": ({}, {"data": "targets: numbers", "train": "early_stopping: {metric: validation/f1}"},
        "train.early_stopping.metric: is validation/f1\n  possible: the targets are numbers (int64)"),
    "targets that need a loss": (both("torch.zeros(3, 4), torch.zeros(3, 2, 2)"), {},
        "train.loss: is missing, and the targets are float32 of shape (samples, 2, 2)"),
    "a network that raises": ({"my_model.py": "def build():\n    return {}['y']\n"}, {},
        "model.file: build() in my_model.py raised KeyError: 'y'\n    my_model.py:2: in build: return {}['y']"),
    "no module": ({"my_model.py": "def build():\n    pass\n"}, {},
        "model.file: build() in my_model.py returned None\n  possible: a torch.nn.Module"),
    "a class": (network("return Net(width, outputs)", "return Net"), {},
        "model.file: build() in my_model.py returned the class Net\n  possible: a torch.nn.Module\n"
        "  do:       return an instance: add ()"),
    "a library that is not there": ({"my_model.py": "import nowhere\n" + MODEL}, {},
        "model.file: build() in my_model.py raised ModuleNotFoundError: No module named 'nowhere'\n"
        "    my_model.py:1: import nowhere"),
    "a sibling with a mistake": ({"my_model.py": "import layers\n" + MODEL, "layers.py": "x = 1\ny = = 2\n"}, {},
        "model.file: build() in my_model.py raised SyntaxError: layers.py:2:5: invalid syntax\n    y = = 2"),
    "forward of another shape": (network("nn.Linear(4,", "nn.Linear(5,"), {},
        f"{NETWORK}, called with inputs of shape (2, 4), raised RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (2x4 and 5x8)\n    my_model.py:10: in forward: return self.last(self.body(x).relu())"),
    "forward with more inputs": (network("forward(self, x)", "forward(self, x, y)"), {},
        f"{NETWORK}, called with inputs of shape (2, 4), raised TypeError: Net.forward() missing 1 required"),
    "layers of torch alone": ({"my_model.py": "from torch import nn\ndef build():\n    return nn.Linear(3, 2)\n"}, {},
        f"{NETWORK}, called with inputs of shape (2, 4), raised RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (2x4 and 3x2)\n  do:       correct these lines"),
    "too many outputs": (network("Net(width, outputs)", "Net(width, 3)"), {}, f"{NETWORK} gives shape (2, 3) for 2 samples"),
    "a squeezed output": ({**loads("part = torch.zeros(3, 4), torch.zeros(3)\n    return part, part"),
        **network(".relu())", ".relu()).squeeze(1)")}, {}, f"{NETWORK} gives shape (2,) for 2 samples\n"
        "  possible: (N, 1), here (2, 1)"),
    "nothing to train": ({"my_model.py": "from torch import nn\ndef build():\n    return nn.Flatten()\n"}, {},
        f"{NETWORK} has no parameter that can be trained"),
    "no gradient": (network(".relu())", ".relu()).detach()"), {},
        f"{NETWORK} gives float32 numbers that no gradient flows through"),
    "several outputs": (network("return self.last(self.body(x).relu())", "return {'a': self.last(self.body(x))}"), {},
        f"{NETWORK} gives a dict of 1"),
    "a loss that raises": (terms("lambda outputs, targets: outputs - targets.nothing"), MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py, called with outputs (2, 2) float32 and targets (2,) int64, "
        "raised AttributeError: 'Tensor' object has no attribute 'nothing'\n    my_loss.py:3: in <lambda>: return"),
    "a loss by output": (terms("lambda outputs, targets: outputs * 2"), MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py gives shape (2, 2) for 2 samples"),
    "a loss as a number": (terms("lambda outputs, targets: 3.0"), MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py gives a float"),
    "a loss without gradient": (terms("lambda outputs, targets: outputs.detach().mean()"), MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py gives a value that no gradient flows through"),
    "a loss by name": (terms("'mse'"), MY_LOSS, "train.loss.file: the loss of loss() in my_loss.py is a str"),
    "the class of a loss": (terms("nn.CrossEntropyLoss"), MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py is the class CrossEntropyLoss"),
    "a loss to train": (terms("nn.Linear(2, 2)"), MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py has trainable parameters"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "parts", "expected"), BAD.values(), ids=BAD)
def test_bad_code_and_its_message(
    files: dict[str, str], parts: dict[str, str], expected: str, tmp_path: Path
) -> None:  # fmt: skip
    made = job(tmp_path, files, **parts)
    with pytest.raises((SpecError, DataError)) as raised:
        build(made, next_epoch(load(made)))
    message = str(raised.value)
    assert raised.value.exit_code == (3 if expected.startswith("data.file") else 2)
    assert expected in message
    assert (message if message.startswith("data.file") else message.split(": ", 1)[1]).startswith(expected), message


def next_epoch(data: Dataset) -> Dataset:
    """The data, after all of it was seen once."""
    assert sum(len(batch) for batch in Batches(data.train, 16, seed=0).epoch(0)) == len(data.train)
    return data


class Points(TorchDataset[Any]):
    """A map-style dataset that counts how often it is asked."""

    def __init__(self, x: Tensor, y: Tensor, **attributes: Any) -> None:
        self.x, self.y, self.asked = x, y, 0
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return (self.x[index], float(index)), self.y[index]


def drawn(samples: int = 37, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(dim=1) > 0).long()


def test_items_and_arrays_are_the_same_batches() -> None:
    x, y = drawn()
    one = opened(Points(x, y), "a", 0)
    two = opened((x, torch.arange(37.0), y), "b", 0)
    assert isinstance(one, ItemSplit)
    assert isinstance(two, ArraySplit)
    two.settle(Tensor.long, 2)
    for first, second in zip(Batches(one, 8, 0).epoch(0), Batches(two, 8, 0).epoch(0), strict=True):
        assert all(torch.equal(a.float(), b) for a, b in zip(first.inputs, second.inputs, strict=True))
        assert torch.equal(first.targets[""], second.targets[""])


def test_a_random_split_of_arrays_is_gathered_by_index() -> None:
    x, y = drawn()
    part, _ = random_split(TensorDataset(x, y), [30, 7], torch.Generator().manual_seed(1))
    inner, _ = random_split(part, [20, 10], torch.Generator().manual_seed(2))
    split = opened(inner, "a", 0)
    assert isinstance(split, ArraySplit)
    assert len(split) == 20
    expected = torch.stack([inner[i][0] for i in range(20)])
    assert torch.equal(split.gather(np.arange(20))[0], expected)
    assert torch.equal(split.all_targets(), torch.stack([inner[i][1] for i in range(20)]))


def test_a_memory_map_stays_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0, dtype=">f4").reshape(6, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    split = opened((mapped, np.arange(6)), "a", 0)
    assert split.gather(np.array([5, 0]))[0].tolist() == [[10, 11], [0, 1]]


@pytest.mark.parametrize("listed", [True, False])
def test_targets_are_taken_from_the_dataset_if_it_lists_them(listed: bool) -> None:
    x, y = drawn()
    points = Points(x, y, **({"targets": y.tolist()} if listed else {}))
    split = opened(points, "a", 0)
    assert isinstance(split, ItemSplit)
    assert torch.equal(split.all_targets(), y)
    assert points.asked == (3 if listed else 37)
    assert torch.equal(split.targets[""], y)


def test_a_list_of_targets_that_says_something_else_is_not_believed() -> None:
    x, y = drawn()
    split = opened(Points(x, y, targets=(1 - y).tolist()), "a", 0)
    assert isinstance(split, ItemSplit)
    assert torch.equal(split.all_targets(), y)


class Drawing(TorchDataset[Any]):
    """Items with random numbers of all three kinds."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        import random

        return torch.tensor([torch.rand(()).item(), float(np.random.rand()), random.random()]), index % 2


def test_draws_of_a_dataset_are_a_function_of_seed_and_batch() -> None:
    split = opened(Drawing(), "a", 5)
    batches = Batches(split, 4, seed=0)
    first = [batch.inputs[0] for batch in batches.epoch(0)]
    torch.rand(7)
    before = torch.get_rng_state()
    again = [batch.inputs[0] for batch in batches.epoch(0)]
    assert torch.equal(before, torch.get_rng_state())
    resumed = [batch.inputs[0] for batch in batches.epoch(0, start=2)]
    later = [batch.inputs[0] for batch in batches.epoch(1)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(first[2], resumed[0])
    seen = torch.cat(first).flatten()
    assert len(seen.unique()) == len(seen)
    assert not torch.isin(seen, torch.cat(later)).any()


class Failing(Drawing):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise ValueError("a broken file")
        return super().__getitem__(index)


def test_a_worker_gives_the_same_batches_and_the_same_message() -> None:
    groups = [np.arange(4), np.arange(4, 8)]
    here, there = (list(fetch(opened(Drawing(), "a", 0), groups, workers=workers)) for workers in (0, 1))
    assert all(torch.equal(a.inputs[0], b.inputs[0]) for a, b in zip(here, there, strict=True))
    with pytest.raises(DataError) as raised:
        list(fetch(opened(Failing(), "a", 0), [*groups, np.arange(8, 12)], workers=1))
    assert str(raised.value) == "a: sample 9 raised ValueError: a broken file\n  do:       correct these lines"


@pytest.mark.parametrize(
    ("targets", "options", "head", "shape"),
    [
        ("torch.arange(6) % 3", "", Head("", classes=("0", "1", "2")), (6,)),
        ("(torch.arange(6) % 3).to(torch.uint8)", "names: [a, b, c]", Head("", classes=("a", "b", "c")), (6,)),
        ("torch.arange(6) % 2 == 0", "", Head("", classes=("0", "1")), (6,)),
        ("torch.eye(6).long()[:, :3]", "", Head("", classes=("0", "1", "2"), several=True), (6, 3)),
        ("np.arange(6.0)", "", Head("", columns=("value",), mean=(0.0,), std=(1.0,)), (6, 1)),
        ("np.arange(12.0).reshape(6, 2)", "names: [u, v]",
         Head("", columns=("u", "v"), mean=(0.0, 0.0), std=(1.0, 1.0)), (6, 2)),
        ("torch.arange(6)", "targets: numbers", Head("", columns=("value",), mean=(0.0,), std=(1.0,)), (6, 1)),
    ],
)  # fmt: skip
def test_what_targets_are(targets: str, options: str, head: Head, shape: tuple[int, ...], tmp_path: Path) -> None:
    data = load(job(tmp_path, both(f"torch.zeros(6, 4), {targets}"), **({"data": options} if options else {})))
    assert data.heads == {"": head}
    assert tuple(data.train.targets[""].shape) == shape
    assert data.train.targets[""].dtype == (torch.int64 if head.classes and not head.several else torch.float32)


def gradient(weight: Tensor, x: Tensor, y: Tensor, loss: Any, size: int) -> Tensor:
    """Of an objective over a batch that is split into parts of `size`."""
    goal = losses.objective(None, {"": Head("")}, {}, "none", OwnTerms(loss, "loss", SpecError))
    weight = weight.clone().requires_grad_()
    over = goal.denominators({"": y})
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        goal(x[part] @ weight, {"": y[part]}, over).backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: (outputs - targets).abs().pow(1.5).sum(dim=1),
        lambda outputs, targets: (outputs - targets).pow(2).mean(),
        nn.HuberLoss(),
        nn.L1Loss(reduction="none") if False else nn.SmoothL1Loss(),
    ],
    ids=["terms", "mean", "Huber", "smooth L1"],
)
def test_accumulation_is_exact_for_terms_and_for_means(loss: Any, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, weight = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((13, 4), (13, 3), (4, 3))
    )
    whole = gradient(weight, x, y, loss, 13)
    expected = torch.func.grad(lambda w: loss(x @ w, y).mean())(weight)
    torch.testing.assert_close(whole, expected, rtol=1e-12, atol=0)
    parts = gradient(weight, x, y, loss, size)
    assert float((parts - whole).norm() / whole.norm()) <= 1e-12


OFFERED = """
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.last = nn.LazyLinear(outputs)

    def forward(self, *inputs):
        return self.last(inputs[0].flatten(1).float())

def build(outputs, classes=None, inputs=None, vocabulary=None, categories=None, {more}):
    made = Net(outputs)
    made.given = [outputs, classes, inputs, vocabulary, categories]
    return made
"""


def own_network(folder: Path, task: str, data: str, more: str = "**others") -> Model:
    (folder / "my_model.py").write_text(OFFERED.format(more=more))
    (folder / "job.yaml").write_text(f"name: a\ntask: {task}\ndata: {data}\nmodel: {{file: my_model.py}}\n")
    from runtime import spec

    made = spec.load(folder / "job.yaml")
    return build(made, load(made))


def test_a_network_of_ones_own_for_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 9, 9), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(24) % 3)
    made = own_network(tmp_path, "image-classification", "{train: a.npz, validation: 0.25}")
    assert made.module.given == [3, 3, [[1, 9, 9]], None, None]
    assert made.arguments["arguments"] == {"outputs": 3, "classes": 3, "inputs": [[1, 9, 9]]}


def test_a_network_of_ones_own_for_tables(tmp_path: Path) -> None:
    rows = [f"{i},{i * i},{'ab'[i % 2]},{i / 3}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["u,v,kind,y", *rows]) + "\n")
    made = own_network(tmp_path, "tabular-regression", "{train: a.csv, target: y}", more="u=1")
    assert made.module.given == [1, None, [[2], [1]], None, [3]]


def test_a_network_of_ones_own_for_series(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=draw.normal(size=(30, 12, 2)), y=np.arange(30) % 2)
    made = own_network(tmp_path, "series-classification", "{train: a.npz, validation: 0.2}")
    assert made.module.given == [2, 2, [[12, 2]], None, None]


TEXTS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, vocabulary, outputs):
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary, 8)
        self.heads = nn.ModuleDict({name: nn.Linear(8, count) for name, count in outputs.items()})

    def forward(self, ids, mask):
        found = self.words(ids)
        return {name: head(found) for name, head in self.heads.items()}
"""


def test_a_network_of_ones_own_for_texts_with_two_heads(tmp_path: Path) -> None:
    lines = [f"word{i % 5} other{i % 3},{'ab'[i % 2]},{'xyz'[i % 3]}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,kind,part", *lines]) + "\n")
    (tmp_path / "net.py").write_text(TEXTS)
    path = tmp_path / "job.yaml"
    path.write_text("name: a\ntask: text-classification\nmodel: {file: net.py, factory: Net}\n"
                    "data: {train: a.csv, text: text, labels: [kind, part], max_length: 8}\n")  # fmt: skip
    from runtime import spec

    made = spec.load(path)
    network_ = build(made, load(made))
    assert network_.arguments["arguments"]["outputs"] == {"kind": 2, "part": 3}
    (tmp_path / "net.py").write_text(TEXTS.replace("return {name", "return {name + '?'"))
    from runtime.user_code import Code, at

    at(tmp_path).__dict__ |= Code(tmp_path).__dict__
    with pytest.raises(SpecError, match="gives a mapping of kind\\?, part\\?\n  possible: a mapping of kind, part to"):
        build(made, load(made))


def test_numbers_of_double_precision_become_single(tmp_path: Path) -> None:
    data = load(job(tmp_path, both("np.ones((6, 4)), np.arange(6) % 2")))
    assert own.as_float32(data.train.gather(np.arange(2)), np.arange(2), None)[0].dtype == torch.float32
    assert data.preprocessing["inputs"] == [{"shape": [4], "type": "float32"}]


def test_the_first_weights_are_a_function_of_the_seed(tmp_path: Path) -> None:
    def weights(seed: int, files: dict[str, str], folder: str) -> Tensor:
        (tmp_path / folder).mkdir()
        made = job(tmp_path / folder, files, train=f"seed: {seed}")
        torch.rand(3)
        return next(iter(build(made, load(made)).module.parameters())).detach()

    asked = items("return torch.rand(4), i % 2")
    assert torch.equal(weights(0, {}, "a"), weights(0, {}, "b"))
    assert torch.equal(weights(0, {}, "c"), weights(0, asked, "d"))
    assert not torch.equal(weights(1, {}, "e"), weights(0, {}, "f"))
