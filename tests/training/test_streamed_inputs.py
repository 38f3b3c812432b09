"""A run whose streamed shards have changed since it started does not resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.errors import DataError
from drivetrain.system.run_files import DATA_FILE, RunFiles
from drivetrain.training import recorded_inputs
from drivetrain.training.checkpoints import checkpoint
from tests import tiny
from tests.data.streaming import shards
from tests.messages import says


def test_a_changed_shard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    shards.write_shards(tmp_path / "s")
    job = shards.job(tmp_path, "s")
    run = tiny.assemble_plain_run(job, tmp_path)
    recorded_inputs.record_inputs(run, print, resumes=False)
    monkeypatch.setattr(checkpoint, "can_resume", lambda folder: True)
    assert len(recorded_inputs.load_data(job, tmp_path).train) == len(run.dataset.train)
    assert "0003.tar" not in str(RunFiles(tmp_path).read_json(DATA_FILE)["files"])
    shards.write_tar(tmp_path / "s/0003.tar", range(530, 540))
    with pytest.raises(DataError, match=r"shard 0003\.tar has changed \(data\.train\)") as error:
        recorded_inputs.load_data(job, tmp_path)
    assert error.value.exit_code == 3


def test_missing_and_new_ones_too() -> None:
    before, now = {"data.train": {"a": "1 2", "b": "1 2"}}, {"data.train": {"a": "1 2", "c": "1 2"}}
    with pytest.raises(DataError) as error:
        recorded_inputs.check_shards(before, now)
    assert says(str(error.value), "shard-b-is-not-there-any", "data.train")
    recorded_inputs.check_shards(before, before)
    recorded_inputs.check_shards({}, now)
