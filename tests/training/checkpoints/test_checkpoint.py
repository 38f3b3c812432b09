"""Checkpoints: whole or not there, verified, never the last one removed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drivetrain.errors import CheckpointError, StorageError
from drivetrain.system.run_files import list_checkpoints, parse_suffix
from drivetrain.training.checkpoints import checkpoint, run_state
from tests.messages import saying
from tests.newest_checkpoint import load_latest
from tests.training.checkpoints.damage import flip

TENSORS = {"model": {"weight": torch.arange(6.0).view(2, 3), "count": torch.tensor(3)}}


def save(folder: Path, step: int, best: int | None = None) -> Path:
    watch = {"best": {"step": best, "best": None if best is None else 1.0}}
    return checkpoint.save(folder, f"step-{step}", TENSORS, {"watch": watch})


def test_round_trip(tmp_path: Path) -> None:
    content = checkpoint.load(save(tmp_path, 3))
    assert content.tensors["model"]["weight"].equal(TENSORS["model"]["weight"])
    assert content.tensors["model"]["count"].equal(torch.tensor(3))
    assert content.state == {"watch": {"best": {"step": None, "best": None}}}
    assert sorted(p.name for p in content.path.iterdir()) == ["MANIFEST.json", "model.safetensors", "state.json"]


def test_tied_and_transposed_tensors(tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    path = checkpoint.save(tmp_path, "step-1", {"model": {"a": weight, "b": weight, "c": weight[:2]}}, {})
    tensors = checkpoint.load(path).tensors["model"]
    assert tensors["a"].equal(weight)
    assert tensors["b"].equal(weight)
    assert tensors["c"].equal(weight[:2])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda p: flip(p / "model.safetensors"), "model.safetensors has SHA-256"),
        (lambda p: (p / "model.safetensors").write_bytes(b""), "model.safetensors has 0 bytes, expected"),
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: (p / "MANIFEST.json").unlink(), "MANIFEST.json is missing or incomplete"),
        (lambda p: (p / "MANIFEST.json").write_text('{"format": 1'), "MANIFEST.json is missing or incomplete"),
        (
            lambda p: (p / "MANIFEST.json").write_text('{"format": 9, "files": {}}'),
            "format 9, this version reads 1, 2",
        ),
    ],
)
def test_damage_is_named_and_the_older_one_is_used(tmp_path: Path, damage: object, expected: str) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    content, passed = load_latest(tmp_path)
    assert content is not None
    assert content.path.name == "step-1"
    assert len(passed) == 1
    assert "checkpoint step-2 is damaged" in passed[0]
    assert expected in passed[0]
    with pytest.raises(CheckpointError, match=expected):
        checkpoint.load(tmp_path / "step-2")


def test_all_damaged_is_never_a_silent_start(tmp_path: Path) -> None:
    flip(save(tmp_path, 1) / "model.safetensors")
    with pytest.raises(CheckpointError, check=saying("all-checkpoints-are-damaged")):
        load_latest(tmp_path)


def test_no_checkpoint_is_a_start_from_zero(tmp_path: Path) -> None:
    assert load_latest(tmp_path) == (None, [])


def test_prune_keeps_the_last_and_every_best_they_name(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, f"best-{step}", TENSORS, {})
    save(tmp_path, 10, best=1)
    save(tmp_path, 20, best=2)
    save(tmp_path, 30, best=2)
    (tmp_path / ".tmp-step-40-1").mkdir()
    checkpoint.prune(tmp_path, keep=2, best=3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best-2", "best-3", "step-20", "step-30"]


def test_keep_nothing_still_keeps_one(tmp_path: Path) -> None:
    save(tmp_path, 1)
    checkpoint.prune(tmp_path, keep=0, best=None)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-1"]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_damaged_later_checkpoint_does_not_count(tmp_path: Path, keep: int) -> None:
    """After a rollback, a checkpoint of a later step was kept as the newest, and the one just written was removed."""
    for step in (10, 20):
        save(tmp_path, step)
    flip(save(tmp_path, 40) / "model.safetensors")
    save(tmp_path, 30)
    checkpoint.prune(tmp_path, keep=keep, best=None, newest=30)
    assert [parse_suffix(path) for path in list_checkpoints(tmp_path)] == [10, 20, 30][-keep:]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"step-1: File exists"):
        save(tmp_path / "file", 1)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizer_state_goes_by_name(kind: type[torch.optim.Optimizer]) -> None:
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    first_optimizer = kind(model.parameters(), lr=0.1, **extra)  # type: ignore[arg-type, call-arg]
    step(model, first_optimizer)
    second_model = torch.nn.Linear(3, 2)
    second_model.load_state_dict(model.state_dict())
    second_optimizer = kind(reversed(list(second_model.parameters())), lr=0.1, **extra)  # type: ignore[arg-type, call-arg]
    run_state.load_optimizer(
        second_model, second_optimizer, run_state.collect_optimizer_tensors(model, first_optimizer)
    )
    step(model, first_optimizer)
    step(second_model, second_optimizer)
    assert all(a.equal(b) for a, b in zip(model.parameters(), second_model.parameters(), strict=True))


def test_unknown_parameter_in_optimizer_state() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(CheckpointError, check=saying("names-lost-exist-network")):
        run_state.load_optimizer(model, optimizer, {"lost/exp_avg": torch.zeros(1)})
