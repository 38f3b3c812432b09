"""Training from Python with a Dataset, a DataLoader, an iterable: the same weights, exact resume, clear refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import drivetrain
from drivetrain.errors import DataError, DrivetrainError, SpecError, Stopped
from drivetrain.library import embedded_run
from tests.messages import saying, says
from tests.paths import ROOT
from tests.supervisor.circle_training import (
    CirclePoints,
    InterruptingPoints,
    X,
    Y,
    build_network,
    have_same_bits,
    make_circle,
    no_report,
)

__all__ = ["no_report"]
torch.set_num_threads(1)


class Stream(IterableDataset[Any]):
    """The points in order, each with noise from the global generator; it presses Ctrl-C once at a sample."""

    def __init__(self, stop_at: int | None = None, noise: float = 0.1) -> None:
        self.stop_at, self.noise, self.read = stop_at, noise, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in zip(X, Y, strict=True):
            self.read += 1
            if self.read == self.stop_at:
                self.stop_at = None
                os.kill(os.getpid(), signal.SIGINT)
            yield x + self.noise * torch.randn(2), y


class Held(IterableDataset[Any]):
    """The validation data."""

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(make_circle(40, seed=1))


class SizedStream(Stream):
    def __len__(self) -> int:
        return len(X)


class Evens(Sampler[int]):
    """A sampler of the user: half of the samples, in an order from the global generator."""

    def __iter__(self) -> Iterator[int]:
        return iter((2 * torch.randperm(60)).tolist())


class Restless(Evens):
    """A sampler with a state of its own."""

    calls = 0

    def __iter__(self) -> Iterator[int]:
        Restless.calls += 1
        return iter(np.roll(np.arange(60), Restless.calls).tolist())


def train(folder: Path, data: Any, validation: Any = None, **settings: Any) -> embedded_run.Result:
    defaults: dict[str, Any] = {"epochs": 2, "optimizer": {"lr": 1e-2}, "names": ["out", "in"]}
    defaults["optimize"] = {"cpu_threads": 1, "measure": "off"}
    model = settings.pop("model", None) or build_network()
    return drivetrain.train(
        model, data, make_circle(40, seed=1) if validation is None else validation, runs=folder, **defaults | settings
    )


def test_all_forms_in_the_same_order_give_the_same_bits(tmp_path: Path) -> None:
    def padded(items: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])

    forms = [
        (X.numpy(), Y.numpy()),
        CirclePoints(),
        DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True),
        DataLoader(CirclePoints(), batch_size=16, shuffle=True, collate_fn=padded, num_workers=2),
    ]
    results = [train(tmp_path / str(i), form, batch_size=16) for i, form in enumerate(forms)]
    assert all(have_same_bits(results[0], other) for other in results[1:])


def test_a_loader_without_shuffle_and_an_iterable_keep_the_order(tmp_path: Path) -> None:
    loader_result = train(tmp_path / "loader", DataLoader(TensorDataset(X, Y), batch_size=16))
    validation = DataLoader(Held(), 40)
    stream_result = train(tmp_path / "stream", SizedStream(noise=0.0), validation, batch_size=16)
    steps_result = train(tmp_path / "steps", DataLoader(Stream(noise=0.0), batch_size=15), epoch_steps=8)
    assert have_same_bits(loader_result, stream_result)
    assert steps_result.stopped == "all 2 epochs trained"
    assert not have_same_bits(loader_result, steps_result)


def test_the_settings_of_a_loader_are_used_or_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(CirclePoints(), 50, shuffle=True, drop_last=True, num_workers=2, worker_init_fn=print)
    result = train(tmp_path, loader, DataLoader(CirclePoints(), 7), epochs=1)
    output = capsys.readouterr().out
    assert says(output, "data-train-data-samples", 50)
    assert says(output, "workers-optimize-worker-init", "loader_workers")
    assert says(output, "data-validation-data-every")
    assert (result.folder / "metrics.jsonl").read_text().count("train/loss") == 2


SAMPLERS: dict[str, tuple[Any, int, str]] = {
    "a subset": (SubsetRandomSampler(range(30)), 3, "shuffled by seed and epoch"),
    "weights": (WeightedRandomSampler([1.0] * 60 + [0.0] * 60, 20), 2, "20 of them drawn by weight"),
    "with replacement": (
        RandomSampler(CirclePoints(), replacement=True, num_samples=25),
        3,
        "in the order of its RandomSampler",
    ),
    "of the user": (Evens(), 6, "in the order of its Evens"),
    "with a state": (Restless(), 6, "Restless yields another order each time, even for the same seed and epoch"),
}


@pytest.mark.parametrize(("sampler", "steps", "message"), SAMPLERS.values(), ids=SAMPLERS)
def test_a_sampler_orders_the_epoch(
    sampler: Any, steps: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(tmp_path, DataLoader(CirclePoints(), 10, sampler=sampler), epochs=1)
    assert message in capsys.readouterr().out
    assert (result.folder / "metrics.jsonl").read_text().count("train/loss") == steps


@pytest.mark.parametrize("form", ["loader", "stream"])
def test_stopped_in_an_epoch_and_resumed_to_the_same_weights(form: str, tmp_path: Path) -> None:
    def data(stop_at: int | None = None) -> Any:
        if form == "stream":
            return SizedStream(stop_at)
        return DataLoader(InterruptingPoints(stop_at), 16, sampler=Evens())

    settings = {"checkpoint": {"every": "2 steps"}} | ({"batch_size": 16} if form == "stream" else {})
    uninterrupted = train(tmp_path / "whole", data(), **settings)
    with pytest.raises(Stopped):
        train(tmp_path / "parts", data(70), **settings)
    assert have_same_bits(uninterrupted, train(tmp_path / "parts", data(), model=build_network(seed=9), **settings))


KILLED = """
import sys
sys.path.insert(0, {root!r})
import os, signal, drivetrain, torch
from torch.utils.data import DataLoader
from tests.supervisor.circle_training import CirclePoints, build_network, make_circle
def kill(info):
    if info.step == 13:
        os.kill(os.getpid(), signal.SIGKILL)
