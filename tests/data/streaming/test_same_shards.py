"""Runs that are counted together, reproduced or spread over machines had the same shards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from drivetrain.data.load_data import load
from drivetrain.errors import CheckpointError
from drivetrain.job import Job
from drivetrain.job_spec.stored_spec import compare_stored_spec, spec_text
from drivetrain.supervisor import same_conditions
from drivetrain.supervisor.run_folder import MAY_CHANGE_ON_RESUME
from tests.data.streaming import shards
from tests.messages import saying


def record_run(folder: Path, job: Job) -> Path:
    """A run folder with what a run records of its data."""
    data = load(job)
    folder.mkdir(parents=True)
    (folder / "data.json").write_text(json.dumps({"files": {}, "arrays": data.content(), "shards": data.shards}))
    return folder


@pytest.mark.parametrize("suffix", [".tar", ".parquet"])
def test_other_shards_are_noticed_by_the_runs_that_they_would_spoil(tmp_path: Path, suffix: str) -> None:
    """`repeat`, `sweep` and `reproduce` saw no files at all."""
    shard_folder = shards.write_shards(tmp_path / "p", suffix)
    job = shards.job(tmp_path / "a", shard_folder)
    one = record_run(tmp_path / "one", job)
    assert same_conditions.find_changed_file(one, job) == ""
    before = same_conditions.read_data_digests(one)
    assert list(before) == ["data.train"]
    shards.write_shards(tmp_path / "other", suffix, shards=1, rows=12)
    shutil.copyfile(tmp_path / f"other/0000{suffix}", shard_folder / f"0000{suffix}")
    assert same_conditions.find_changed_file(one, job) == f"{shard_folder}/0000{suffix}"
    two = record_run(tmp_path / "two", job)
    assert same_conditions.read_data_digests(two) != before
    with pytest.raises(CheckpointError, check=saying("trained-with-other-data")):
        same_conditions.check({"one": one, "two": two})


def test_a_copy_on_another_machine_is_the_same_data(tmp_path: Path) -> None:
    shard_folder = shards.write_shards(tmp_path / "p")
    one = load(shards.job(tmp_path / "a", shard_folder)).content()
    shutil.copytree(shard_folder, tmp_path / "q")
    for file in (tmp_path / "q").iterdir():
        os.utime(file, (1e9, 1e9))
    assert load(shards.job(tmp_path / "b", tmp_path / "q")).content() == one


def test_the_cache_may_be_another_one_when_a_run_resumes(tmp_path: Path) -> None:
    """It changes no bit, and the advice to raise it was refused."""
    shard_folder = shards.write_shards(tmp_path / "p")
    (tmp_path / "r").mkdir()
    (tmp_path / "r/job.yaml").write_text(spec_text(shards.job(tmp_path / "a", shard_folder)))
    for stream, is_same in ({"stream": "cache: 40g"}, True), ({"window": 3}, False):
        job = shards.job(tmp_path / "a", shard_folder, **stream)
        assert (compare_stored_spec(tmp_path / "r", job, MAY_CHANGE_ON_RESUME).lines == []) == is_same
