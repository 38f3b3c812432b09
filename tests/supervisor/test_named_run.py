"""Which run a command line means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivetrain.cli import arguments, main
from drivetrain.errors import CheckpointError
from drivetrain.supervisor import named_run
from drivetrain.tracking.live import live_view as watching
from tests.messages import saying, says, says_only


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("clip-002", "clip-001", "parts-001")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "job.yaml").touch()
        os.utime(tmp_path / "runs" / name / "job.yaml", (1000 - age, 1000 - age))
    return tmp_path / "runs"


def test_a_name_without_runs(runs: Path) -> None:
    options = arguments.make_parser().parse_args(["report", "clip-001"])
    assert options.run == Path("runs/clip-001")
    assert arguments.make_parser().parse_args(["report", "runs/clip-001"]).run == Path("runs/clip-001")
    assert arguments.make_parser().parse_args(["compare", "clip-001", "other"]).runs == [
        Path("runs/clip-001"),
        Path("other"),
    ]


@pytest.mark.parametrize(
    "command", [["watch"], ["report"], ["evaluate"], ["predict", "x"], ["export"], ["compare", "runs/clip-001"]]
)
def test_the_most_similar_name_is_suggested(runs: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([command[0], "runs/clip-01", *command[1:]]) == CheckpointError.exit_code
    assert says_only(
        capsys.readouterr().err, "folder-possible-runs-newest", "runs/clip-01", "clip-002", "clip-001", "parts-001"
    )


def test_watch_without_a_run_is_the_newest(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched_runs: list[Path] = []
    monkeypatch.setattr(watching, "watch", lambda run: watched_runs.append(run) or 0)
    assert main.main(["watch"]) == 0
    assert watched_runs == [Path("runs/clip-002")]


def test_watch_finds_the_trials_of_a_sweep(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = runs / "kinds-sweep-001"
    sweep.mkdir()
    (sweep / "sweep.yaml").touch()
    with pytest.raises(CheckpointError, check=saying("sweep-trial-yet")):
        named_run.find_newest_trial(sweep)
    for age, name in enumerate(("trial1-001", "trial0-001")):
        (sweep / name).mkdir()
        (sweep / name / "job.yaml").touch()
        os.utime(sweep / name / "job.yaml", (2000 - age, 2000 - age))
    watched_runs: list[Path] = []
    monkeypatch.setattr(watching, "watch", lambda run: watched_runs.append(run) or 0)
    for command in (["watch"], ["watch", "kinds-sweep-001"], ["watch", "runs/kinds-sweep-001/trial0-001"]):
        assert main.main(command) == 0
    trials = [Path("runs/kinds-sweep-001", name) for name in ("trial1-001", "trial1-001", "trial0-001")]
    assert watched_runs == trials


def test_without_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["watch"]) == CheckpointError.exit_code
    assert says(capsys.readouterr().err, "run-given-none", f"{tmp_path}/runs")
    with pytest.raises(CheckpointError, check=saying("run-folder-none")):
        named_run.check_exists(Path("runs/a-001"))


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("drivetrain ")
