"""`drivetrain track`: send what a tracking server does not have of a run."""

from __future__ import annotations

import argparse
import os

from pydantic import ValidationError

from runtime.errors import SpecError
from runtime.job.track import Track
from runtime.supervisor import named_run
from runtime.system.console import say
from runtime.tracking.mlflow_server import LOCATION
from runtime.tracking.run_tracker import RunTracker, open_tracker, stored_track
from runtime.tracking.tracker import TrackerError


def track(given: argparse.Namespace) -> int:
    """Send the rows, files and state that are missing there.

    Raises:
        CheckpointError: if there is no such run.
        SpecError: if neither the run nor the command line names a server.
        TrackerError: if the server cannot be reached, or refuses.
    """
    run = named_run.existing(given.run)
    asked = _asked(given) or stored_track(run)
    if asked is None:
        raise SpecError(
            f"{run}: its job file has no `track:`",
            "the address of a server on the command line",
            f"drivetrain track {run} --mlflow http://127.0.0.1:5000",
        )
    server, address = asked.target
    with open_tracker(run, address, asked.experiment, server) as copy:
        copy.read()
        count = len(copy.waiting)
        _send(copy)
        unsent = copy.finish()
    say(f"tracker: {count:,} rows sent" + f"; not sent: {unsent}" * bool(unsent))
    say(f"tracker: {copy.page}")
    return 0


def _send(copy: RunTracker) -> None:
    """Send all rows; a server that is slow gets fewer at once, so that it answers in time."""
    while True:
        most = copy.most
        try:
            copy.send()
            return
        except TrackerError as error:
            if not error.passing or copy.most == most:
                raise


def _asked(given: argparse.Namespace) -> Track | None:
    """The server of the command line."""
    if given.mlflow is None:
        return None
    # Whoever types the address names the server that may have the credentials.
    os.environ[LOCATION] = given.mlflow
    try:
        return Track(mlflow=given.mlflow, experiment=given.experiment)
    except ValidationError as error:
        raise SpecError(
            f"--mlflow {given.mlflow}" if "mlflow" in str(error) else f"--experiment {given.experiment}",
            "an address without user and password, such as http://127.0.0.1:5000, and a name of up to 250 characters",
            "correct it; user and password come from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        ) from None
