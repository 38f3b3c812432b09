"""The version of this program, where every package may read it."""

from __future__ import annotations

VERSION = "0.1.0"
