"""Whether this machine lets a test watch system calls."""

from __future__ import annotations

import subprocess

import pytest

needs_strace = pytest.mark.skipif(
    subprocess.run(["sh", "-c", "command -v strace"], capture_output=True, check=False).returncode != 0,
    reason="strace is not installed",
)
