"""Reads files of the kernel, such as those below /proc and /sys; a missing or invalid value reads as empty."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """Read the stripped text of a kernel file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def parse_number(value: str) -> int | None:
    """Parse the number in a kernel file; None for `max`, `-1`, an empty or an invalid value."""
    return int(value) if value.isascii() and value.isdigit() else None


def parse_cpu_list(value: str) -> frozenset[int]:
    """Parse the CPUs in a kernel list such as `0-3,8`; invalid parts are ignored."""
    cpus: set[int] = set()
    for span in value.split(","):
        start, _, last = (p.strip() for p in span.partition("-"))
        low, high = parse_number(start), parse_number(last or start)
        if low is not None and high is not None:
            cpus.update(range(low, high + 1))
    return frozenset(cpus)
