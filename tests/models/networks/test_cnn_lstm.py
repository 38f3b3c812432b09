"""The CNN-LSTM: shapes, first weights, freezing by name, and that it learns what there is to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.load_data import load
from drivetrain.job_spec import load_job
from drivetrain.models import frozen_split
from drivetrain.models.networks import cnn_lstm
from drivetrain.training import train
from tests import tiny
from tests.models.networks.short_training import train_network
from tests.tasks.series.series_rows import job, write_npz

torch.set_num_threads(1)
SMALL = {"channels": 3, "outputs": 4, "cnn_channels": [8, 6], "kernel": 3, "lstm_hidden": 5}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"bidirectional": True},
        {"lstm_layers": 2, "dropout": 0.5},
        {"pool": 1},
        {"cnn_channels": [4], "pool": 4},
        {"dropout": 0.0},
        {"skip": True},
    ],
)
def test_shapes(change: dict[str, object]) -> None:
    network = cnn_lstm.CnnLstm(**SMALL | change)  # type: ignore[arg-type]
    assert network(torch.randn(7, 21, 3)).shape == (7, 4)


def test_the_forget_gate_bias_starts_at_one() -> None:
    network = cnn_lstm.CnnLstm(**SMALL)  # type: ignore[arg-type]
    gates = (network.lstm.bias_ih_l0 + network.lstm.bias_hh_l0).view(4, 5)
    assert gates.tolist() == [[0.0] * 5, [1.0] * 5, [0.0] * 5, [0.0] * 5]


def test_a_window_gives_the_same_output_alone_and_in_a_batch() -> None:
    network = cnn_lstm.CnnLstm(**SMALL | {"bidirectional": True}).eval()  # type: ignore[arg-type]
    windows = torch.randn(5, 16, 3)
    torch.testing.assert_close(network(windows)[2:3], network(windows[2:3]))


@pytest.mark.parametrize(
    ("frozen", "name"),
    [
        ([], None),
        (["lstm"], None),
        (["convolutions.1"], None),
        (["convolutions.0"], "1 of 2 convolutions"),
        (["convolutions"], "2 of 2 convolutions"),
        (["convolutions", "lstm"], "the convolutions and the LSTM"),
    ],
)
def test_frozen_convolutions_are_computed_apart(frozen: list[str], name: str | None) -> None:
    """The rest, on their outputs, has the outputs and the gradients of the whole network."""
    torch.manual_seed(0)
    network = cnn_lstm.CnnLstm(**SMALL | {"bidirectional": True, "dropout": 0.0})  # type: ignore[arg-type]
    for part in frozen:
        network.get_submodule(part).requires_grad_(False)
    windows = torch.randn(5, 16, 3)
    split = frozen_split.split_network(network, (windows,))
    assert (split and split.name) == name
    if split is None:
        return
    saving = frozen_split.measure_saving(network, split, (windows,))
    # Two operations for each weight and time step; the LSTM sees a quarter of 16, in two directions.
    convolutions = 2 * (3 * 8 * 3 * 16 + 8 * 6 * 3 * 8)
    lstm = 2 * 4 * 2 * (6 + 5) * 4 * 5
    if name == "2 of 2 convolutions":
        assert saving.share == pytest.approx(convolutions / (convolutions + 3 * (lstm + 2 * 10 * 4)))
    with torch.no_grad():
        prefix_outputs = split.prefix(windows)
    outputs_and_gradients = []
    for outputs in (split.rest(*prefix_outputs), network(windows)):
        assert isinstance(outputs, torch.Tensor)
        network.zero_grad()
        outputs.square().sum().backward()
        outputs_and_gradients.append(
            [outputs.detach(), *(p.grad.clone() for p in network.parameters() if p.grad is not None)]
        )
    for one, other in zip(*outputs_and_gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shuffled", [False, True])
def test_it_learns_an_order_and_nothing_from_shuffled_labels(tmp_path: Path, shuffled: bool) -> None:
    """Class 1 has its bump before its dip, class 0 after it; level and noise are the same."""
    generator = np.random.default_rng(0)
    y = np.arange(240) % 2
    x = generator.normal(0, 0.3, (240, 16, 2))
    x[np.arange(240), np.where(y, 3, 11), 0] += 3
    x[np.arange(240), np.where(y, 11, 3), 0] -= 3
    if shuffled:
        y = generator.permutation(y)
    dataset = load(job(write_npz(tmp_path, x, y), validation=0.4))
    torch.manual_seed(0)
    network = cnn_lstm.CnnLstm(channels=2, outputs=2, cnn_channels=[8], kernel=3, lstm_hidden=8, dropout=0.0)
    (inputs,) = dataset.train.gather(np.arange(len(dataset.train)))
    train_network(network, inputs, dataset.train.targets[""], 25)
    (validation_inputs,) = dataset.validation.gather(np.arange(len(dataset.validation)))
    accuracy = float((network(validation_inputs).argmax(1) == dataset.validation.targets[""]).float().mean())
    assert 0.3 < accuracy < 0.7 if shuffled else accuracy > 0.95


def test_it_begins_with_a_linear_model_of_statistics() -> None:
    network = cnn_lstm.CnnLstm(**SMALL | {"skip": True}).eval()  # type: ignore[arg-type]
    windows = torch.randn(5, 16, 3)
    assert not network(windows).any()
    assert network.skip is not None
    torch.nn.init.ones_(network.skip.weight)
    sums = cnn_lstm.compute_statistics(windows).sum(1, keepdim=True)
    torch.testing.assert_close(network(windows), sums.expand(-1, 4))
    assert network.split_at_frozen(windows) is None


def test_the_linear_model_is_solved_first(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    levels = draw.normal(size=120)
    x = levels[:, None, None] + 0.1 * draw.normal(size=(120, 16, 2))
    np.savez(tmp_path / "a.npz", x=x.astype(np.float32), y=(levels > 0).astype(np.int64))
    spec = "name: a\ntask: series-classification\ndata: {train: a.npz, validation: 0.25}\nmodel: {name: cnn-lstm, skip: true}\n"
    (tmp_path / "a.yaml").write_text(spec + "train: {epochs: 2}\noptimize: {cpu_threads: 1}\nbaselines: 'off'\n")
    run = tiny.assemble_plain_run(load_job.load(tmp_path / "a.yaml"), tmp_path)
    train.train(run)
    assert run.counters.solved
    assert run.last_metrics["validation/accuracy"] > 0.9
    assert all(parameter.requires_grad for parameter in run.model.parameters())
