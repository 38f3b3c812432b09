"""`python -m drivetrain.report RUN`: write the report of one run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from drivetrain.errors import DrivetrainError, SpecError
from drivetrain.report.model_advice import list_model_advice
from drivetrain.report.record import summarize
from drivetrain.report.write import write
from drivetrain.system import interpreter
from drivetrain.system.console import guard_output, say, say_error


def main(arguments: Sequence[str]) -> int:
    """Write the report and print the advice; returns the exit code."""
    guard_output()
    try:
        if len(arguments) != 1:
            raise SpecError(
                f"{len(arguments)} arguments", "one run folder", "python -m drivetrain.report runs/NAME-001"
            )
        record = write(Path(arguments[0]))
        for advice in list_model_advice(record, summarize(record)):
            say(f"advice: {advice.change}: {advice.why}; {advice.line}")
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    interpreter.exit_process(main(sys.argv[1:]))
