"""A job with networks of the user's own, trained by the command line."""

from __future__ import annotations

from pathlib import Path

from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.plan import plan
from drivetrain.supervisor import run_folder, trainer_process
from drivetrain.system.files import write_json
from tests.tiny import QuietSignals, machine


def train_job(path: Path, *assignments: str) -> Path:
    """The folder of a run that was trained in this process."""
    job: Job = job_spec.load(path, assignments)
    run = run_folder.open_run(path.parent / "runs", job)
    hardware = machine()
    write_json(run.path / "hardware.json", hardware.to_json())
    write_json(run.path / "plan.json", plan.resolve(job, hardware).to_json())
    write_json(run.path / "state.json", {"status": "running", "source": str(path)})
    assert trainer_process.train(run.path, job, QuietSignals()) == 0
    write_json(run.path / "state.json", {"status": "done", "source": str(path)})
    return run.path
