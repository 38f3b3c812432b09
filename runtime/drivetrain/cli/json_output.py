"""Output of commands with `--json` for another program: one JSON value on stdout, all text on stderr."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drivetrain.supervisor.trainer_error import ERROR_FILE_VARIABLE
from drivetrain.system.console import redirect_output
from drivetrain.system.run_files import REPORT_PAGE, RESULT_FILE, RunFiles
from drivetrain.system.run_records import RunState

RESULT_KEYS = ("best", "last", "test", "epochs", "steps", "seconds", "peak_memory", "stopped_because")
"""Parts of a run's result that a program gets."""


def describe_run(run: Path | None, exit_code: int, error: dict[str, Any]) -> dict[str, Any]:
    """Describe how a training ended, from the records in its folder.

    Args:
        run: the run folder; None if none was opened.
        exit_code: of the training.
        error: its error in JSON, empty if there is none.
    """
    if run is None:
        return {"exit_code": exit_code, "run": None, **error}
    files = RunFiles(run)
    result = files.read_object(RESULT_FILE)
    paths = {name: run / name for name in (REPORT_PAGE, "model")}
    return {
        **error,
        "exit_code": exit_code,
        "run": str(run),
        "status": RunState.read(run).status,
        **{name.removesuffix(".html"): str(path) if path.exists() else None for name, path in paths.items()},
        **{key: result[key] for key in RESULT_KEYS if key in result},
        "baselines": result.get("baselines"),
    }


@contextlib.contextmanager
def text_on_stderr() -> Iterator[Path]:
    """Redirect the stdout of this process and its children to stderr during the block.

    Yields the file into which a trainer writes its error.
    """
    with redirect_output([1], 2), TemporaryDirectory() as folder:
        os.environ[ERROR_FILE_VARIABLE] = str(Path(folder, "error.json"))
        try:
            yield Path(os.environ[ERROR_FILE_VARIABLE])
        finally:
            os.environ.pop(ERROR_FILE_VARIABLE, None)
