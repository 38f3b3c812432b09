"""Seen: what is in force, and what is not in force any more when a run ends."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from drivetrain.training import effective_settings, run, train
from tests import tiny
from tests.messages import get_message, says_each


def begun(folder: Path) -> tuple[run.Run, list[str]]:
    made, said = tiny.assembled(folder, tiny.job(), settings={"channels_last": True}), list[str]()
    effective_settings.record(made, said.append)
    assert not [line for line in said if "warning" in line]
    return made, said


def written(folder: Path) -> tuple[bool, str | None]:
    row = json.loads((folder / "plan.json").read_text())["seen"]["channels_last"]
    return row["same"], row["cause"]


def test_unchanged_settings_are_reported_once(tmp_path: Path) -> None:
    made, said = begun(tmp_path)
    told = len(said)
    effective_settings.record_changes(made, said.append)
    assert len(said) == told
    assert written(tmp_path) == (True, None)


def test_settings_changed_by_the_network_are_reported_at_the_end(tmp_path: Path) -> None:
    made, _ = begun(tmp_path)
    made.model.register_forward_hook(lambda *_: made.model.to(memory_format=torch.contiguous_format) and None)
    train.train(made)
    assert says_each(written(tmp_path), (False, get_message("network-torch-ignored-setting")))
    assert json.loads((tmp_path / "plan.json").read_text())["seen"]["libraries"]
