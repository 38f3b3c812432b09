"""The list of unfinished runs and the commands that resume them, which are copied into a terminal."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.messages import says_only
from tests.paths import ROOT


def list_unfinished(folder: Path, **state: object) -> str:
    """What is printed for one run."""
    (folder / ".devcontainer").mkdir(exist_ok=True)
    shutil.copy(ROOT / ".devcontainer" / "unfinished-runs", folder / ".devcontainer")
    (folder / "runs" / "a-001").mkdir(parents=True, exist_ok=True)
    (folder / "runs" / "a-001" / "state.json").write_text(json.dumps(state))
    return subprocess.run(
        [folder / ".devcontainer" / "unfinished-runs"], capture_output=True, text=True, check=True
    ).stdout.removesuffix("\n")


def test_the_command_that_resumes_a_run(tmp_path: Path) -> None:
    line = list_unfinished(tmp_path, status="stopped", source="jobs/a.yaml", set=["train.epochs=3"])
    assert says_only(line, "unfinished-stopped-resume-make", "runs/a-001", "jobs/a.yaml", "train.epochs", 3)
    assert list_unfinished(tmp_path, status="done", source="jobs/a.yaml") == ""


def test_a_run_from_elsewhere_brings_no_command(tmp_path: Path) -> None:
    """make runs what stands between $( and ), whatever the quotes of the shell."""
    (tmp_path / "Makefile").write_text("train-cpu:\n\t@printf '%s\\n' '$(JOB)' > told\n")
    line = list_unfinished(tmp_path, status="stopped", source="$(shell touch mark)", set=[])
    subprocess.run(["bash", "-c", line.partition("resume: ")[2]], cwd=tmp_path, check=True)
    assert (tmp_path / "told").read_text() == "$(shell touch mark)\n"
    assert not (tmp_path / "mark").exists()
    line = list_unfinished(tmp_path, status="stopped\n\x1b[2J", source="a\nb", set=["c\x07"])
    assert line.isprintable()
