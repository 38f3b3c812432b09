"""The completion in a real bash: commands, options, values, runs, files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.cli.arguments import list_commands, make_parser


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a job, a file with a space and three runs."""
    for run in ("digits-001", "digits-002", "other-001"):
        (tmp_path / "runs" / run).mkdir(parents=True)
    (tmp_path / "job.yaml").touch()
    (tmp_path / "my data.csv").touch()
    return tmp_path


def list_completions(folder: Path, *arguments: str) -> list[str]:
    """Return what bash offers for the last argument, by the function that the documented line defines."""
    ask = """
eval "$(register-python-argcomplete drivetrain)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMP_TYPE=9
"$(complete -p drivetrain | sed 's/.*-F \\([^ ]*\\).*/\\1/')" drivetrain
[[ ${#COMPREPLY[@]} -eq 0 ]] || printf '%s\\n' "${COMPREPLY[@]}"
"""
    scripts = Path(sys.executable).parent
    process = subprocess.run(
        ["bash", "--norc", "-c", ask, "bash", "drivetrain", *arguments],
        cwd=folder,
        env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(line.strip() for line in process.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["val"], ["validate"]),
        (["p"], ["plan", "predict"]),
        (["launch", "--dev"], ["--device"]),
        (["launch", "--device", ""], ["cpu", "gpu"]),
        (["train", "j"], ["job.yaml"]),
        (["watch", "digits"], ["digits-001", "digits-002"]),
        (["train", "job.yaml", "--extend", "o"], ["other-001"]),
        (["predict", "digits-001", "my"], ["my\\ data.csv"]),
    ],
    ids=" ".join,
)
def test_offered_words(folder: Path, arguments: list[str], expected: list[str]) -> None:
    assert list_completions(folder, *arguments) == expected


def test_every_command_is_offered(folder: Path) -> None:
    assert set(list_completions(folder, "")) >= {name.split()[0] for name in list_commands(make_parser())}
