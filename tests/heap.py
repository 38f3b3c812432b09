"""Children under glibc's heap checker, on every instruction set that oneDNN and torch can be capped to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.paths import IMPORTS, ROOT

CHECKER = "libc_malloc_debug.so.0"
"""Part of glibc; finds writes beyond a block when the block is freed, and ends the process with SIGABRT."""
CAPS = {"SSE41": "default", "AVX": "default", "AVX2": "avx2", "AVX512_CORE": "avx512", "AVX512_CORE_BF16": "avx512"}
"""What oneDNN is capped to, and torch's own kernels with it; what the machine does not have changes nothing."""


def environment(cap: str, threads: int = 1) -> dict[str, str]:
    """The variables of a child whose heap is checked."""
    return {
        "LD_PRELOAD": CHECKER,
        "MALLOC_CHECK_": "3",
        "ONEDNN_MAX_CPU_ISA": cap,
        "ATEN_CPU_CAPABILITY": CAPS[cap],
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": IMPORTS,
    }


def run_module(
    arguments: list[str], variables: Mapping[str, str], text: str = "", seconds: float = 600
) -> subprocess.CompletedProcess[str]:
    """`python -m WORDS` with the variables on top of ours."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **variables},
        input=text,
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def require_checker() -> None:
    """Skip where the checker is missing; a preload that is missing is a warning only, and nothing would be checked."""
    done = run_module(["platform"], environment("AVX2"))
    if "cannot be preloaded" in done.stderr:
        pytest.skip(f"{CHECKER} is not here (glibc 2.34 and later have it)")
