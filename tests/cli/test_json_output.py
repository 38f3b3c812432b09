"""`--json`: one JSON value on stdout, with the parts of an error and the exit code; text goes to stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivetrain.cli import main
from tests.supervisor.tiny_run import TEXT, train


def read(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_validate_lists_each_file_with_its_problems(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(TEXT.replace("epochs: 4", "epoch: 4, seed: x"))
    assert main.main(["validate", str(job), str(wrong), "--json"]) == 2
    good, bad = read(capsys)
    assert (good["file"], good["exit_code"], good["name"]) == (str(job), 0, "tiny")
    assert {problem["key"] for problem in bad["problems"]} == {"train.epoch", "train.seed"}
    assert all("wrong.yaml:" in problem["place"] for problem in bad["problems"])
    assert bad["error"]["action"] == bad["problems"][0]["action"]


@pytest.mark.parametrize("arguments", [["evaluate", "no-such-run"], ["train", "no-such.yaml"], ["doctor", "--nothing"]])
def test_an_error_has_its_parts_and_its_exit_code(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main.main([*arguments, "--json"])
    output = capsys.readouterr()
    answer = json.loads(output.out)
    assert answer["exit_code"] == code != 0
    assert output.err.startswith(answer["error"]["given"])


def test_a_training_ends_with_its_result(job: Path) -> None:
    process = train(job, "--json")
    answer = json.loads(process.stdout)
    assert (process.returncode, answer["exit_code"], answer["status"]) == (0, 0, "done")
    run = job.parent / "runs" / "tiny-001"
    assert (answer["run"], answer["report"]) == (str(run), str(run / "report.html"))
    assert answer["best"] == json.loads((run / "result.json").read_text())["best"]
    assert "epoch 1/4" in process.stderr


def test_an_error_of_the_trainer_is_in_the_result(job: Path) -> None:
    data = dict(np.load(job.parent / "images.npz"))
    data["labels"] = data["labels"][:-1]
    np.savez(job.parent / "images.npz", **data)
    process = train(job, "--json")
    answer = json.loads(process.stdout)
    assert answer["exit_code"] == process.returncode == 3
    assert answer["error"]["given"] in process.stderr
    assert Path(answer["run"]).name == "tiny-001"
