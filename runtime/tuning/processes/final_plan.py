"""Finds the plan that `train` would use and writes it to plan.json, as a child of `drivetrain bench`.

python -m runtime.tuning.processes.final_plan FOLDER SPEC [--set key=value ...]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from runtime.errors import DrivetrainError, Replanned
from runtime.job_spec import load as job_spec
from runtime.job_spec.load import SpecSource
from runtime.system.signals import Signals, ending, stopping
from runtime.training.phase_timer import PhaseTimer


def main() -> int:
    """Finalize the plan; returns the exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("spec", type=Path)
    arguments.add_argument("--set", action="append", default=[])
    given = arguments.parse_args()
    # Messages are no result: stdout is reserved for the parent's table or JSON.
    os.dup2(2, 1)
    try:
        with stopping(), ending():
            from runtime.tuning import prepare

            source = SpecSource(given.spec, given.set)
            prepare.assemble_run(given.folder, job_spec.load(given.spec, given.set), Signals(), PhaseTimer(), source)
    except Replanned:
        return 0  # the plan in the folder is final
    except DrivetrainError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
