"""Networks and losses of one's own: for every task, and exact where a batch is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drivetrain.data.custom.user_loss import CustomTerms
from drivetrain.data.dataset import Head
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models.build import BuiltModel, build
from drivetrain.training import losses
from tests.own_job import define_items, job

torch.set_num_threads(1)


def gradient(weight: Tensor, x: Tensor, y: Tensor, loss: Any, size: int) -> Tensor:
    """Compute the gradients of an objective over a batch that is split into micro-batches of `size`."""
    objective = losses.build_objective(None, {"": Head("")}, {}, "none", CustomTerms(loss, "loss", SpecError))
    weight = weight.clone().requires_grad_()
    denominators = objective.denominators({"": y})
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        objective(x[part] @ weight, {"": y[part]}, denominators).backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: (outputs - targets).abs().pow(1.5).sum(dim=1),
        lambda outputs, targets: (outputs - targets).pow(2).mean(),
        nn.HuberLoss(),
    ],
    ids=["terms", "mean", "Huber"],
)
def test_accumulation_is_exact_for_terms_and_for_means(loss: Any, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, weight = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((13, 4), (13, 3), (4, 3))
    )
    full_gradient = gradient(weight, x, y, loss, 13)
    free = weight.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(x @ free, y).mean(), free)
    torch.testing.assert_close(full_gradient, expected, rtol=1e-12, atol=0)
    split_gradient = gradient(weight, x, y, loss, size)
    assert float((split_gradient - full_gradient).norm() / full_gradient.norm()) <= 1e-12


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


def build_user_network(folder: Path, task: str, data: str, keywords: str = "**others") -> BuiltModel:
    (folder / "my_model.py").write_text(OFFERED.format(more=keywords))
    (folder / "job.yaml").write_text(f"name: a\ntask: {task}\ndata: {data}\nmodel: {{file: my_model.py}}\n")
    user_job = job_spec.load(folder / "job.yaml")
    return build(user_job, load(user_job))


def test_a_user_network_for_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 9, 9), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(24) % 3)
    model = build_user_network(tmp_path, "image-classification", "{train: a.npz, validation: 0.25}")
    assert model.module.given == [3, 3, [[1, 9, 9]], None, None]
    assert model.arguments["arguments"] == {"outputs": 3, "classes": 3, "inputs": [[1, 9, 9]]}


def test_a_user_network_for_tables(tmp_path: Path) -> None:
    rows = [f"{i * 7 % 11},{i * i},{'ab'[i % 2]},{i / 3}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["u,v,kind,y", *rows]) + "\n")
    model = build_user_network(tmp_path, "tabular-regression", "{train: a.csv, target: y}", keywords="u=1")
    assert model.module.given == [1, None, [[2], [1]], None, [3]]


def test_a_user_network_for_series(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=draw.normal(size=(30, 12, 2)), y=np.arange(30) % 2)
    model = build_user_network(tmp_path, "series-classification", "{train: a.npz, validation: 0.2}")
    assert model.module.given == [2, 2, [[12, 2]], None, None]


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


def test_a_user_network_for_texts_with_two_heads(tmp_path: Path) -> None:
    lines = [f"word{i % 5} other{i % 3},{'ab'[i % 2]},{'xyz'[i % 3]}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,kind,part", *lines]) + "\n")
    (tmp_path / "net.py").write_text(TEXTS)
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: a\ntask: text-classification\nmodel: {file: net.py, factory: Net}\n"
        "data: {train: a.csv, text: text, labels: [kind, part], max_length: 8}\n"
    )
    user_job = job_spec.load(path)
    assert build(user_job, load(user_job)).arguments["arguments"]["outputs"] == {"kind": 2, "part": 3}
    (tmp_path / "wrong.py").write_text(TEXTS.replace("return {name", "return {name + '?'"))
    user_job = job_spec.load(path, ["model.file=wrong.py"])
    with pytest.raises(SpecError, match=r"gives a mapping of kind\?, part\?\n  possible: a mapping of kind, part to"):
        build(user_job, load(user_job))


def test_the_first_weights_are_a_function_of_the_seed(tmp_path: Path) -> None:
    def weights(seed: int, files: dict[str, str], folder: str) -> Tensor:
        (tmp_path / folder).mkdir()
        user_job = job(tmp_path / folder, files, train=f"seed: {seed}")
        torch.rand(3)
        return next(iter(build(user_job, load(user_job)).module.parameters())).detach()

    random_items = define_items("return torch.rand(4), i % 2")
    assert torch.equal(weights(0, {}, "a"), weights(0, {}, "b"))
    assert torch.equal(weights(0, {}, "c"), weights(0, random_items, "d"))
    assert not torch.equal(weights(1, {}, "e"), weights(0, {}, "f"))
