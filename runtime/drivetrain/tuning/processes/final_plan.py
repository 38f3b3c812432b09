"""Finds the plan that `train` would use and writes it to plan.json, as a child of `drivetrain bench`.

python -m drivetrain.tuning.processes.final_plan FOLDER SPEC [--set key=value ...]
"""

from __future__ import annotations

import contextlib
import os

from drivetrain.errors import Replanned
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.system import interpreter
from drivetrain.system.signals import Signals, ignore_signals_after, raise_stopped
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import child_main


def main() -> int:
    """Finalize the plan; returns the exit code."""
    options = child_main.make_parser().parse_args()
    # Messages are no result: stdout is reserved for the parent's table or JSON.
    os.dup2(2, 1)

    def finalize() -> None:
        # The plan in the folder is final where it was decided anew.
        with contextlib.suppress(Replanned), raise_stopped(), ignore_signals_after():
            from drivetrain.tuning import assembly

            source = SpecSource.from_arguments(options)
            assembly.assemble_run(options.folder, source.load(), Signals(), PhaseTimer(), source)

    return child_main.run(finalize)


if __name__ == "__main__":
    interpreter.exit_process(main())
