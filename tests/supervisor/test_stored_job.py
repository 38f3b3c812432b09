"""A finished run says from what it was made, and its stored job makes it again with the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.system.files import hash_file
from tests.faults import small_job
from tests.messages import says

SETS = ("--set", "train.epochs=3")


def test_a_run_is_made_again_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From another folder, by the spec and the plan that the run recorded; its data lies beside the first job file."""
    job = small_job.write_job(tmp_path / "job")
    small_job.finish(job, *SETS)
    runs = job.parent / "runs"
    monkeypatch.chdir(tmp_path)
    command = ["train", str(runs / "small-001" / "job.yaml"), "--runs", str(runs)]
    assert main.main([*command, "--plan", str(runs / "small-001" / "plan.json")]) == 0
    assert says(capfd.readouterr().out, "stored-job-paths", runs / "small-001" / "job.yaml", job.parent)
    assert main.main([*command, "--set", "train.seed=7"]) == 0
    first, second = (small_job.read_json(runs / name, "plan.json")["decisions"] for name in ("small-001", "small-002"))
    assert [(row["name"], row["value"]) for row in first] == [(row["name"], row["value"]) for row in second]
    assert next(row["source"] for row in second if row["name"] == "channels_last") == "file"
    records = [json.loads((run / "state.json").read_text())["made_from"] for run in sorted(runs.iterdir())]
    assert records[0] == records[1]
    assert records[0]["model"] == hash_file(runs / "small-001" / "model" / "model.safetensors")
    assert list(records[0]["data"]) == ["data.train"]
    metrics = [(runs / name / "metrics.jsonl").read_text() for name in ("small-001", "small-002", "small-003")]
    assert metrics[0] == metrics[1] != metrics[2]
    capfd.readouterr()
    names = [str(runs / f"small-00{number}") for number in (1, 2, 3)]
    assert main.main(["compare", *names[:2]]) == 0
    assert "same bits" in capfd.readouterr().out
    assert main.main(["compare", *names]) == 0
    output = capfd.readouterr().out
    assert "same bits" not in output
    assert output.count(records[0]["model"][:12]) == 2


def test_another_job_file_of_this_name_is_no_stored_job(tmp_path: Path) -> None:
    """Beside a file of the state of something else."""
    job = small_job.write_job(tmp_path)
    job.rename(tmp_path / "job.yaml")
    (tmp_path / "state.json").write_text('{"status": "done"}')
    assert main.main(["plan", str(tmp_path / "job.yaml")]) == 0
