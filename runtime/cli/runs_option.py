"""The option `--runs`: a folder of this machine, or of an object store, to which runs/ is copied then."""

from __future__ import annotations

import argparse
from pathlib import Path

from runtime.errors import SpecError
from runtime.storage.remote_address import BadAddress, RemoteAddress, is_remote
from runtime.storage.remote_address import parse as parse_address
from runtime.supervisor import named_run

LOCAL = Path("runs")
COPIED = ("train", "repeat", "validate")
"""Commands whose runs can be copied, or that check whether they can."""


def parse(text: str) -> Path | RemoteAddress:
    """The folder, or the address.

    Raises:
        SpecError: if it is an address that cannot be used.
    """
    if not is_remote(text):
        return Path(text)
    try:
        address = parse_address(text)
    except BadAddress as error:
        raise SpecError(f"--runs: {error.given}", error.possible, error.action) from None
    if not address.writable:
        raise SpecError(f"--runs: {address} cannot be written", "s3://, gs://, az://, or a folder", "use one of these")
    return address


def fetch(given: argparse.Namespace) -> None:
    """Bring here the runs that a command names by their addresses.

    Raises:
        DrivetrainError: as `named_run.local`; SpecError also for a run that is to be extended.
    """
    if isinstance(getattr(given, "extend", None), RemoteAddress):
        raise SpecError(
            f"--extend {given.extend}: a run in an object store",
            "a run folder of this machine, with its checkpoints",
            "copy the run's folder with your provider's tool, and name it",
        )
    if hasattr(given, "run") and given.run is not None:
        given.run = named_run.local(given.run)
    if given.command == "compare":
        given.runs = [named_run.local(run) for run in given.runs]


def apply(given: argparse.Namespace) -> None:
    """Turn `--runs ADDRESS` into runs/ and `--set checkpoint.copy_to=ADDRESS`.

    Raises:
        SpecError: for a command whose runs are not copied, and if the command line names two addresses.
    """
    address = getattr(given, "runs", None)
    if not isinstance(address, RemoteAddress):
        return
    if given.command not in COPIED:
        raise SpecError(f"--runs {address}: `{given.command}` copies nothing", "a folder of this machine", "use runs")
    if any(each.startswith("checkpoint.copy_to=") for each in given.set):
        raise SpecError("--runs ADDRESS and --set checkpoint.copy_to=ADDRESS", "one of them", "remove one")
    given.runs, given.set = LOCAL, [*given.set, f"checkpoint.copy_to={address}"]
