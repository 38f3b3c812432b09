"""A command that needs torch, called where there is none: it runs in the image, on the files that are here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from runtime.cli import main
from runtime.launch import run_in_image


def test_sample_data_are_made_in_the_image(
    cpu_image: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files lie where they were asked for and belong to the caller; what the command prints comes through."""
    monkeypatch.setattr(run_in_image, "find_spec", lambda name: None)
    monkeypatch.delenv("DRIVETRAIN_IMAGE", raising=False)
    monkeypatch.chdir(run_in_image.PROJECT)
    folder = Path("build") / f"inside-{os.getpid()}"
    try:
        assert main.main(["sample", "table", str(folder), "--size", "50"]) == 0
        file = next(folder.glob("*.parquet"))
        assert file.stat().st_uid == os.getuid()
        assert capfd.readouterr().out.splitlines()[-1].startswith(f"{folder}: ")
        assert main.main(["sample", "table", str(folder), "--size", "50"]) == 2
        assert f"{folder} is not empty" in capfd.readouterr().err
    finally:
        shutil.rmtree(folder, ignore_errors=True)
