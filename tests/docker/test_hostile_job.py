"""A hostile job in a container and a hostile run folder in the image: neither reaches what lies outside, nor the host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.errors import CheckpointError
from tests import own_job
from tests.docker.conftest import Run
from tests.docker.launched_checkout import copy_checkout, remove_containers
from tests.hostile import SECRET, Outside, plant_link, plant_repository, watch_command
from tests.messages import says

CODE = """
from pathlib import Path

print("run runs/../../outside starts", flush=True)
outside = Path("../../../outside")  # as the host sees it from a run folder
for run in Path("/workspace/runs").glob("tiny-*"):
    for name, target in {"report.html": "key", "events.jsonl": "bashrc", "report.md": "key"}.items():
        if (run / name).is_file() and not (run / name).is_symlink():
            (run / name).rename(run / f"{name}.old")
        if not (run / name).is_symlink():  # the network is built once more beside the simple models
            (run / name).symlink_to(outside / target)
"""


@pytest.fixture
def project(cpu_image: str, tmp_path: Path) -> Iterator[Path]:
    folder = copy_checkout(tmp_path / "drivetrain")
    yield folder
    remove_containers(folder)


def test_the_host_believes_no_container(project: Path, tmp_path: Path) -> None:
    """Code in the container prints a line like ours and plants links."""
    outside = Outside(tmp_path / "outside")
    work = project / "work"
    work.mkdir()
    (work / "my_data.py").write_text(own_job.DATA)
    (work / "my_model.py").write_text(CODE + own_job.MODEL)
    plant_repository_after_commit(work, outside)
    (work / "job.yaml").write_text(own_job.JOB.format(data="", model="", train="", checkpoint=""))
    done = watch_command(["launch", "work/job.yaml"], project, tmp_path, project)
    assert "run runs/../../outside starts" in done.output
    assert "my_model.py raised" not in done.output, done.output
    assert [line for kind in ("read", "write") for line in done.of_kind(kind) if str(outside.path) in line] == []
    outside.check()


def plant_repository_after_commit(work: Path, outside: Outside) -> None:
    """A repository needs a job file to hold."""
    (work / "job.yaml").write_text("name: tiny\n")
    plant_repository(work, outside)


@pytest.mark.parametrize(
    "arguments",
    [
        ["report"],
        ["evaluate"],
        *(pytest.param([name], marks=pytest.mark.nightly) for name in ("watch", "compare", "predict", "export")),
    ],
    ids=lambda w: w[0],
)
def test_a_run_folder_full_of_links_in_the_image(container: Run, tmp_path: Path, arguments: list[str]) -> None:
    outside = Outside(tmp_path / "outside")
    run = tmp_path / "runs" / "hostile-001"
    (run / "model").mkdir(parents=True)
    (run / "job.yaml").write_text("name: hostile\n")
    for link in ("state.json", "report.html", "events.jsonl", ".lock", "model/config.json"):
        plant_link(run, link, outside)
    shutil.copytree(run, run.with_name("other-001"), symlinks=True)
    inputs = {"compare": ["runs/other-001"], "predict": ["runs"]}.get(arguments[0], [])
    owner = f"--user={os.getuid()}:{os.getgid()}"
    options = (f"--volume={tmp_path}:/work", "--workdir=/work", owner)
    done = container(*arguments, "runs/hostile-001", *inputs, options=options)
    assert done.returncode == CheckpointError.exit_code, done.stdout + done.stderr
    assert says(done.stderr, "symbolic-link-could-lead")
    assert SECRET not in done.stdout + done.stderr
    outside.check()
