"""A run folder that somebody renames while a checkpoint is written: it has its name again, and the checkpoint is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.system import fault_points
from drivetrain.training.checkpoints import checkpoint
from tests import tiny


@pytest.mark.parametrize("moment", ["create folder", "write tensors", "commit checkpoint", "rename checkpoint"])
def test_a_run_folder_renamed_while_a_checkpoint_is_written_has_both_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    saver = tiny.make_saver(folder)
    renames = []

    def rename(now: str, *subjects: object) -> None:
        if now == moment and not renames:
            renames.append(folder.rename(tmp_path / "moved"))

    create = checkpoint.create_unfinished

    def create_later(unfinished: Path) -> None:
        rename("create folder")
        create(unfinished)

    monkeypatch.setattr(fault_points, "listener", rename)
    monkeypatch.setattr(checkpoint, "create_unfinished", create_later)
    saver.save_final()
    assert renames
    assert not (tmp_path / "moved").exists()
    assert checkpoint.load(folder / "checkpoints" / "step-0").tensors["model"]
    assert "moved is called" in (folder / "events.jsonl").read_text()
    saver.run.metrics.close()
