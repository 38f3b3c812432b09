"""A job with networks of the user's own, trained by the command line."""

from __future__ import annotations

from pathlib import Path

from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan
from drivetrain.supervisor import run_folder, trainer_process
from drivetrain.system.files import write_json
from tests.tiny import Quiet, machine


def trained(path: Path, *assignments: str) -> Path:
    """The folder of a run that was trained in this process."""
    made: Job = job_spec.load(path, assignments)
    place = run_folder.open_run(path.parent / "runs", made)
    here = machine()
    write_json(place.path / "hardware.json", here.to_json())
    write_json(place.path / "plan.json", plan.resolve(made, here).to_json())
    write_json(place.path / "state.json", {"status": "running", "source": str(path)})
    assert trainer_process.train(place.path, made, Quiet(), SpecSource(path, assignments)) == 0
    write_json(place.path / "state.json", {"status": "done", "source": str(path)})
    return place.path
