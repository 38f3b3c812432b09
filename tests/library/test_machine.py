"""Training from Python: the GPU and the guard, one process, micro-batches that are searched, and arguments of other libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import drivetrain
from drivetrain.errors import DeviceError, SpecError
from drivetrain.hardware import device_check
from drivetrain.hardware.detect import detect
from drivetrain.library import embedded_run, host_process
from drivetrain.plan.plan import load
from tests import tiny
from tests.hardware.checked_machines import CPU, machine, machine_with_gpus, make_card
from tests.messages import saying, says
from tests.paths import IMPORTS, ROOT
from tests.supervisor.circle_training import build_network, make_circle


def train(folder: Path, model: nn.Module | None = None, **overrides: Any) -> embedded_run.Result:
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 20} | overrides
    return drivetrain.train(model or build_network(), make_circle(40), make_circle(20, seed=1), runs=folder, **settings)


def read_refusal(folder: Path, model: nn.Module | None = None, **overrides: Any) -> str:
    with pytest.raises(SpecError) as raised:
        train(folder, model, **overrides)
    assert not list(folder.glob("library-*"))
    return str(raised.value)


def test_a_gpu_that_this_torch_cannot_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_run, "detect", lambda runs: machine("rtx3060-driver580", CPU))
    with pytest.raises(DeviceError, check=saying("has-no-code-for-any-gpu")):
        train(tmp_path)
    assert not list(tmp_path.glob("library-*"))
    this_machine = detect(tmp_path)
    monkeypatch.setattr(embedded_run, "detect", lambda runs: replace(this_machine, gpus=(make_card(0),), torch=CPU))
    assert train(tmp_path, limits={"gpus": "none"}).folder.name == "library-001"


def test_threads_are_shared_with_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (make_card(0), make_card(1))
    assert len(host_process.select_gpu(simulate_gpus(cards, monkeypatch), _job()).gpus) == 1
    message = read_refusal(tmp_path, limits={"processes": 2})
    assert says(message, "call-python-process", "limits.processes", 2)
    for gpus in ("all", [0, 1]):
        assert says(read_refusal(tmp_path, limits={"gpus": gpus}), "call-python-process", "limits.gpus", gpus)


def _job(gpus: str = "auto") -> Any:
    spec = tiny.job()
    return spec.model_copy(update={"limits": spec.limits.model_copy(update={"gpus": gpus})})


def simulate_gpus(cards: Any, monkeypatch: pytest.MonkeyPatch, first: int = 0) -> Any:
    """A machine with these GPUs, the first of which CUDA shows as `cuda:0` under its UUID."""
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}a") for gpu in cards)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"{first}a"))
    monkeypatch.setattr(device_check, "check_build", lambda hardware: None)
    return machine_with_gpus(*gpus)


@pytest.mark.parametrize("first", [0, 1])
def test_the_gpu_is_the_one_that_cuda_shows_first(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    this_machine = simulate_gpus((make_card(0), make_card(1)), monkeypatch, first)
    assert [gpu.index for gpu in host_process.select_gpu(this_machine, _job()).gpus] == [first]
    assert [gpu.index for gpu in host_process.select_gpu(this_machine, _job([first])).gpus] == [first]  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=rf"limits.gpus is \[{1 - first}\], but this process uses GPU {first} "):
        host_process.select_gpu(this_machine, _job([1 - first]))  # type: ignore[arg-type]
    assert host_process.select_gpu(this_machine, _job("none")).gpus == ()


@pytest.mark.nightly
def test_micro_batch_auto_is_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    this_machine = detect(tmp_path)
    uncached_machine = replace(this_machine, storage=replace(this_machine.storage, cache=str(tmp_path / "cache")))
    monkeypatch.setattr(embedded_run, "detect", lambda runs: uncached_machine)
    result = train(tmp_path, optimize={"micro_batch": "auto"})
    assert "fit: micro_batch " in capsys.readouterr().out
    row = next(row for row in load(result.folder / "plan.json").decisions if row.name == "micro_batch")
    assert row.source == "measured"
    assert says(row.evidence or "", "peak-memory-micro-batch")


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda inner: nn.Sequential(nn.DataParallel(inner))])
def test_a_data_parallel_network_is_refused(tmp_path: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
    message = read_refusal(tmp_path, wrap(build_network()))
    assert says(message, "model-is-dataparallel")
    assert says(message, "possible-network-itself-process")
    assert "do:       give model.module; " in message


@pytest.mark.parametrize(
    ("settings", "optimizer", "epochs"),
    [
        ({"lr": 0.25}, {"name": "adamw", "lr": 0.25}, 1),
        ({"learning_rate": 0.25, "weight_decay": 0.5}, {"name": "adamw", "lr": 0.25, "weight_decay": 0.5}, 1),
        ({"optimizer": "sgd", "lr": 0.25, "num_epochs": 2}, {"name": "sgd", "lr": 0.25}, 2),
        ({"optimizer": {"name": "sgd", "momentum": 0.5}, "lr": 0.1}, {"name": "sgd", "momentum": 0.5, "lr": 0.1}, 1),
    ],
)
def test_usual_shorthands_are_taken(
    tmp_path: Path, settings: dict[str, Any], optimizer: dict[str, object], epochs: int
) -> None:
    lasting = {} if "num_epochs" in settings else {"epochs": 1}
    result = drivetrain.train(
        build_network(),
        make_circle(40),
        make_circle(20, seed=1),
        runs=tmp_path,
        **lasting,  # type: ignore[arg-type]
        **settings,
    )
    train_keys = yaml.safe_load((result.folder / "job.yaml").read_text())["train"]
    assert {key: train_keys["optimizer"][key] for key in optimizer} == optimizer
    assert train_keys["epochs"] == epochs


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"lr": 0.1, "learning_rate": 0.1}, "learning_rate"),
        ({"lr": 0.1, "optimizer": {"lr": 0.2}}, "lr"),
        ({"lr": 0.1, "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}, "lr"),
    ],
)
def test_a_setting_given_twice_is_refused(tmp_path: Path, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as caught:
        drivetrain.train(build_network(), make_circle(40), make_circle(20, seed=1), runs=tmp_path, epochs=1, **settings)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_missing_validation_data_is_an_error_in_three_parts(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        drivetrain.train(build_network(), make_circle(40), runs=tmp_path, epochs=1)
    (problem,) = caught.value.problems
    assert problem.key == "validation_data"
    assert "random_split" in problem.action


QUIET = """
import sys
sys.path.insert(0, {root!r})
import drivetrain
from tests.supervisor.circle_training import build_network, make_circle
drivetrain.train(build_network(), make_circle(40), make_circle(20, seed=1), runs={runs!r}, epochs=1, batch_size=20, quiet=True)
"""


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    text = QUIET.format(root=str(ROOT), runs=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": IMPORTS},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "library-001" / "report.html").exists()
