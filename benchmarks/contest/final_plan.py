"""Measures the plan that `drivetrain train` would use, and writes it to plan.json of a folder with hardware.json.

python -m benchmarks.contest.final_plan FOLDER JOB
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from drivetrain.errors import Replanned
from drivetrain.job_spec import load_job
from drivetrain.system.signals import Signals
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import assembly


def main(folder: Path, job: Path) -> None:
    """Measure and write the plan."""
    # The plan in the folder is already final if Replanned is raised.
    with contextlib.suppress(Replanned):
        assembly.assemble_run(folder, load_job.load(job), Signals(), PhaseTimer())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
