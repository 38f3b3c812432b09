"""Code of one's own that is wrong when it runs: each mistake with its message and the person's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.errors import DataError, SpecError
from drivetrain.models.build import build
from tests.own_job import DATA, MODEL, define_arrays, define_items, define_load, job

torch.set_num_threads(1)

TRAINING = "data.file: training data of load() in my_data.py:"
NETWORK = "model.file: the network of build() in my_model.py"
MY_LOSS = {"train": "loss: {file: my_loss.py}"}


def network(change: str, to: str) -> dict[str, str]:
    assert change in MODEL
    return {"my_model.py": MODEL.replace(change, to)}


def terms(body: str) -> dict[str, str]:
    return {"my_loss.py": f"from torch import nn\ndef loss():\n    return {body}\n"}


# Files, parts of the spec, and what the first lines of the message are.
IN_SEQUENCE = """from torch import nn
def body():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(7, 2))
"""
INNER = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = body()

    def forward(self, x):
        return self.inner(x)
def build():
    return Net()
"""
BAD: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "data that raises": (
        define_load("return int('x')"),
        {},
        "data.file: load() in my_data.py raised ValueError: invalid literal for int() with base 10: 'x'\n"
        "    my_data.py:6: in load: return int('x')",
    ),
    "one part only": (
        define_load("return TensorDataset(torch.zeros(3, 4))"),
        {},
        "data.file: load() in my_data.py returned a TensorDataset\n  possible: a pair: (training data, validation data)",
    ),
    "no function": (
        {"my_data.py": DATA + "\nload = 3\n"},
        {},
        "data.file: load() in my_data.py raised TypeError: load is of type int and cannot be called",
    ),
    "a script that exits": (
        {"my_data.py": "import sys\nsys.exit('no licence')\ndef load():\n    pass\n"},
        {},
        "data.file: load() in my_data.py raised SystemExit: no licence\n    my_data.py:2: sys.exit('no licence')",
    ),
    "no samples": (define_items("return torch.zeros(4), 0", size=0), {}, f"{TRAINING} has no samples"),
    "items that raise": (
        define_items("return torch.zeros(4), [0, 1][i]"),
        {},
        f"{TRAINING} sample 2 raised IndexError: list index out of range\n"
        "    my_data.py:10: in __getitem__: return torch.zeros(4), [0, 1][i]",
    ),
    "items that differ": (
        define_items("return torch.zeros(5 if i == 3 else 4), i % 2"),
        {},
        f"{TRAINING} samples 0 and 3 differ in shape: (4,), () and (5,), ()",
    ),
    "items without target": (
        define_items("return torch.zeros(4)"),
        {},
        f"{TRAINING} sample 0 is an array of shape (4,)",
    ),
    "items as mappings": (define_items("return {'x': 1, 'y': 2}"), {}, f"{TRAINING} sample 0 is a dict of 2"),
    "a target of unknown type": (
        define_items("return torch.zeros(4), 'cat'"),
        {},
        f"{TRAINING} the target of sample 0 is a str",
    ),
    "an input of unknown type": (
        define_items("return (torch.zeros(4), None), 1"),
        {},
        f"{TRAINING} an input of sample 0 is None",
    ),
    "a loader": (
        define_load("loader = DataLoader(TensorDataset(torch.zeros(3, 4)))\n    return loader, loader"),
        {},
        f"{TRAINING} is a DataLoader, and the job makes the batches",
    ),
    "None": (define_load("return None, None"), {}, f"{TRAINING} is None, which has no __getitem__ or no __len__"),
    "lengths": (define_arrays("torch.zeros(3, 4), torch.zeros(2)"), {}, f"{TRAINING} the arrays have 3, 2 samples"),
    "inputs alone": (define_arrays("(torch.zeros(3, 4),)"), {}, f"{TRAINING} is a tuple of 1"),
    "NaN": (
        define_arrays("np.array([[1.0], [np.nan]]), np.zeros(2)"),
        {},
        f"{TRAINING} array 0: sample 1 has NaN or infinite values",
    ),
    "infinity": (
        define_arrays("np.zeros((3, 4)), np.array([1, np.inf, 2])"),
        {},
        f"{TRAINING} array 1: sample 1 has NaN or infinite values",
    ),
    "texts": (
        define_arrays("np.array(['a', 'b']), np.zeros(2)"),
        {},
        f"{TRAINING} array 0: is an array of shape (2,) with values of type <U1",
    ),
    "ragged": (
        define_arrays("np.zeros((2, 3)), [[1], [2, 3]]"),
        {},
        f"{TRAINING} array 1: cannot be converted to an array: ",
    ),
    "complex": (
        define_arrays("torch.zeros(2, 3, dtype=torch.cfloat), torch.zeros(2)"),
        {},
        f"{TRAINING} array 0: holds complex",
    ),
    "a number": (define_arrays("torch.zeros(2, 3), 5"), {}, f"{TRAINING} array 1: is a single number"),
    "negative classes": (define_arrays("torch.zeros(3, 4), torch.arange(3) - 1"), {}, f"{TRAINING} a target is -1"),
    "one class": (define_arrays("torch.zeros(3, 4), torch.ones(3).long()"), {}, f"{TRAINING} all targets are 1"),
    "counts as classes": (
        define_arrays("torch.zeros(3, 4), torch.arange(3) * 700"),
        {},
        f"{TRAINING} targets are whole numbers up to 1,400, more than samples",
    ),
    "too few names": ({}, {"data": "names: [a]"}, "data.names: is a list of 1, and the targets have 2 classes"),
    "a class without a name": (
        define_items("return torch.zeros(4), 7 if i == 1 else 0"),
        {"data": "names: [a, b]"},
        f"{TRAINING} a target is 7\n  possible: targets from 0 to 1, as at the start",
    ),
    "labels that stop being labels": (
        define_items("return torch.zeros(4), torch.tensor([0, 1 if i < 9 else 5])"),
        {},
        f"{TRAINING} a target is 5\n  possible: targets from 0 to 1, as at the start",
    ),
    "no labels": (
        {},
        {"data": "targets: labels"},
        "data.targets: is labels, and the targets are int64 of shape (samples)",
    ),
    "a loss for numbers": (
        {},
        {"train": "loss: mse"},
        "train.loss: is mse\n  possible: the targets are classes (int64), for which there is cross-entropy, focal, "
        "or a loss of your own",
    ),
    "weights of classes": (
        {},
        {"data": "targets: numbers", "train": "class_weights: balanced"},
        "train.class_weights: is 'balanced'",
    ),
    "a metric that is not there": (
        {},
        {"checkpoint": "best: validation/rmse"},
        "checkpoint.best: is validation/rmse\n  possible: the targets are classes (int64), with the metrics "
        "validation/loss, validation/accuracy, validation/f1, validation/balanced_accuracy",
    ),
    "a metric to stop by": (
        {},
        {"data": "targets: numbers", "train": "early_stopping: {metric: validation/f1}"},
        "train.early_stopping.metric: is validation/f1\n  possible: the targets are numbers (int64)",
    ),
    "targets that need a loss": (
        define_arrays("torch.zeros(3, 4), torch.zeros(3, 2, 2)"),
        {},
        "train.loss: is missing, and the targets are float32 of shape (samples, 2, 2)",
    ),
    "a network that raises": (
        {"my_model.py": "def build():\n    return {}['y']\n"},
        {},
        "model.file: build() in my_model.py raised KeyError: 'y'\n    my_model.py:2: in build: return {}['y']",
    ),
    "no module": (
        {"my_model.py": "def build():\n    pass\n"},
        {},
        "model.file: build() in my_model.py returned None\n  possible: a torch.nn.Module",
    ),
    "a network in copies": (
        network("return Net(width, outputs)", "return nn.DataParallel(Net(width, outputs))"),
        {},
        "model.file: build() in my_model.py returned a DataParallel, which copies the network to every GPU in every step\n"
        "  possible: the network itself; limits: {gpus: all} starts one process for each GPU\n"
        "  do:       return it without DataParallel",
    ),
    "a class": (
        network("return Net(width, outputs)", "return Net"),
        {},
        "model.file: build() in my_model.py returned the class Net\n  possible: a torch.nn.Module\n"
        "  do:       return an instance: add ()",
    ),
    "a library that is not there": (
        {"my_model.py": "import nowhere\n" + MODEL},
        {},
        "model.file: build() in my_model.py raised ModuleNotFoundError: No module named 'nowhere'\n"
        "    my_model.py:1: import nowhere",
    ),
    "a sibling with a mistake": (
        {"my_model.py": "import layers\n" + MODEL, "layers.py": "x = 1\ny = = 2\n"},
        {},
        "model.file: build() in my_model.py raised SyntaxError: layers.py:2:5: invalid syntax\n    y = = 2",
    ),
    "forward of another shape": (
        network("nn.Linear(4,", "nn.Linear(5,"),
        {},
        f"{NETWORK}, called with inputs of shape (2, 4), raised RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (2x4 and 5x8)\n    my_model.py:10: in forward: return self.last(self.body(x).relu())",
    ),
    "forward with more inputs": (
        network("forward(self, x)", "forward(self, x, y)"),
        {},
        f"{NETWORK}, called with inputs of shape (2, 4), raised TypeError: Net.forward() missing 1 required",
    ),
    "layers of torch alone": (
        {"my_model.py": "from torch import nn\ndef build():\n    return nn.Linear(3, 2)\n"},
        {},
        f"{NETWORK}, called with inputs of shape (2, 4), raised RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (2x4 and 3x2)\n    in the network: Linear(in_features=3, out_features=2, bias=True)\n"
        "  do:       change this layer, or what it gets: the data, or the layer before it",
    ),
    "a layer of a Sequential": (
        {"my_model.py": IN_SEQUENCE + "def build():\n    return body()\n"},
        {},
        f"{NETWORK}, called with inputs of shape (2, 4), raised RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (2x8 and 7x2)\n    in layer 2: Linear(in_features=7, out_features=2, bias=True)\n"
        "  do:       change this layer, or what it gets: the data, or the layer before it",
    ),
    "a layer of a Sequential in a network of the user's": (
        {"my_model.py": IN_SEQUENCE + INNER},
        {},
        f"{NETWORK}, called with inputs of shape (2, 4), raised RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (2x8 and 7x2)\n    my_model.py:10: in forward: return self.inner(x)\n"
        "    in layer inner.2: Linear(in_features=7, out_features=2, bias=True)\n  do:       fix these lines",
    ),
    "a weight of two classes for three": (
        define_arrays("torch.zeros(6, 4), torch.arange(6) % 3"),
        {"train": "loss: {name: focal, alpha: 0.25}"},
        "train.loss.alpha: is 0.25, and the data has 3 classes\n  possible: a weight of class 1 of two classes",
    ),
    "a buffer that a forward pass makes": (
        network("return self.last", "self.register_buffer('seen', x.detach().mean(dim=0))\n        return self.last"),
        {},
        f"{NETWORK}: seen is of shape (4,) after a forward pass and was missing before\n"
        "  possible: parameters and buffers created in __init__, or by a lazy module\n"
        "  do:       create it in __init__; use register_buffer(..., persistent=False)",
    ),
    "too many outputs": (
        network("Net(width, outputs)", "Net(width, 3)"),
        {},
        f"{NETWORK} gives shape (2, 3) for 2 samples",
    ),
    "a squeezed output": (
        {
            **define_load("part = torch.zeros(3, 4), torch.zeros(3)\n    return part, part"),
            **network(".relu())", ".relu()).squeeze(1)"),
        },
        {},
        f"{NETWORK} gives shape (2,) for 2 samples\n  possible: (N, 1), here (2, 1)",
    ),
    "nothing to train": (
        {"my_model.py": "from torch import nn\ndef build():\n    return nn.Flatten()\n"},
        {},
        f"{NETWORK} has no trainable parameter",
    ),
    "sparse gradients": (
        network("super().__init__()", "super().__init__()\n        self.table = nn.Embedding(9, 2, sparse=True)"),
        {},
        f"{NETWORK}: table has sparse=True, and therefore sparse gradients",
    ),
    "no gradient": (
        network(".relu())", ".relu()).detach()"),
        {},
        f"{NETWORK} gives float32 numbers without a gradient",
    ),
    "several outputs": (
        network("return self.last(self.body(x).relu())", "return {'a': self.last(self.body(x))}"),
        {},
        f"{NETWORK} gives a dict of 1",
    ),
    "a loss that raises": (
        terms("lambda outputs, targets: outputs - targets.nothing"),
        MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py, called with outputs (12, 2) float32 and targets (12,) int64, "
        "raised AttributeError: 'Tensor' object has no attribute 'nothing'\n    my_loss.py:3: in <lambda>: return",
    ),
    "a loss by output": (
        terms("lambda outputs, targets: outputs * 2"),
        MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py gives shape (12, 2) for 12 samples",
    ),
    "a loss as a number": (
        terms("lambda outputs, targets: 3.0"),
        MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py gives a float",
    ),
    "a loss without gradient": (
        terms("lambda outputs, targets: outputs.detach().mean()"),
        MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py returns a value without a gradient",
    ),
    "a loss by name": (terms("'mse'"), MY_LOSS, "train.loss.file: the loss of loss() in my_loss.py is a str"),
    "the class of a loss": (
        terms("nn.CrossEntropyLoss"),
        MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py is the class CrossEntropyLoss",
    ),
    "a loss to train": (
        terms("nn.Linear(2, 2)"),
        MY_LOSS,
        "train.loss.file: the loss of loss() in my_loss.py has trainable parameters",
    ),
}


@pytest.mark.parametrize(("files", "parts", "expected"), BAD.values(), ids=BAD)
def test_bad_code_and_its_message(files: dict[str, str], parts: dict[str, str], expected: str, tmp_path: Path) -> None:
    user_job = job(tmp_path, files, **parts)
    with pytest.raises((SpecError, DataError)) as error:
        build(user_job, next_epoch(load(user_job)))
    message = str(error.value)
    assert error.value.exit_code == (3 if expected.startswith("data.file") else 2)
    assert expected in message
    assert (message if message.startswith("data.file") else message.split(": ", 1)[1]).startswith(expected), message


def next_epoch(data: Dataset) -> Dataset:
    """The data, after all of it was seen once."""
    assert sum(len(batch) for batch in Batches(data.train, 16, seed=0).epoch(0)) == len(data.train)
    return data
