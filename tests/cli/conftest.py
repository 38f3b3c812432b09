"""Tests of commands that write into the working folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, where specs go."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
