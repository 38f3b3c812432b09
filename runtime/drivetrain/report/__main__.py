"""`python -m drivetrain.report RUN`: write the report of one run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from drivetrain.errors import DrivetrainError, SpecError
from drivetrain.report.record import summarize
from drivetrain.report.sections.advice import list_model_advice
from drivetrain.report.write import write
from drivetrain.system import interpreter
from drivetrain.system.console import guard_output, say, say_error


def main(arguments: Sequence[str]) -> int:
    """Write the report; the exit code is 0, or that of the error."""
    guard_output()
    try:
        if len(arguments) != 1:
            raise SpecError(
                f"{len(arguments)} arguments", "one run folder", "python -m drivetrain.report runs/NAME-001"
            )
        record = write(Path(arguments[0]))
        for one in list_model_advice(record, summarize(record)):
            say(f"advice: {one.change}: {one.why}; {one.line}")
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    interpreter.exit_process(main(sys.argv[1:]))
