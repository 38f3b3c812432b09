"""Frozen weights are one file for all checkpoints, and each checkpoint stays complete."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from drivetrain.errors import CheckpointError
from drivetrain.system.run_files import list_checkpoints
from drivetrain.training.checkpoints import checkpoint
from tests import tiny

FROZEN = {"body.weight": torch.arange(6.0), "body.bias": torch.ones(2)}


def save(folder: Path, step: int, kind: str = "step", frozen: object = tuple(FROZEN)) -> Path:
    model = {**FROZEN, "head.weight": torch.full((3,), float(step))}
    state = {"watch": {"best": {"step": None, "best": None}}}
    return checkpoint.save(folder, f"{kind}-{step}", {"model": model}, state, frozen)  # type: ignore[arg-type]


def stat_frozen(path: Path) -> os.stat_result:
    return (path / checkpoint.FROZEN_FILE).stat()


def test_they_are_written_once_and_every_checkpoint_has_all(tmp_path: Path) -> None:
    paths = [save(tmp_path, 1), save(tmp_path, 2, "best"), save(tmp_path, 3)]
    assert len({stat_frozen(path).st_ino for path in paths}) == 1
    for path, step in zip(paths, (1, 2, 3), strict=True):
        tensors = checkpoint.load(path).tensors
        assert set(tensors) == {"model"}
        assert set(tensors["model"]) == {*FROZEN, "head.weight"}
        assert all(tensors["model"][name].equal(value) for name, value in FROZEN.items())
        assert tensors["model"]["head.weight"].equal(torch.full((3,), float(step)))


def test_what_has_changed_is_written_anew(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    second = save(tmp_path, 2, frozen=("body.bias",))
    changed_weights = {**FROZEN, "body.bias": torch.zeros(2), "head.weight": torch.ones(3)}
    third = checkpoint.save(tmp_path, "step-3", {"model": changed_weights}, {}, tuple(FROZEN))
    assert len({stat_frozen(path).st_ino for path in (first, second, third)}) == 3
    assert checkpoint.load(third).tensors["model"]["body.bias"].equal(torch.zeros(2))


def test_removing_one_leaves_the_others_whole(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, 1, None)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-3"]
    assert checkpoint.load(tmp_path / "step-3").tensors["model"]["body.weight"].equal(FROZEN["body.weight"])


def test_a_damaged_file_is_found_and_not_linked_again(tmp_path: Path) -> None:
    path = save(tmp_path, 1) / checkpoint.FROZEN_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"frozen\.safetensors has SHA-256"):
        checkpoint.load(tmp_path / "step-1")
    assert checkpoint.load(save(tmp_path, 2)).tensors["model"]["body.weight"].equal(FROZEN["body.weight"])


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    (save(tmp_path, 1) / checkpoint.FROZEN_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"frozen\.safetensors is missing"):
        checkpoint.load(tmp_path / "step-1")


def test_without_hard_links_each_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_links(*arguments: object) -> None:
        raise PermissionError("no links")

    monkeypatch.setattr(os, "link", refuse_links)
    paths = [save(tmp_path, 1), save(tmp_path, 2)]
    assert len({stat_frozen(path).st_ino for path in paths}) == 2
    assert checkpoint.load(paths[1]).tensors["model"]["body.weight"].equal(FROZEN["body.weight"])


def test_checkpoints_without_frozen_weights_are_as_before(tmp_path: Path) -> None:
    path = save(tmp_path, 1, frozen=())
    assert json.loads((path / "MANIFEST.json").read_text())["format"] == 1
    assert not (path / checkpoint.FROZEN_FILE).exists()
    assert json.loads((save(tmp_path, 2) / "MANIFEST.json").read_text())["format"] == 2


def test_a_run_with_a_frozen_network_writes_them_once(tmp_path: Path) -> None:
    tiny_run = tiny.assemble_run(tmp_path, tiny.job())
    names = [name for name, _ in tiny_run.model.named_parameters()]
    for name, value in tiny_run.model.named_parameters():
        value.requires_grad_(name == names[-1])
    from drivetrain.training.saver import Saver

    saver = Saver(tiny_run)
    first = saver.save_final()
    tiny_run.counters.step += 1
    second = saver.save_final()
    assert first != second
    assert stat_frozen(first).st_ino == stat_frozen(second).st_ino
    assert all(checkpoint.load(second).tensors["model"][n].equal(v) for n, v in tiny_run.model.state_dict().items())
