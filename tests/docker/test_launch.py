"""`launch` and what follows it against a real engine: what is mounted, whose containers they are, what is remembered."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from drivetrain.launch.compose_project import KEEP
from drivetrain.pretrained.model_config import digest_values
from tests import own_job
from tests.docker.conftest import inspect_container
from tests.docker.launched_checkout import (
    copy_checkout,
    inspect_trainer,
    list_containers,
    project,
    remove_containers,
    run_command,
)
from tests.messages import says
from tests.paths import ROOT

__all__ = ["project"]

JOB = """
name: tiny
task: tabular-classification
data: {{train: {data}, target: label}}
train: {{epochs: 1}}
optimize: {{measure: off}}
"""


def table(path: Path) -> None:
    rows = [f"{i % 7},{i % 3},{'yes' if i % 7 > 3 else 'no'}" for i in range(60)]
    path.write_text("\n".join(["a,b,label", *rows]) + "\n")


@pytest.mark.nightly
def test_what_a_spec_outside_of_the_project_brings(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data and itself, by name; not what lies beside them; and no network."""
    monkeypatch.setenv(KEEP, "1")
    home = tmp_path / "somebody"
    home.mkdir()
    (home / "id_rsa").write_text("secret")
    table(home / "data.csv")
    (home / "job.yaml").write_text(JOB.format(data="data.csv"))
    done = run_command(project, "train", str(home / "job.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "torch-installed-training-container")
    assert says(done.stdout, "network-job-needs-download")
    inspection = inspect_trainer(project, "tiny")
    outside = {mount["Source"]: mount["RW"] for mount in inspection["Mounts"] if str(home) in mount["Source"]}
    assert outside == {str(home / "job.yaml"): False, str(home / "data.csv"): False}
    assert inspection["HostConfig"]["NetworkMode"] == "none"
    # The command line names the run alone; its spec names the data.
    done = run_command(project, "evaluate", "runs/tiny-001")
    assert done.returncode == 0, done.stdout + done.stderr
    assert says(done.stdout, "evaluation-validation-data-run")


def test_printed_commands_work_in_another_folder(project: Path, tmp_path: Path) -> None:
    """A container wrote its runs into the checkout, and the printed path of a run led nowhere."""
    working_folder = tmp_path / "mine"
    working_folder.mkdir()
    working_folder.chmod(0o777)
    table(working_folder / "parts.csv")
    drafted = run_command(project, "init", "parts.csv", working_folder=working_folder)
    trained = run_command(project, *read_next(drafted), "--set", "train.epochs=1", working_folder=working_folder)
    arguments = [str(working_folder / "parts.csv") if word == "FILES" else word for word in read_next(trained)]
    predicted = run_command(project, *arguments, working_folder=working_folder)
    assert predicted.returncode == 0, predicted.stderr
    assert predicted.stdout.count("parts.csv row ") == 60
    assert not list((project / "runs").glob("parts-*"))


def read_next(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the arguments of the command in the last line of an output."""
    assert done.returncode == 0, done.stdout + done.stderr
    last_line = done.stdout.splitlines()[-1]
    assert last_line.startswith("next: drivetrain ")
    return shlex.split(last_line)[2:]


def test_a_system_folder_as_data_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: tiny\ntask: image-classification\ndata: {train: /}\n")
    done = run_command(project, "launch", str(tmp_path / "job.yaml"))
    assert done.returncode == 2
    assert says(done.stderr, "mounted-contains-data", "data.train")


@pytest.mark.nightly
def test_user_code_trained_in_a_container_may_predict_in_one(project: Path, tmp_path: Path) -> None:
    """That it was trained here is kept in a volume, so a copy of another's run has nothing to show."""
    folder = project / "own"
    folder.mkdir()
    own_job.write_job(folder, {"my_data.py": own_job.DATA.replace("samples=96", "samples=97")})
    done = run_command(project, "launch", "own/job.yaml", "--set", "optimize.measure=off")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list_containers(project) == [], "a run that ended well leaves none"
    evaluated = run_command(project, "evaluate", "runs/tiny-001")
    assert evaluated.returncode == 0, evaluated.stderr
    # As a download that holds the same names and digests, with another argument.
    config = project / "runs" / "tiny-001" / "model" / "config.json"
    data = json.loads(config.read_text())
    data["arguments"]["arguments"]["width"] = 9
    config.unlink()
    config.write_text(json.dumps(data | {"content": digest_values(data)}))
    refused = run_command(project, "evaluate", "runs/tiny-001")
    assert refused.returncode == 4
    assert "allow them with --run-code" in refused.stderr


def start(folder: Path) -> str:
    """`docker compose up` of a run that goes on for long; the container's id."""
    (folder / "jobs" / "long.yaml").write_text(
        (ROOT / "jobs" / "digits.yaml").read_text().replace("epochs: 12", "epochs: 2000")
    )
    subprocess.run([folder / "scripts" / "env"], capture_output=True, check=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DRIVETRAIN_", "COMPOSE_"))}
    up = ["docker", "compose", "up", "--detach", "trainer"]
    done = subprocess.run(
        up, cwd=folder, env={**environment, "JOB": "jobs/long.yaml"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listing = subprocess.run(
        ["docker", "compose", "ps", "-aq", "trainer"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return listing.stdout.strip()


def is_running(container: str) -> bool:
    return bool(inspect_container(container)["State"]["Running"])


def test_folders_of_the_same_name_keep_separate_containers(project: Path, tmp_path: Path) -> None:
    other = copy_checkout(tmp_path / "two" / "drivetrain")
    try:
        one, two = start(project), start(other)
        assert one != two
        assert is_running(one)
        assert is_running(two)
        subprocess.run(["make", "stop"], cwd=other, capture_output=True, check=True)
        assert (is_running(one), is_running(two)) == (True, False)
    finally:
        remove_containers(other)


def test_a_missing_image_is_not_pulled(project: Path) -> None:
    overlay = project / "compose" / "cpu.yaml"
    overlay.write_text(overlay.read_text().replace("/drivetrain/cpu:", "/drivetrain/absent:"))
    subprocess.run([project / "scripts" / "env"], capture_output=True, check=True)
    done = subprocess.run(
        ["docker", "compose", "up", "--no-build", "trainer"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    output = (done.stdout + done.stderr).lower()
    assert "no such image" in output
    assert "pulling" not in output
    assert "registry" not in output
