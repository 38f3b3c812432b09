"""Every command that reads a run folder, over a folder with each file damaged in each way: all judge it alike."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from drivetrain.cli import main
from drivetrain.errors import CheckpointError, SpecError
from drivetrain.supervisor import supervisor
from drivetrain.system.run_files import RunFiles
from tests.faults import small_job

RUN = "runs/small-001"
COMMANDS = {
    "watch": ["watch", RUN],
    "report": ["report", RUN],
    "compare": ["compare", RUN, "runs/other-001"],
    "evaluate": ["evaluate", RUN],
    "predict": ["predict", RUN, "images.npz", "--output", "answers.csv"],
    "export": ["export", RUN, "--output", "model.onnx"],
    "stored": ["train", f"{RUN}/job.yaml", "--plan", f"{RUN}/plan.json", "--new"],
    "extend": ["train", "small.yaml", "--extend", RUN, "--set", "train.epochs=9"],
    "resume": ["train", "small.yaml"],
    "from": ["train", "small.yaml", "--new", "--set", f"model={{from: {RUN}}}"],
}
NEEDED = {
    "job.yaml": {"evaluate", "stored", "resume", "extend"},
    "state.json": {"extend"},
    "plan.json": {"stored", "resume", "extend"},
    "inputs.json": {"evaluate", "export"},
    "model/config.json": {"evaluate", "predict", "export", "from"},
    "hardware.json": set(),
    "result.json": set(),
    "progress.json": set(),
    "metrics.jsonl": set(),
    "telemetry.jsonl": set(),
    "events.jsonl": set(),
    "explanation.json": set(),
}
"""The files of a run, and the commands that cannot do without; all others show or do what is possible without it."""
DAMAGES = ("missing", "empty", "cut", "of another type", "values of another type", "a folder", "of a newer version")
FORGIVEN = {
    ("missing", "job.yaml"): {"resume"},  # a run can be killed before it has stored it
    ("missing", "plan.json"): {"resume"},  # it is planned anew
    ("values of another type", "inputs.json"): {"resume"},
}
"""Where a command that needs a file goes on without it."""
CHANGED = ("cut", "values of another type", "of a newer version")
"""A job file with these damages can be read, and is another one than that of the training."""

DIGESTED = ("job.yaml",)
"""Files of which the run has recorded what is in them, so that nothing may be added."""


class TrainingReached(Exception):
    """The command begins to train: all that it needed was there."""


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job, and its finished run."""
    folder = tmp_path_factory.mktemp("finished")
    job = small_job.write_job(folder, epochs="3")
    small_job.finish(job)
    run = folder / RUN
    (run / "events.jsonl").write_text(
        '{"time": "2026-11-01T00:00:00+00:00", "step": 1, "kind": "skip", "text": "one"}\n'
    )
    fitted = {
        "name": "constant",
        "metrics": {"validation/accuracy": 0.3},
        "rows": 9,
        "of": 9,
        "seconds": 0.1,
        "answers": {},
    }
    result = json.loads((run / "result.json").read_text())
    result["baselines"] = {"validation_samples": 40, "baselines": [fitted], "skipped": []}
    (run / "result.json").write_text(json.dumps(result))
    sample = {"title": "a", "truth": "b", "answer": "c", "probability": 0.9, "picture": "iVBORw0KGgoAAAAA"}
    columns = [{"column": "a", "mean": 0.1, "spread": 0.01}]
    (run / "explanation.json").write_text(json.dumps({"importance": {"columns": columns}, "maps": [sample]}))
    shutil.copytree(run, folder / "runs" / "other-001")
    return folder


def change_type(value: object) -> object:
    return 3 if isinstance(value, list) else []


def damage(file: Path, kind: str) -> None:
    text = file.read_text()
    if kind in ("missing", "a folder"):
        file.unlink()
    if kind == "a folder":
        file.mkdir()
    elif kind == "empty":
        file.write_text("")
    elif kind == "cut":
        file.write_text(text[: len(text) * 2 // 3])
    elif kind == "of another type":
        file.write_text("3\n")
    elif kind in ("values of another type", "of a newer version"):
        rows = [yaml.safe_load(text)] if file.suffix == ".yaml" else [json.loads(line) for line in split(file, text)]
        is_newer = kind == "of a newer version"
        rows = [
            ({**row, "new": {"x": 1}} if is_newer else {key: change_type(value) for key, value in row.items()})
            if isinstance(row, dict)
            else [{"rank": 0, "samples": "x", "new": 1}]
            for row in rows
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def split(file: Path, text: str) -> list[str]:
    return text.splitlines() if file.suffix == ".jsonl" else [text]


def run_command(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command; 0 where it begins to train."""

    def reach(*_: object, **__: object) -> int:
        raise TrainingReached

    monkeypatch.setattr(supervisor._Supervisor, "_run", reach)
    try:
        return main.main(COMMANDS[command])
    except TrainingReached:
        return 0
    finally:
        for begun in {*Path("runs").iterdir()} - {Path(RUN), Path("runs/other-001")}:
            shutil.rmtree(begun)


@pytest.fixture
def folder(finished_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy to damage, as the working folder."""
    before = Path.cwd()
    shutil.copytree(finished_folder, tmp_path / "work")
    os.chdir(tmp_path / "work")
    yield tmp_path / "work"
    os.chdir(before)


def cases() -> Iterator[object]:
    """All of them at night; on every change two damages of the files that commands need, and one of all others at once."""
    for name, needing in NEEDED.items():
        for kind in DAMAGES:
            usual = needing and kind in ("cut", "values of another type")
            yield pytest.param([name], kind, id=f"{name}-{kind}", marks=[] if usual else [pytest.mark.nightly])
    yield pytest.param([name for name, needing in NEEDED.items() if not needing], "values of another type", id="others")


@pytest.mark.parametrize(("names", "kind"), [*cases()])
def test_all_commands_judge_a_damaged_file_alike(
    folder: Path, names: list[str], kind: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        damage(folder / RUN / name, kind)
    problems = set()
    for command in COMMANDS:
        if command == "resume" and (folder / RUN / "state.json").is_file() and name != "state.json":
            state = json.loads((folder / RUN / "state.json").read_text())
            RunFiles(folder / RUN).write_json("state.json", state | {"status": "stopped", "exit_code": 75})
        code = run_command(command, monkeypatch)
        if command == "resume" and name != "state.json":
            RunFiles(folder / RUN).write_json("state.json", state)
        output = capfd.readouterr()
        assert "Traceback" not in output.err, (command, output.err)
        is_needed = command in NEEDED[name] and command not in FORGIVEN.get((kind, name), set())
        if not is_needed or (kind == "of a newer version" and name not in DIGESTED):
            assert code == 0, (command, output.err)
            continue
        if name == "job.yaml" and kind in CHANGED:
            assert code in (CheckpointError.exit_code, SpecError.exit_code), (command, output.err)
            continue
        if command in ("from", "stored") or (name, kind, command) == ("job.yaml", "missing", "evaluate"):
            assert code in (2, 3, CheckpointError.exit_code), (command, output.err)
            continue
        assert code == CheckpointError.exit_code, (command, output.err)
        problems |= {line for line in output.err.splitlines() if f"{RUN}/{name}: " in line}
    assert len(problems) <= 1, problems
