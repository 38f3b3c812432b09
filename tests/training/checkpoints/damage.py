"""Damage to a file."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
