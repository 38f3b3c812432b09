"""The machine that the tuner's tests run on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from drivetrain.hardware.facts import Hardware
from tests import tiny


def machine(folder: Path) -> Hardware:
    tiny_machine = tiny.machine()
    return replace(tiny_machine, storage=replace(tiny_machine.storage, cache=str(folder / "cache")))
