"""A working folder with a job and the site file of an engine, for the tests of `drivetrain launch --on`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.cli import main

IMAGE = f"ghcr.io/owner/drivetrain/cpu@sha256:{'0' * 64}"


@dataclass(frozen=True)
class ClusterSite:
    """An engine with its section of the site file."""

    engine: str
    section: dict[str, Any]
    options: tuple[str, ...] = ()
    """Options of every launch."""

    def prepare(self, folder: Path, spec: str) -> Path:
        """Write a job and the site file; returns the folder."""
        (folder / "tiny.yaml").write_text(spec)
        self.write(folder)
        return folder

    def write(self, folder: Path, **keys: object) -> None:
        """Write the site file, with other values for these keys."""
        (folder / "site.yaml").write_text(json.dumps({self.engine: self.section | keys}))

    def launch(self, *options: str) -> int:
        """Launch the job of the working folder; returns the exit code."""
        return main.main(["launch", "tiny.yaml", "--on", self.engine, "--site", "site.yaml", *self.options, *options])


SPEC = "name: tiny\ntask: image-classification\ndata: {train: data.npz}\nlimits: {cpus: 2, memory: 4g}\n"
