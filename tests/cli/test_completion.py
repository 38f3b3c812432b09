"""The completion in a real bash: commands, options, values, runs, files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.cli.arguments import list_commands, make_parser

ASK = """
source ./completion
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_drivetrain
[[ ${#COMPREPLY[@]} -eq 0 ]] || printf '%s\\n' "${COMPREPLY[@]}"
complete -p drivetrain >&2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with a job, a file with a space and two runs."""
    monkeypatch.chdir(tmp_path)
    for run in ("digits-001", "digits-002", "other-001"):
        (tmp_path / "runs" / run).mkdir(parents=True)
    (tmp_path / "job.yaml").touch()
    (tmp_path / "my data.csv").touch()
    assert main.main(["completion", "bash"]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    return tmp_path


def list_completions(folder: Path, *arguments: str) -> list[str]:
    process = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", "drivetrain", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stderr == "complete -o filenames -F _drivetrain drivetrain\n"
    return sorted(process.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["val"], ["validate"]),
        (["p"], ["plan", "predict"]),
        (["launch", "--dev"], ["--device"]),
        (["launch", "--device", ""], ["cpu", "gpu"]),
        (["predict", "digits-001", "job.yaml", "--format", "j"], ["jsonl"]),
        (["train", "j"], ["job.yaml"]),
        (["train", "job.yaml", "--set", ""], []),
        (["plan", "job.yaml", "--hardware", "j"], ["job.yaml"]),
        (["watch", "digits"], ["digits-001", "digits-002"]),
        (["train", "job.yaml", "--extend", "o"], ["other-001"]),
        (["train", "d"], []),
        (["predict", "digits-001", "my"], ["my data.csv"]),
        (["init", "my"], ["my data.csv"]),
        (["nonsense", ""], []),
    ],
    ids=" ".join,
)
def test_what_is_offered(folder: Path, arguments: list[str], expected: list[str]) -> None:
    assert list_completions(folder, *arguments) == expected


def test_every_command_is_offered(folder: Path) -> None:
    assert set(list_completions(folder, "")) == {*list_commands(make_parser()), "--help", "--version"}


def test_zsh_reads_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    main.main(["completion", "zsh"])
    text = capsys.readouterr().out
    assert "bashcompinit && bashcompinit\n_drivetrain()" in text
    subprocess.run(["zsh", "-n", "-c", text], check=True)
