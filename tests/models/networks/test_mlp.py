"""The perceptron for tables: shapes, unknown categories, freezing, and that it learns what there is to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.load_data import load
from drivetrain.job.model import Freeze
from drivetrain.models import build
from drivetrain.models.freeze import freeze
from drivetrain.models.networks import mlp
from tests.data.tables.table_rows import job, make_mixed_rows, write_rows
from tests.models.networks.short_training import train_network

torch.set_num_threads(1)


@pytest.mark.parametrize(("numbers", "categories"), [(3, []), (0, [4, 2]), (3, [4, 2])])
def test_shapes(numbers: int, categories: list[int]) -> None:
    network = mlp.Mlp(numbers=numbers, categories=categories, outputs=5, hidden=[7, 6], embedding=2)
    inputs = [torch.randn(9, numbers)] * bool(numbers) + [torch.ones(9, len(categories), dtype=torch.int32)] * bool(
        categories
    )
    assert network(*inputs).shape == (9, 5)
    assert network.layers[0][0].in_features == numbers + 2 * len(categories)


def test_each_column_has_its_own_embeddings_and_unknown_is_zero() -> None:
    network = mlp.Mlp(numbers=0, categories=[3, 4], outputs=2, hidden=[8], embedding=2)
    vectors = network.embeddings.weight
    assert vectors.shape == (7, 2)
    assert vectors[[0, 3]].abs().sum() == 0
    assert (vectors[[1, 2, 4, 5, 6]] != 0).all()
    layer_inputs: list[torch.Tensor] = []
    network.layers[0].register_forward_pre_hook(lambda module, inputs: layer_inputs.append(inputs[0]))
    network(torch.tensor([[1, 2], [0, 0]], dtype=torch.int32))
    torch.testing.assert_close(layer_inputs[0], torch.stack([torch.cat([vectors[1], vectors[5]]), torch.zeros(4)]))


def test_vectors_and_their_gradient_are_those_of_torchs_embedding() -> None:
    torch.manual_seed(0)
    places, output_weights = torch.randint(0, 9, (50, 4)), torch.randn(50, 4, 3)
    ours, theirs = mlp.EmbeddingTable(9, 3), torch.nn.Embedding(9, 3)
    theirs.load_state_dict(ours.state_dict())
    for module in (ours, theirs):
        (module(places) * output_weights).sum().backward()
    assert torch.equal(ours(places), theirs(places))
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_the_unknown_category_stays_zero_in_training(tmp_path: Path) -> None:
    dataset = load(job(write_rows(tmp_path, make_mixed_rows())))
    network = build.build(job(tmp_path / "a.parquet"), dataset).module
    inputs = dataset.train.gather(np.arange(len(dataset.train)))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        torch.nn.functional.cross_entropy(network(*inputs), dataset.train.targets[""]).backward()
        optimizer.step()
    assert network.embeddings.weight[network.offsets].abs().sum() == 0


def test_embedded_numbers_are_piecewise_linear_and_constant_outside() -> None:
    edges = [[-1.0, 0.0, 2.0, 3.0], [0.0, 0.5, 1.0]]
    embeddings = mlp.NumberEmbeddings(edges, 4)
    numbers = torch.tensor([[-9.0, 0.2], [-0.25, 0.75], [1.0, -5.0], [2.5, 1e6]])
    linear = numbers.unsqueeze(2) * embeddings.weight + embeddings.bias
    torch.testing.assert_close(embeddings(numbers), linear.flatten(1))
    with torch.no_grad():
        embeddings.pieces.normal_()
    pieces = (embeddings(numbers).view(4, 2, 4) - linear).detach().numpy()
    for column, bounds in enumerate(edges):
        # A piecewise-linear function is known by its values at the edges.
        steps = embeddings.pieces[column, : len(bounds) - 1].detach().numpy()
        values = np.concatenate([np.zeros((1, 4)), steps.cumsum(axis=0)])
        for size in range(4):
            expected = np.interp(numbers[:, column].numpy(), bounds, values[:, size])
            np.testing.assert_allclose(pieces[:, column, size], expected, atol=0.07 if column else 1e-5)


def test_a_bin_between_denormal_numbers_gives_numbers() -> None:
    embeddings = mlp.NumberEmbeddings([[-1.0, 0.0, 1e-40, 1.0]], 2)
    with torch.no_grad():
        embeddings.pieces.normal_()
    assert embeddings(torch.tensor([[0.0], [1e-40], [-1e6], [1e6]])).isfinite().all()


def test_numbers_without_bins_go_in_as_they_are() -> None:
    network = mlp.Mlp(
        numbers=3,
        categories=[4],
        outputs=2,
        hidden=[6],
        embedding=2,
        edges=[[], [0.0, 1.0, 2.0], []],
        number_embedding=5,
    )
    assert network.layers[0][0].in_features == 2 + 5 + 2
    inputs: list[torch.Tensor] = []
    network.layers[0].register_forward_pre_hook(lambda module, received: inputs.append(received[0]))
    network(torch.tensor([[7.0, 0.5, 9.0]]), torch.tensor([[1]], dtype=torch.int32))
    assert inputs[0][0, :2].tolist() == [7.0, 9.0]


def test_bins_learn_what_a_line_cannot() -> None:
    """With few hidden units, a network learns a band in the middle of a number better with bins."""
    numbers = torch.rand(2_000, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    classes = (numbers[:, 0].abs() < 0.5).long()
    accuracies = []
    for edges in ((), [np.linspace(-1, 1, 33).tolist()]):
        torch.manual_seed(0)
        network = mlp.Mlp(numbers=1, categories=[], outputs=2, hidden=[1], dropout=0.0, edges=edges, number_embedding=4)
        train_network(network, numbers, classes, 60)
        accuracies.append(float((network(numbers).argmax(1) == classes).float().mean()))
    assert accuracies[0] < 0.8 < 0.95 < accuracies[1]


def test_embeddings_and_layers_can_be_frozen(tmp_path: Path) -> None:
    table_job = job(write_rows(tmp_path, make_mixed_rows()))
    network = build.build(table_job, load(table_job)).module
    freeze(network, Freeze(embeddings=True, layers=1), table_job)
    assert [n for n, p in network.named_parameters() if p.requires_grad] == [
        "layers.1.0.weight",
        "layers.1.0.bias",
        "classifier.weight",
        "classifier.bias",
    ]


class Columns(torch.nn.Module):
    """The network with all its inputs in one tensor."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        return self.network(joined[:, :-1], joined[:, -1:].int())


@pytest.mark.parametrize("shuffled", [False, True])
def test_it_learns_an_interaction_and_nothing_from_shuffled_labels(tmp_path: Path, shuffled: bool) -> None:
    rows = make_mixed_rows(600)
    rows["code"] = rows["code"].astype(str)
    if shuffled:
        rows["y"] = np.random.default_rng(1).permutation(rows["y"])
    dataset = load(job(write_rows(tmp_path, rows), features=["size", "colour"], validation=0.4))
    torch.manual_seed(0)
    network = mlp.Mlp(numbers=2, categories=[5], outputs=2, hidden=[32], embedding=4, dropout=0.0)
    inputs, validation_inputs = (split.gather(np.arange(len(split))) for split in (dataset.train, dataset.validation))
    train_network(Columns(network), torch.cat(inputs, dim=1), dataset.train.targets[""], 60)
    accuracy = float((network(*validation_inputs).argmax(1) == dataset.validation.targets[""]).float().mean())
    # One size in ten and one colour in eight are missing, and with them what decides.
    assert 0.35 < accuracy < 0.62 if shuffled else accuracy > 0.82
