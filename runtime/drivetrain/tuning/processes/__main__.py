"""Runs one program of this package as the child of a command.

    python -m drivetrain.tuning.processes NAME FOLDER REQUEST SPEC [--set key=value ...] [--source JSON]

FOLDER contains hardware.json and plan.json. REQUEST is JSON with further arguments of the program.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from drivetrain.errors import DrivetrainError, Replanned
from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.system import interpreter
from drivetrain.system.console import guard_output, say_error
from drivetrain.system.signals import Signals, ignore_signals_after, raise_stopped
from drivetrain.tuning.measuring_child import PACKAGE, MeasuringCall


def main() -> int:
    """Run the program; returns the exit code. A signal stops the measurement, and a Drivetrain error is printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("request", type=json.loads)
    spec_source.add_options(parser)
    options = parser.parse_args()
    guard_output()
    try:
        with raise_stopped(), ignore_signals_after():
            source = SpecSource.from_arguments(options)
            call = MeasuringCall(options.folder, source, source.load(), Signals(), options.request)
            importlib.import_module(f"{PACKAGE}.{options.program}").measure(call)
    except Replanned:
        return Replanned.exit_code
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    interpreter.exit_process(main())
