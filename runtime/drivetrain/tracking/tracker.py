"""Interface of a tracker: three methods. Another kind is one file in `servers`; see CONTRIBUTING.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from drivetrain.errors import Failure
from drivetrain.system import web


class TrackerError(Failure):
    """A tracking server refused something, or gave no answer; the run continues."""

    exit_code = 7


@dataclass(frozen=True)
class Row:
    """The metrics of one step, or of an evaluation after it."""

    step: int
    milliseconds: int
    """Since 1970; the same whenever the row is sent again."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class RunDescription:
    """Description that a server shows next to the curves."""

    name: str
    key: str
    """The same for all attempts of this run, and of no other."""
    folder: Path
    parameters: Mapping[str, str]
    tags: Mapping[str, str]


class Tracker(Protocol):
    """A run on a tracking server. A method may raise anything: the same call is made again at the next evaluation."""

    def begin(self, run: RunDescription) -> tuple[str, int]:
        """Create the run, or find it after an earlier attempt; returns its address for people, and its last step or -1."""

    def log(self, rows: Sequence[Row]) -> None:
        """Send the metrics of some steps."""

    def end(self, status: str, tags: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Send the tags as they became, texts by file name, and the status: done, stopped or failed."""


def check_credentials(key: str, address: str, variable: str, own_server: str | None) -> None:
    """Check that a server may be sent credentials: the job that names it may be a stranger's.

    Args:
        key: of the spec, for the message.
        address: of the server.
        variable: environment variable that names the user's own server.
        own_server: its value.

    Raises:
        TrackerError: if the user's own environment names another server, or the address is not encrypted.
    """
    scheme, host, _ = web.parse_origin(address)
    if not own_server or web.parse_origin(own_server) != web.parse_origin(address):
        action = f"if it is your server, export {variable}={address}"
    elif scheme == "https" or web.is_loopback(host):
        return
    else:
        action = "use the https address of the server"
    raise TrackerError(
        f"{key}: {address} is not sent the credentials of this machine",
        f"a server that {variable} names, over https or on this machine",
        action,
    )
