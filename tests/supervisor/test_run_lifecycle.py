"""The report of a run that ends: written, or why not and with which command it can be."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.supervisor import provenance
from drivetrain.supervisor.run_folder import RunFolder
from drivetrain.supervisor.run_lifecycle import RunLifecycle
from tests.messages import says, says_only


def lifecycle(folder: Path) -> RunLifecycle:
    (folder / "metrics.jsonl").write_text("")
    return RunLifecycle(RunFolder(folder, False, -1), "job.yaml")


def write_python(folder: Path, script: str) -> str:
    """A program that takes the place of Python."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return str(program)


def test_a_report_that_takes_too_long_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under load it takes longer than a stopped run waits; the warning gave no reason."""
    lifecycle(tmp_path).report(0.01)
    assert says_only(capsys.readouterr().out, "warning-report-written-took", "0.01", tmp_path)


def test_a_report_whose_process_fails_is_explained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", write_python(tmp_path, "exit 9"))
    lifecycle(tmp_path).report()
    output = capfd.readouterr().out
    assert says(output, "warning-report-written-process", 9)


def test_an_error_of_the_report_is_shown_where_its_output_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", write_python(tmp_path, "echo progress; echo disk full >&2; exit 4"))
    lifecycle(tmp_path).report(output=subprocess.DEVNULL)
    shown = capfd.readouterr()
    assert shown.err == "disk full\n"
    assert "progress" not in shown.out


@pytest.mark.parametrize(
    "problem", [PermissionError(13, "Permission denied", "model.safetensors"), KeyboardInterrupt()]
)
def test_a_run_is_done_before_its_weights_are_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    """Weights that cannot be read, or a kill while they are hashed, left it running for ever."""

    def fail(run: Path) -> dict[str, object]:
        raise problem

    monkeypatch.setattr(provenance, "describe_inputs", fail)
    is_killed = isinstance(problem, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if is_killed else contextlib.nullcontext():
        lifecycle(tmp_path).end(0)
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["status"], state["exit_code"], "made_from" in state) == ("done", 0, False)
    assert is_killed or says(capfd.readouterr().out, "warning-record-made-from", tmp_path, problem)
