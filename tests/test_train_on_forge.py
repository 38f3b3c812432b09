"""The action that trains a job on a forge's runner: what it trains, says and posts, and that it ends as the training did."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.messages import get_message
from tests.paths import ROOT

ACTION = ROOT / ".github" / "actions" / "train" / "action.yml"
SCRIPT = ".github/actions/train/train"
PYTHON = """#!/bin/sh
# A training that writes its run folder, and exits as it is told.
printf '%s\\n' "$@" > "{folder}/arguments"
[ {code} = 2 ] && exit 2
mkdir -p runs/parts-002
echo '{{}}' > runs/parts-002/state.json
echo '# parts-002: 97.1 %' > runs/parts-002/report.md
exit {code}
"""
GH = """#!/bin/sh
printf '%s\\n' "$@" > "{folder}/gh-arguments"
cat > "{folder}/comment"
exit {code}
"""


def train(folder: Path, code: int, gh: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a checkout whose Python ends with this code."""
    checkout, work = folder / "checkout", folder / "work"
    for name in (SCRIPT, "scripts/common"):
        (checkout / name).parent.mkdir(parents=True)
        shutil.copy2(ROOT / name, checkout / name)
    shutil.copy2(ROOT / "Makefile", checkout)
    (checkout / "pyproject.toml").touch()
    old_run = checkout / "runs" / "parts-001"
    old_run.mkdir(parents=True)
    (old_run / "state.json").touch()
    os.utime(old_run / "state.json", (1, 1))
    programs = {checkout / ".venv/bin/python": PYTHON.format(folder=folder, code=code)}
    programs[folder / "bin" / "gh"] = GH.format(folder=folder, code=gh)
    for path, text in programs.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    (checkout / ".venv" / "host").touch()
    work.mkdir()
    (work / "parts.yaml").touch()
    inherited = {
        key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "JOB", "ARGS")
    }
    outputs = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    environment = (
        inherited | outputs | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "JOB": "parts.yaml"} | settings
    )
    return subprocess.run(
        [checkout / SCRIPT],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("code", "status"), [(0, "done"), (75, "stopped"), (4, "failed")])
def test_it_ends_as_the_training_did_and_posts_the_report(tmp_path: Path, code: int, status: str) -> None:
    done = train(
        tmp_path, code, MINUTES="20", STORE="s3://bucket/runs", SET="train.epochs=3 train.seed=1", PULL_REQUEST="7"
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "arguments").read_text().split() == [
        *("-m", "drivetrain", "launch", str(tmp_path / "work" / "parts.yaml"), "--set", "train.max_time=20m"),
        *("--set", "checkpoint.copy_to=s3://bucket/runs", "--set", "train.epochs=3", "--set", "train.seed=1"),
    ]
    outputs = (tmp_path / "GITHUB_OUTPUT").read_text().splitlines()
    assert outputs == [f"status={status}", f"run={tmp_path / 'checkout' / 'runs' / 'parts-002'}"]
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text() == "# parts-002: 97.1 %\n"
    assert (tmp_path / "comment").read_text() == "# parts-002: 97.1 %\n"
    assert (tmp_path / "gh-arguments").read_text().split()[:3] == ["pr", "comment", "7"]


def test_a_comment_that_is_refused_and_a_push_without_a_pull_request_fail_nothing(tmp_path: Path) -> None:
    done = train(tmp_path / "refused", 0, gh=1, PULL_REQUEST="7")
    assert (done.returncode, get_message("could-not-be-posted") in done.stderr) == (0, True)
    assert train(tmp_path / "push", 0).returncode == 0
    assert not (tmp_path / "push" / "comment").exists()


def test_a_job_that_does_not_start_has_no_run(tmp_path: Path) -> None:
    """The folder of an earlier run must not be taken for this one's."""
    assert train(tmp_path, 2, PULL_REQUEST="7").returncode == 2
    assert (tmp_path / "GITHUB_OUTPUT").read_text().splitlines() == ["status=failed", "run="]
    assert not (tmp_path / "comment").exists()


@pytest.mark.parametrize(("key", "value"), [("JOB", "absent.yaml"), ("MINUTES", "2h"), ("MINUTES", "0")])
def test_a_wrong_input_is_an_error_in_three_parts(tmp_path: Path, key: str, value: str) -> None:
    done = train(tmp_path, 0, 0, **{key: value})
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 3)
    assert not (tmp_path / "arguments").exists()


def test_the_action_hands_inputs_on_as_variables() -> None:
    """An expression in a shell line would be code of whoever names a branch."""
    action = yaml.safe_load(ACTION.read_text())
    (step,) = action["runs"]["steps"]
    assert "${{" not in step["run"]
    script = (ROOT / SCRIPT).read_text()
    assert all(f"${{{name}" in script or f"${name}" in script for name in step["env"] if name != "GH_TOKEN")
    assert set(action["outputs"]) == {"status", "run"}
