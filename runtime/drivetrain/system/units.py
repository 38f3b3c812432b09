"""Formats and parses sizes in bytes and rates in bits a second."""

from __future__ import annotations

import re

# The number of digits is limited, so that every match is finite; one of them is not 0.
SIZE_PATTERN = re.compile(r"(?=[0-9.]*[1-9])([0-9]{1,12}(?:\.[0-9]{1,12})?) *([kmgtKMGT])(?:[iI]?[bB])?")


def format_bytes(count: int | None) -> str:
    """Return the bytes in readable form: 600 KiB, 64 MiB, 7.8 GiB."""
    if count is None:
        return "unknown"
    for unit, power in (("TiB", 4), ("GiB", 3)):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    if 0 < count < 1024**2:
        return f"{max(1, count // 1024)} KiB"
    return f"{count / 1024**2:.0f} MiB"


def parse_bytes(text: str) -> int:
    """Parse `256m`, `4g` (powers of 1024) as bytes; raises ValueError for other texts, and below one byte."""
    match = SIZE_PATTERN.fullmatch(text)
    count = int(float(match[1]) * 1024 ** (" kmgt".index(match[2].lower()))) if match else 0
    if not count:
        raise ValueError(f"{text!r} is not a size with its unit, such as 256m or 4g")
    return count
