"""Pretends that packages are installed, or are not, where the command line looks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drivetrain.launch import image_contents, run_in_image


def pretend_installed(monkeypatch: pytest.MonkeyPatch, find_spec: Callable[[str], object]) -> None:
    """Let `find_spec`, a function of a package's name, return None for the packages that are missing."""
    for module in (image_contents, run_in_image):
        monkeypatch.setattr(module, "find_spec", find_spec)
