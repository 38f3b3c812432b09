"""The wheel in an empty folder, without the checkout beside it: light commands, native training, and what is refused."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from tests import installed_wheel
from tests.messages import get_message, says_each
from tests.paths import ROOT

NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere.sock"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_wheel.build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def command_without_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pip install drivetrain[host]`: no torch."""
    return installed_wheel.make_environment(tmp_path_factory.mktemp("light") / "venv", wheel, torch=False)


@pytest.fixture(scope="module")
def command_with_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with torch."""
    return installed_wheel.make_environment(tmp_path_factory.mktemp("full") / "venv", wheel, torch=True)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A small table in an otherwise empty folder."""
    rows = [f"{i % 7},{i % 3},{'yes' if i % 7 > 3 else 'no'}" for i in range(60)]
    (tmp_path / "visits.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    return tmp_path


def test_the_compose_files_travel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        for path in (ROOT / "compose").glob("*.yaml"):
            assert file.read(f"drivetrain/launch/compose/{path.name}") == path.read_bytes()
        tops = {name.split("/")[0] for name in file.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"drivetrain"}


def test_train_and_predict(command_with_torch: Path, table: Path) -> None:
    """From data to predictions; a user's file named as a module of Python's changes nothing."""
    (table / "types.py").write_text("raise SystemExit('the wrong types')\n")
    draft = installed_wheel.run_installed(command_with_torch, "init", "visits.csv", folder=table)
    assert draft.returncode == 0, draft.stderr
    for command in (["validate"], ["plan"], ["train", "--set", "train.epochs=1", "--set", "optimize.measure=off"]):
        done = installed_wheel.run_installed(command_with_torch, command[0], "visits.yaml", *command[1:], folder=table)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (table / "runs" / "visits-001" / "report.html").is_file()
    prediction = installed_wheel.run_installed(command_with_torch, "predict", "visits-001", "visits.csv", folder=table)
    assert prediction.returncode == 0, prediction.stderr
    assert len(prediction.stdout.splitlines()) == 61


def test_the_light_commands(command_without_torch: Path, table: Path) -> None:
    (table / "job.yaml").write_text(
        "name: visits\ntask: tabular-classification\ndata: {train: visits.csv, target: label}\n"
    )
    assert installed_wheel.run_installed(command_without_torch, "validate", "job.yaml", folder=table).stdout.startswith(
        "job.yaml: valid"
    )
    assert (
        json.loads(installed_wheel.run_installed(command_without_torch, "plan", "--json", folder=table).stdout)["torch"]
        is None
    )
    assert (
        "cpu_threads" in installed_wheel.run_installed(command_without_torch, "plan", "job.yaml", folder=table).stdout
    )
    doctor = installed_wheel.run_installed(command_without_torch, "doctor", folder=table, **NO_ENGINE)  # type: ignore[arg-type]
    assert doctor.returncode in (0, 1), doctor.stderr
    assert "make " not in doctor.stdout
    assert not (table / "runs").exists()


@pytest.mark.parametrize("command", ["launch", "train"])
def test_neither_torch_nor_an_engine(command_without_torch: Path, table: Path, command: str) -> None:
    """The program cannot install torch by itself, as a checkout does."""
    (table / "job.yaml").write_text(
        "name: visits\ntask: tabular-classification\ndata: {train: visits.csv, target: label}\n"
    )
    done = installed_wheel.run_installed(command_without_torch, command, "job.yaml", folder=table, **NO_ENGINE)  # type: ignore[arg-type]
    assert done.returncode == 9
    assert says_each(
        done.stderr.splitlines(),
        [
            get_message("torch-installed-docker-engine"),
            get_message("possible-torch-local-environment"),
            get_message("pip-install-drivetrain-train", "docs.docker.com/get-docker"),
        ],
    )


def test_prediction_without_torch_and_engine(command_without_torch: Path, table: Path) -> None:
    shutil.copytree(table, table / "run")
    done = installed_wheel.run_installed(
        command_without_torch,
        "predict",
        "run",
        "visits.csv",
        folder=table,
        **NO_ENGINE,  # type: ignore[arg-type]
    )
    assert done.returncode == 9
    assert "pip install" in done.stderr
    assert "make " not in done.stderr
