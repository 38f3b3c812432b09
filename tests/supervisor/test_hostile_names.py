"""A class name that holds escape sequences and a line of ours, through every command: it is shown, and does nothing."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.cli import main
from tests.paths import IMPORTS

HOSTILE = "a\nrun runs/../../x starts\x1b]0;owned\x07\x1b[2J\u202e"
JOB = """
name: hostile
task: text-classification
data: {train: texts.csv, text: text, labels: label, validation: 0.4}
model: {name: encoder, width: 8, layers: 1, heads: 1}
train: {epochs: 1, batch_size: 8}
"""


def texts(path: Path, other: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([f"word{row % 7} some text of {row}", HOSTILE if row % 2 else other] for row in range(40))


@pytest.fixture(scope="module")
def work_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and its copy."""
    folder = tmp_path_factory.mktemp("hostile")
    texts(folder / "texts.csv", "b")
    texts(folder / "others.csv", f"{HOSTILE}?")
    (folder / "job.yaml").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", "train", "job.yaml", "--plain"],
        cwd=folder,
        # An encoding that lacks most characters: what cannot be written must not end the command.
        env={**os.environ, "PYTHONPATH": IMPORTS, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    text = (done.stdout + done.stderr).decode("ascii")
    assert done.returncode == 0, text
    assert clean(text)
    assert [line for line in text.splitlines() if line.startswith("run ")] == ["run runs/hostile-001 starts"]
    shutil.copytree(folder / "runs/hostile-001", folder / "runs/hostile-002")
    return folder


def clean(text: str) -> bool:
    return not {"\x1b", "\x07", "\u202e"} & set(text) and "\nrun runs/.." not in text


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["validate", "job.yaml"], 0),
        (["init", "texts.csv", "--output", "drafted.yaml"], 0),
        (["evaluate", "runs/hostile-001", "--data", "texts.csv"], 0),
        (["evaluate", "runs/hostile-001", "--data", "others.csv"], 3),
        (["predict", "runs/hostile-001", "texts.csv", "--output", "texts.jsonl"], 0),
        (["watch", "runs/hostile-001"], 0),
        (["report", "runs/hostile-001"], 0),
        (["compare", "runs/hostile-001", "runs/hostile-002"], 0),
    ],
    ids=["validate", "init", "evaluate", "evaluate-others", "predict", "watch", "report", "compare"],
)
def test_a_hostile_class_name_is_only_shown(
    work_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    code: int,
) -> None:
    monkeypatch.chdir(work_folder)
    assert main.main(command) == code
    said = capsys.readouterr()
    assert clean(said.out)
    assert clean(said.err)
    assert said.out or said.err
