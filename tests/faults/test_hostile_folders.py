"""A hostile job folder and a hostile run folder through every command: nothing runs, nothing outside is opened, nothing is
sent.

An audit hook, which all Python processes of a command inherit, writes down the files that they open, the programs that
they start and the addresses that they connect to.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.cli.arguments import list_commands, make_parser
from drivetrain.errors import CheckpointError
from tests.hostile import (
    LINKS,
    SECRET,
    CommandOutcome,
    Outside,
    is_plain,
    plant_link,
    watch_command,
    write_code_job,
    write_job,
)
from tests.messages import says

OURS = ("python", "python3", "git", "docker", "nvidia-smi", "nvidia-ctk", "sh", "dash")
"""Programs that commands of ours start."""
NEVER = {
    "launch": "tests/docker/test_hostile_job.py",
}
"""Commands that no hostile folder reaches here, and why."""
JOB_COMMANDS = {
    "validate": ["validate", "job.yaml"],
    "doctor": ["doctor"],
    "plan": ["plan", "job.yaml"],
    "fetch": ["fetch", "job.yaml"],
    "init": ["init", "photos", "--output", "drafted.yaml"],
    "bench memory": ["bench", "memory", "job.yaml"],
    "bench lr": ["bench", "lr", "job.yaml"],
    "bench models": ["bench", "models", "job.yaml"],
    "repeat": ["repeat", "job.yaml", "--seeds", "2"],
    "sweep": ["sweep", "job.yaml", "--set", "sweep={trials: 1, space: {train.optimizer.lr: [0.01, 0.02]}}"],
    "bench speed": ["bench", "speed", "job.yaml"],
}
LONG = ("bench memory", "bench lr", "repeat", "sweep", "bench speed")
RUN_COMMANDS = {
    "watch": ["watch", "runs/hostile-001"],
    "report": ["report", "runs/hostile-001"],
    "compare": ["compare", "runs/hostile-001", "runs/other-001"],
    "evaluate": ["evaluate", "runs/hostile-001"],
    "explain": ["evaluate", "runs/hostile-001", "--explain"],
    "predict": ["predict", "runs/hostile-001", "photos"],
    "export": ["export", "runs/hostile-001", "--output", "model.onnx"],
    "stored": ["plan", "runs/hostile-001/job.yaml"],
    "extend": ["train", "job.yaml", "--extend", "runs/hostile-001", "--set", "train.epochs=2"],
    "train": ["train", "job.yaml"],
    "repeat": ["repeat", "job.yaml", "--seeds", "2"],
    "from": ["train", "job.yaml", "--new", "--set", "model={from: runs/hostile-001}"],
}


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    outside_folder = Outside(tmp_path / "outside")
    yield outside_folder
    outside_folder.check()


def check_actions(done: CommandOutcome, outside: Outside) -> None:
    """The processes of a command did nothing but their work."""
    assert is_plain(done.output), done.output
    assert SECRET not in done.output
    assert [line for kind in ("read", "write") for line in done.of_kind(kind) if str(outside.path) in line] == []
    programs = {Path(line.strip("'\"")).name for line in done.of_kind("program")}
    assert {name for name in programs if not name.startswith(OURS)} == set()
    assert [line for line in done.of_kind("connect") if line.startswith("(")] == []


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the hostile job, and its run, which did no harm."""
    folder = tmp_path_factory.mktemp("trained")
    outside_folder = Outside(folder / "outside")
    (folder / "work").mkdir()
    write_job(folder / "work", outside_folder)
    done = watch_command(["train", "job.yaml"], folder / "work", folder)
    assert done.code == 0, done.output
    check_actions(done, outside_folder)
    outside_folder.check()
    return folder / "work"


def test_every_command_meets_a_hostile_folder() -> None:
    commands = {arguments[0] for arguments in (*JOB_COMMANDS.values(), *RUN_COMMANDS.values())}
    assert commands | set(NEVER) == {name.split()[0] for name in list_commands(make_parser())}
    assert {name for name in list_commands(make_parser()) if " " in name} <= set(JOB_COMMANDS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else []) for name in JOB_COMMANDS]
)
def test_a_hostile_job(tmp_path: Path, outside: Outside, name: str) -> None:
    (tmp_path / "work").mkdir()
    write_job(tmp_path / "work", outside)
    done = watch_command(JOB_COMMANDS[name], tmp_path / "work", tmp_path)
    # doctor ends with 1 where this machine has something to warn of.
    assert done.code in {"doctor": (0, 1)}.get(name, (0,)), done.output
    check_actions(done, outside)


