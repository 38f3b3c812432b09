"""The effective settings of a run are read back at its start and at its end."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from drivetrain.training import effective_settings, run, train
from tests import tiny
from tests.messages import get_message, says_each


def begin_run(folder: Path) -> tuple[run.Run, list[str]]:
    training_run, messages = tiny.assemble_run(folder, tiny.job(), settings={"channels_last": True}), list[str]()
    effective_settings.record(training_run, messages.append)
    assert not [line for line in messages if "warning" in line]
    return training_run, messages


def read_channels_last(folder: Path) -> tuple[bool, str | None]:
    row = json.loads((folder / "plan.json").read_text())["seen"]["channels_last"]
    return row["same"], row["cause"]


def test_unchanged_settings_are_reported_once(tmp_path: Path) -> None:
    training_run, messages = begin_run(tmp_path)
    message_count = len(messages)
    effective_settings.record_changes(training_run, messages.append)
    assert len(messages) == message_count
    assert read_channels_last(tmp_path) == (True, None)


def test_settings_changed_by_the_network_are_reported_at_the_end(tmp_path: Path) -> None:
    training_run, _ = begin_run(tmp_path)
    training_run.model.register_forward_hook(
        lambda *_: training_run.model.to(memory_format=torch.contiguous_format) and None  # type: ignore[call-overload]
    )
    train.train(training_run)
    assert says_each(read_channels_last(tmp_path), (False, get_message("network-torch-ignored-setting")))
    assert json.loads((tmp_path / "plan.json").read_text())["seen"]["libraries"]
