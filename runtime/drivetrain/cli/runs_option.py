"""The option `--runs`: a folder of this machine, or of an object store, to which runs/ is copied then."""

from __future__ import annotations

import argparse
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.storage.remote_address import BadAddress, RemoteAddress, is_remote
from drivetrain.storage.remote_address import parse as parse_address

LOCAL = Path("runs")
COPIED = ("train", "repeat", "validate")
"""Commands whose runs can be copied, or that check whether they can."""


def parse(text: str) -> Path | RemoteAddress:
    """The folder, or the address; raises SpecError if it is an address that cannot be used."""
    if not is_remote(text):
        return Path(text)
    try:
        address = parse_address(text)
    except BadAddress as error:
        raise SpecError(f"--runs: {error.given}", error.possible, error.action) from None
    if not address.writable:
        raise SpecError(f"--runs: {address} cannot be written", "s3://, gs://, az://, or a folder", "use one of these")
    return address


def apply(options: argparse.Namespace) -> None:
    """Turn `--runs ADDRESS` into runs/ and `--set checkpoint.copy_to=ADDRESS`.

    Raises:
        SpecError: for a command whose runs are not copied, and if the command line names two addresses.
    """
    address = getattr(options, "runs", None)
    if not isinstance(address, RemoteAddress):
        return
    if options.command not in COPIED:
        raise SpecError(f"--runs {address}: `{options.command}` copies nothing", "a folder of this machine", "use runs")
    if any(assignment.startswith("checkpoint.copy_to=") for assignment in options.set):
        raise SpecError("--runs ADDRESS and --set checkpoint.copy_to=ADDRESS", "one of them", "remove one")
    options.runs, options.set = LOCAL, [*options.set, f"checkpoint.copy_to={address}"]
