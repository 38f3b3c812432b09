"""Sizes as text, both ways."""

from __future__ import annotations

import pytest

from drivetrain.system.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 MiB"),
        (3, "1 KiB"),
        (600 * 1024, "600 KiB"),
        (64 * 2**20, "64 MiB"),
        (2**30, "1.0 GiB"),
        (2**41, "2.0 TiB"),
        (7.75 * 2**30, "7.8 GiB"),
    ],
)
def test_a_count_of_bytes_as_text(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1k", 1024),
        ("256m", 256 * 2**20),
        ("4g", 4 * 2**30),
        ("4G", 4 * 2**30),
        ("4gb", 4 * 2**30),
        ("4GiB", 4 * 2**30),
        ("4 g", 4 * 2**30),
        ("1.5g", 1536 * 2**20),
        ("2t", 2 * 2**40),
        ("0.001k", 1),
    ],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes(text) == size
