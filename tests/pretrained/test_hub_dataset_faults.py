"""Faults of a hub while data is fetched: what the key of the job adds to them; tests/pretrained/test_hub.py has the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from drivetrain.data.load_data import load
from drivetrain.errors import DrivetrainError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec import located_data
from tests.hub_double import COMMIT
from tests.hub_server import Fault, Hub
from tests.messages import says
from tests.pretrained.hub_dataset import NAME, catch_spec_error, load_job, repository_cache, write_spec


@pytest.fixture
def hub(dataset_hub: Hub) -> Hub:
    return dataset_hub


@pytest.mark.parametrize(
    ("status", "headers", "problem"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "the hub has no dataset of this name that everybody sees (401)"),
        (404, {"X-Error-Code": "RepoNotFound"}, "the hub has no dataset of this name that everybody sees (404)"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "the hub has no such revision of it"),
        (403, {"X-Error-Code": "GatedRepo"}, "the hub answers 403: this dataset is gated"),
        (429, {"Retry-After": "3600"}, "the hub answers 429, too many requests, and asks to wait 3,600 s"),
        (500, {}, "the hub answers 500, an error of its own"),
    ],
)
def test_refusals(hub: Hub, tmp_path: Path, status: int, headers: dict[str, str], problem: str) -> None:
    hub.faults = [Fault(status=status, headers=headers)]
    error = str(catch_spec_error(tmp_path))
    assert f"{tmp_path}/job.yaml:4:8: data.train: hf://datasets/{NAME}: {problem}" in error
    assert "model" not in error


def test_a_private_dataset_needs_the_token(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "t0ken123"
    assert "write environment: [HF_TOKEN] into the job" in str(catch_spec_error(tmp_path))
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert load_job(tmp_path).list_unfetched() == []


def test_a_truncated_file_is_never_used(hub: Hub, tmp_path: Path) -> None:
    part = "train-00001"
    hub.faults = [Fault(path=part, cut=100, times=1), Fault(path=part, cut=0)]
    assert says(str(catch_spec_error(tmp_path)), "stops-early-peer-closed", hub.endpoint)
    assert not (repository_cache(tmp_path) / "snapshots").exists()
    hub.faults, hub.requests[:] = [], []
    assert len(load(load_job(tmp_path)).train) == 36
    assert not hub.paths("train-00000"), "what was complete is not fetched again"


def test_no_network_and_what_another_program_fetched(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = str(catch_spec_error(tmp_path))
    assert says(error, "revision-main-complete-hf", tmp_path / "home" / "hub")
    assert says(error, "network-drivetrain-fetch-fills", f"{tmp_path}/job.yaml")
    assert hub.requests == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    load_job(tmp_path)
    shutil.rmtree(repository_cache(tmp_path) / "drivetrain")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert len(load(load_job(tmp_path)).train) == 36, "as if another program had fetched it"


def test_a_part_of_a_known_list_is_never_the_whole(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process leaves that was killed while it gave the files their names."""
    load_job(tmp_path)
    record = repository_cache(tmp_path) / "drivetrain" / f"{COMMIT}.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"checked": []}))
    missing_file = "data/train-00001-of-00002.parquet"
    (repository_cache(tmp_path) / "snapshots" / COMMIT / missing_file).unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert says(str(catch_spec_error(tmp_path)), "revision-main-complete-hf", tmp_path / "home" / "hub")


def test_an_update_without_a_network_is_an_error(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_job(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DrivetrainError, match="HF_HUB_OFFLINE is set"):
        job_spec.load(write_spec(tmp_path), locate=lambda job: located_data.locate_on_hub(job, print, update=True)[0])
