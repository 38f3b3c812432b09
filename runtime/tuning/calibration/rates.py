"""Rates of the machine: matrix products, memory, decoding of images, and reading of files."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from runtime.hardware.calibration import Rate

SIDE = 512
"""Of the matrices that are multiplied, and of the images that are decoded, in pixels."""
COPIED = 64 << 20
"""Bytes of the memory that is copied: more than the caches of most chips."""
READ = 16 << 20
"""Bytes of the file that is read."""
TRIES = 5


def rates(device: torch.device, formats: list[str], folder: Path) -> Iterator[Rate]:
    """All rates; one that cannot be had is left out.

    Args:
        device: matrices are multiplied there.
        formats: number formats that the chip does not emulate.
        folder: of the cache, whose disk is read.
    """
    yield from (_products(device, name) for name in formats if name in ("fp32", "bf16", "fp16"))
    yield _memory()
    for kind in ("JPEG", "PNG"):
        yield _decoding(kind)
    with contextlib.suppress(OSError):
        yield _reading(folder)


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few tries; others make work slower, never faster."""
    found = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def _products(device: torch.device, name: str) -> Rate:
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    side = SIDE if device.type == "cpu" else 8 * SIDE
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))

    def work() -> None:
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize()

    work()
    return Rate(name=f"gemm {name}", value=round(2 * side**3 / _best(work) / 1e9, 1), unit="GFLOP/s")


def _memory() -> Rate:
    source, target = (torch.zeros(COPIED // 4) for _ in range(2))
    seconds = _best(lambda: target.copy_(source))
    return Rate(name="memory", value=round(2 * COPIED / seconds / 1e9, 2), unit="GB/s")


def _decoding(kind: str) -> Rate:
    """Of a photograph-like picture, by one thread: smooth shapes and some noise."""
    rng, ramp = np.random.default_rng(0), np.linspace(0, 200, SIDE)
    smooth = ramp[:, None, None] * 0.5 + ramp[None, :, None] * 0.5
    pixels = (smooth + rng.integers(0, 40, (SIDE, SIDE, 3))).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 85} if kind == "JPEG" else {}))
    seconds = _best(lambda: Image.open(io.BytesIO(buffer.getvalue())).convert("RGB").tobytes())
    return Rate(name=f"decode {kind.lower()}", value=round(SIDE * SIDE / seconds / 1e6, 1), unit="megapixels/s")


def _reading(folder: Path) -> Rate:
    """From the disk: what the kernel kept of the file is dropped first, where that is possible."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(os.urandom(1 << 20) * (READ >> 20))
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, READ, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start = time.perf_counter()
        while file.read(1 << 20):
            pass
        seconds = time.perf_counter() - start
    return Rate(name="file reading", value=round(READ / seconds / 1e9, 3), unit="GB/s")