model = build_network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=17)
drivetrain.train(model, DataLoader(CirclePoints(), 16, shuffle=True), make_circle(40, seed=1), runs={runs!r}, epochs=2,
              names=["out", "in"], optimize={{"cpu_threads": 1, "measure": "off"}}, checkpoint={{"every": "3 steps"}},
              optimizer=optimizer, schedule=schedule, schedule_every="step", on_step=kill)
"""


def test_killed_with_a_loader_an_optimizer_and_a_scheduler_and_resumed(tmp_path: Path) -> None:
    def train_anew(folder: Path) -> embedded_run.Result:
        model = build_network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=17)
        options = {"checkpoint": {"every": "3 steps"}, "schedule": schedule, "schedule_every": "step"}
        loader = DataLoader(CirclePoints(), 16, shuffle=True)
        return train(folder, loader, model=model, optimizer=optimizer, **options)

    uninterrupted = train_anew(tmp_path / "whole")
    text = KILLED.format(root=str(ROOT), runs=str(tmp_path / "parts"))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    resumed = train_anew(tmp_path / "parts")
    assert resumed.folder == tmp_path / "parts" / "library-001"
    assert have_same_bits(uninterrupted, resumed)


class BrokenPoints(CirclePoints):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        samples: dict[str, Any] = {
            "dict": {"x": X[index], "y": Y[index]},
            "string": ("text", Y[index]),
            "shape": (X[index][: 1 + index % 2], Y[index]),
        }
        return samples[self.kind] if self.kind in samples else (_ for _ in ()).throw(ValueError("a bad file"))


def generate_sample() -> Iterator[tuple[Tensor, Tensor]]:
    yield X[0], Y[0]


def collate_wide(items: list[Any]) -> Any:
    return torch.zeros(3, 2), torch.zeros(3)


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a generator": (generate_sample(), {}, "train_data: is a generator, which can be read only once\n  possible: "),
    "dicts": (BrokenPoints("dict"), {}, "train_data: sample 0 is a dict of 2\n  possible: (inputs, target)"),
    "texts": (BrokenPoints("string"), {}, "train_data: an input of sample 0 is a str\n"),
    "shapes": (BrokenPoints("shape"), {}, "train_data: samples 0 and 1 differ in shape: (1,), () and (2,), ()"),
    "an error": (
        BrokenPoints("error"),
        {},
        "train_data: sample 0 raised ValueError: a bad file\n    test_library_data.py:",
    ),
    "lengths": ((X, Y[:-1]), {}, "train_data: the arrays have 120, 119 samples"),
    "no length": (Stream(), {}, "train_data: is a Stream, an iterable without a length\n"),
    "ends early": (Stream(), {"epoch_steps": 50}, "train_data: the iterable ended in batch 13 of epoch 1, and 500"),
    "no names": (SizedStream(), {"names": None}, "train_data: is an iterable, whose targets are not known before"),
    "two sizes": (
        DataLoader(CirclePoints(), 8),
        {"batch_size": 9},
        "batch_size: is 9, and the DataLoader has 8",
    ),
    "batches": (
        DataLoader(CirclePoints(), batch_size=None),
        {},
        "train_data: is a DataLoader with a batch_sampler of its own",
    ),
    "rows": (
        DataLoader(CirclePoints(), 8, collate_fn=collate_wide),
        {},
        "train_data: collate_fn makes tensors of 3 rows of 8 samples",
    ),
    "no indices": (
        DataLoader(CirclePoints(), 8, sampler=[500]),
        {},
        "train_data: its sampler does not yield indices of the 120",
    ),
    "no iterable": (CirclePoints(), {"epoch_steps": 3}, "epoch_steps is 3, and train_data has a length of its own"),
    "all left out": (
        DataLoader(CirclePoints(), 200, drop_last=True),
        {},
        "train_data: has 120 samples, and drop_last leaves out",
    ),
}


@pytest.mark.parametrize(("data", "settings", "message"), WRONG.values(), ids=WRONG)
def test_data_that_cannot_be_used(data: Any, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments = settings if isinstance(data, DataLoader) else {"batch_size": 10} | settings
    with pytest.raises(DrivetrainError) as raised:
        train(tmp_path, data, **arguments)
    assert isinstance(raised.value, DataError | SpecError)
    text = str(raised.value)
    assert message in text
    assert "  do:       " in text
    if "\n    test_" not in text:
        assert "  possible: " in text


def test_workers_for_an_iterable_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"optimize.loader_workers: is 2"):
        train(tmp_path, SizedStream(), batch_size=10, optimize={"loader_workers": 2})


def test_a_model_without_values_is_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(SpecError, check=saying("weight-model-meta-device")):
        train(tmp_path, CirclePoints(), model=model)
