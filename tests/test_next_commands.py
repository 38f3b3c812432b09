"""Every command that the output prints as the next step works when it is typed where the user stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import IMPORTS

ROWS = "size,color,kind\n" + "".join(f"{i % 7}.{i % 3},{'red' if i % 3 else 'blue'},{'ab'[i % 2]}\n" for i in range(60))


def run_command(line: str, folder: Path) -> str:
    """Run a printed command line in a folder; return its output."""
    arguments = shlex.split(line)
    assert arguments[0] == "drivetrain"
    # Without docker, `init` advises `train`, which needs no image.
    environment = {**os.environ, "PYTHONPATH": IMPORTS, "PATH": str(Path(sys.executable).parent)}
    process = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def read_next(output: str) -> str:
    """Return the command in the last line of an output."""
    label, _, command = output.splitlines()[-1].partition(": ")
    assert label == "next"
    return command


@pytest.mark.slow
@pytest.mark.parametrize("folder_name", [pytest.param("plain", marks=pytest.mark.nightly), "with a blank"])
def test_each_next_command_leads_to_predictions(tmp_path: Path, folder_name: str) -> None:
    folder = tmp_path / folder_name
    folder.mkdir()
    (folder / "table.csv").write_text(ROWS)
    train_command = read_next(run_command("drivetrain init table.csv", folder))
    predict_command = read_next(run_command(f"{train_command} --set train.epochs=2", folder))
    assert run_command(predict_command.replace("FILES", "table.csv"), folder).count("table.csv row ") == 60
    report = (folder / "runs" / "table-001" / "report.md").read_text()
    (report_command,) = set(re.findall(r"drivetrain predict \S+ FILES", report))
    assert run_command(report_command.replace("FILES", "table.csv"), folder).count("table.csv row ") == 60
