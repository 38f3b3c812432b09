"""`drivetrain track`: send what a tracking server does not have of a run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pydantic import ValidationError

from drivetrain.errors import SpecError
from drivetrain.job.track import Track
from drivetrain.job_spec.stored_spec import read_stored_spec
from drivetrain.supervisor import named_run
from drivetrain.system.console import say
from drivetrain.tracking.run_tracker import open_tracker
from drivetrain.tracking.servers.mlflow import URI_NAME


def track(options: argparse.Namespace) -> int:
    """Send the rows, files and state that are missing there.

    Raises:
        CheckpointError: if there is no such run.
        SpecError: if neither the run nor the command line names a server.
        TrackerError: if the server cannot be reached, or refuses.
    """
    run = named_run.check_exists(options.run)
    target = _choose_server(options) or _read_stored_track(run)
    if target is None:
        raise SpecError(
            f"{run}: its job file has no `track:`",
            "the address of a server on the command line",
            f"drivetrain track {run} --mlflow http://127.0.0.1:5000",
        )
    server, address = target.target
    with open_tracker(run, address, target.experiment, server) as copy:
        copy.read()
        count = len(copy.waiting)
        copy.send()
        unsent = copy.finish()
    say(f"tracker: {count:,} rows sent" + (f"; not sent: {unsent}" if unsent else ""))
    say(f"tracker: {copy.page}")
    return 0


def _read_stored_track(run: Path) -> Track | None:
    """The server that the job of a run names."""
    try:
        track = Track.model_validate(read_stored_spec(run).data.get("track"))
    except ValidationError:
        return None
    return None if track.find_contradiction() else track


def _choose_server(options: argparse.Namespace) -> Track | None:
    """The server of the command line."""
    if options.mlflow is None:
        return None
    # Whoever types the address names the server that may have the credentials.
    os.environ[URI_NAME] = options.mlflow
    try:
        return Track(mlflow=options.mlflow, experiment=options.experiment)
    except ValidationError as error:
        raise SpecError(
            f"--mlflow {options.mlflow}" if "mlflow" in str(error) else f"--experiment {options.experiment}",
            "an address without user and password, such as http://127.0.0.1:5000, and a name of up to 250 characters",
            "correct it; user and password come from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        ) from None
