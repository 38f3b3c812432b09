"""Programs whose batches are graphs of several sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.supervisor.programs.comparison import (
    OFF,
    Loop,
    Refusal,
    check_loop,
    check_refusal,
    draw,
    mlp,
    no_report,
    run_steps,
    train,
)

__all__ = ["no_report"]


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


def raise_out_of_memory() -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


LOOPS = {
    "graphs as objects": Loop(GraphNet, GRAPHS, graph_loss, lambda o, graphs: F.cross_entropy(o, graphs.y)),
    "graphs as objects, several batches": Loop(
        GraphNet, GRAPHS, graph_loss, lambda o, graphs: F.cross_entropy(o, graphs.y), settings={"accumulate": 3}
    ),
    "graphs as tensors": Loop(GraphNet, [((b.x, b.of), b.y) for b in GRAPHS], graph_loss, F.cross_entropy),
    "graphs as mappings": Loop(GraphNet, [{"x": b.x, "of": b.of, "y": b.y} for b in GRAPHS], graph_loss),
}
REFUSALS = {
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
    "micro-batches of graphs": Refusal(
        lambda folder: run_steps(
            GraphNet(), GRAPHS, loss=lambda o, b: F.cross_entropy(o, b.y), optimize=OFF | {"micro_batch": 2}
        ),
        ("optimize.micro_batch is 2", "the batch holds a Graphs", "remove micro_batch"),
        lambda folder: run_steps(GraphNet(), GRAPHS, loss=lambda o, b: F.cross_entropy(o, b.y)),
    ),
    "memory for graphs": Refusal(
        lambda folder: run_steps(GraphNet(), GRAPHS, loss=lambda o, b: raise_out_of_memory()),
        ("out of memory with the whole batch", "the batch holds a Graphs"),
        lambda folder: run_steps(GraphNet(), GRAPHS, loss=lambda o, b: F.cross_entropy(o, b.y)),
    ),
}


@pytest.mark.parametrize("program", LOOPS.values(), ids=LOOPS)
def test_a_loop_over_graphs_trains_as_by_hand(program: Loop) -> None:
    check_loop(program)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_refused_graphs_have_another_way(refusal: Refusal, tmp_path: Path) -> None:
    check_refusal(refusal, tmp_path)
