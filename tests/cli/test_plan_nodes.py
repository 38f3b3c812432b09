"""`drivetrain plan JOB --nodes N`: from a run on one machine, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.cli import main
from tests.report_folder import running
from tests.supervisor.tiny_run import train


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--nodes", "2"], "no finished run of tiny in one process is in runs\n  possible: a run on one machine"),
        (["--nodes", "0"], "--nodes 0 --per-node 1\n  possible: 1 or more"),
        (["--link", "1gbit"], "--link without --nodes"),
        (["--per-node", "2"], "--per-node without --nodes"),
        (["--nodes", "2", "--link", "fast"], "--link: 'fast' is not a rate"),
    ],
)
def test_what_is_refused(
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(job.parent)
    assert main.main(["plan", str(job), *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.nightly
def test_a_run_on_one_machine_says_what_two_would_cost(
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(job, "--set", "limits.processes=2").returncode == 0
    monkeypatch.chdir(job.parent)
    assert main.main(["plan", "tiny.yaml", "--nodes", "2"]) == 2, "that run was of two processes"
    capsys.readouterr()
    assert train(job, "--set", "train.epochs=2").returncode == 0
    assert main.main(["plan", "tiny.yaml", "--nodes", "2", "--link", "100mbit"]) == 0
    said = capsys.readouterr().out
    assert "nodes     2, with 1 process on each; 8 of 16 samples of a batch for each process" in said
    assert "in one process (tiny-002)" in said
    assert "expected  " in said
    assert main.main(["plan", "tiny.yaml", "--nodes", "17"]) == 2
    assert "17 processes for a batch of 16\n  possible: at most 16 processes" in capsys.readouterr().err


def test_a_run_with_a_link_in_it_is_not_read(
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(job.parent)
    run = running(job.parent / "runs" / "tiny-001")
    (tmp_path / "outside.json").write_text('{"token": "secret"}')
    (run / "checkpoints" / "step-1").mkdir(parents=True)
    (run / "checkpoints" / "step-1" / "state.json").symlink_to(tmp_path / "outside.json")
    assert main.main(["plan", str(job), "--nodes", "2"]) == 2
    assert "no finished run of tiny in one process" in capsys.readouterr().err