@pytest.mark.parametrize("name", RUN_COMMANDS)
def test_a_run_folder_full_of_links(trained_folder: Path, tmp_path: Path, outside: Outside, name: str) -> None:
    shutil.copytree(trained_folder, tmp_path / "work")
    run = tmp_path / "work" / "runs" / "hostile-001"
    shutil.copytree(run, run.with_name("other-001"))
    if name == "repeat":
        run = run.rename(run.with_name("hostile-seed0-001"))
    for link in ("events.jsonl", "report.html", ".lock", "model/config.json"):
        plant_link(run, link, outside)
    if name in ("train", "repeat"):  # the unfinished run that the next command of this name would continue
        (run / "state.json").write_text('{"status": "stopped", "exit_code": 75}')
    done = watch_command(RUN_COMMANDS[name], tmp_path / "work", tmp_path)
    # A stored job is read like any other: nothing else of its folder is.
    assert done.code == {"from": 2, "stored": 0}.get(name, CheckpointError.exit_code), done.output
    assert name == "stored" or says(done.output, "is-symbolic-link")
    check_actions(done, outside)


@pytest.mark.parametrize("link", LINKS)
def test_each_link_is_refused(trained_folder: Path, tmp_path: Path, outside: Outside, link: str) -> None:
    shutil.copytree(trained_folder, tmp_path / "work")
    plant_link(tmp_path / "work" / "runs" / "hostile-001", link, outside)
    done = watch_command(["report", "runs/hostile-001"], tmp_path / "work", tmp_path)
    assert done.code == CheckpointError.exit_code
    assert says(done.output, "is-symbolic-link-2", "runs/hostile-001", link)
    check_actions(done, outside)


def test_a_run_folder_that_is_a_link(trained_folder: Path, tmp_path: Path, outside: Outside) -> None:
    shutil.copytree(trained_folder, tmp_path / "work")
    (tmp_path / "work" / "runs" / "hostile-002").symlink_to(outside.path)
    for arguments in (["watch", "runs/hostile-002"], ["train", "job.yaml"]):
        done = watch_command(arguments, tmp_path / "work", tmp_path)
        assert done.code in (0, CheckpointError.exit_code), done.output
        check_actions(done, outside)


@pytest.fixture(scope="module")
def trained_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job that has code of its own, and its run."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "work").mkdir()
    write_code_job(folder / "work")
    done = watch_command(["train", "job.yaml"], folder / "work", folder)
    assert done.code == 0, done.output
    return folder / "work"


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "runs/tiny-001"],
        ["predict", "runs/tiny-001", "rows.npz"],
        ["export", "runs/tiny-001", "--output", "model.onnx"],
        ["train", "runs/tiny-001/job.yaml"],
        ["report", "runs/tiny-001"],
        ["watch", "runs/tiny-001"],
        ["compare", "runs/tiny-001", "runs/tiny-001"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_code_of_a_foreign_run_does_not_run(
    trained_code: Path, tmp_path: Path, outside: Outside, arguments: list[str]
) -> None:
    """The same folder elsewhere, for a user who has agreed to nothing; its state names a folder with other code."""
    shutil.copytree(trained_code, tmp_path / "work")
    run = tmp_path / "work" / "runs" / "tiny-001"
    state = json.loads((run / "state.json").read_text())
    (tmp_path / "theirs").mkdir()
    source = write_code_job(tmp_path / "theirs")
    (run / "state.json").write_text(json.dumps(state | {"source": str(source)}))
    environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOSTILE_CANARY": str(outside.canary)}
    done = watch_command(arguments, tmp_path / "work", tmp_path, **environment)  # type: ignore[arg-type]
    reads_only = arguments[0] in ("report", "watch", "compare")
    assert done.code == (0 if reads_only else CheckpointError.exit_code), done.output
    check_actions(done, outside)
