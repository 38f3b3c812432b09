"""The version of this program, in a module that every package may import."""

from __future__ import annotations

VERSION = "0.1.0"
