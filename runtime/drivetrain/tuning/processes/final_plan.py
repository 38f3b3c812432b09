"""Finds the plan that `train` would use and writes it to plan.json, as a child of `drivetrain bench`."""

from __future__ import annotations

import contextlib

from drivetrain.errors import Replanned
from drivetrain.system.console import say
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.tuning import assembly
from drivetrain.tuning.measuring_child import MeasuringCall


def measure(call: MeasuringCall) -> None:
    """Write the plan to the folder."""
    # The plan in the folder is already final if Replanned is raised.
    with contextlib.suppress(Replanned):
        run = assembly.assemble_run(call.folder, call.job, call.signals, PhaseTimer())
        if run.ends_solved:
            say("bench: the heads of this job are solved: its training takes none of the steps that are measured here")
