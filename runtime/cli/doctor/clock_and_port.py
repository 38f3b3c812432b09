"""Checks TensorBoard's port, and the clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from runtime.cli.doctor.finding import Finding, ok, warn
from runtime.cli.doctor.snapshot import Snapshot

PORT = 6006
DAY = 86400.0


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Port and clock."""
    yield from _port(snapshot)
    yield _clock(snapshot)


def _port(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.hardware.place != "host":
        return
    ours = snapshot.run(["docker", "ps", "-q", "--filter", "label=com.docker.compose.service=tensorboard"])
    if not snapshot.port_taken(PORT):
        yield ok(f"port {PORT}", "free for TensorBoard")
    elif ours:
        yield ok(f"port {PORT}", "used by the TensorBoard of this project")
    else:
        yield warn(
            f"port {PORT}",
            "used by another program: TensorBoard cannot start",
            f"ss -ltnp 'sport = :{PORT}' shows which; end it, or set DRIVETRAIN_TENSORBOARD_PORT",
        )


def _clock(snapshot: Snapshot) -> Finding:
    """A clock behind our own files causes wrong logs, wrong image ages and invalid certificates."""
    newest = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    shown = datetime.fromtimestamp(snapshot.now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if snapshot.now < newest - DAY:
        return warn(
            "clock",
            f"{shown} is earlier than the date of these files: the clock is wrong, and certificates may be rejected",
            "sudo timedatectl set-ntp true",
        )
    return ok("clock", shown)
