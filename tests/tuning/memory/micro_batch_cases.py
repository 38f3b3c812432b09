"""Small jobs whose micro-batch is searched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.plan import plan
from drivetrain.system.files import write_json
from drivetrain.training import run
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import assembly
from tests import tiny
from tests.task_cases import CASES


def case(folder: Path, name: str, text: str) -> Job:
    """One of the tasks on raw files, with a `train:` and `optimize:` of its own."""
    if not any(folder.glob("train*")):
        CASES[name].files(folder)
    return job_spec.check(parse(f"name: tiny\n{CASES[name].text}{text}", "tiny.yaml"))


def assemble_run(folder: Path, job: Job, replay: Any = None) -> run.Run:
    """A run as the trainer assembles it, with the plan in its folder."""
    folder.mkdir(exist_ok=True)
    machine = tiny.machine()
    machine = replace(machine, storage=replace(machine.storage, cache=str(folder / "cache")))
    write_json(folder / "hardware.json", machine.to_json())
    write_json(folder / "plan.json", plan.resolve(job, machine, replay=replay).to_json())
    training_run: run.Run = assembly.assemble_run(folder, job, tiny.QuietSignals(), PhaseTimer())
    return training_run
