"""The process of `calibrate`: python -m drivetrain.tuning.calibration.probe_process FOLDER SECONDS [--first WORK] [--serve]

FOLDER holds hardware.json; calibration.json is written to it after every comparison, so that the parent can end this
process at any time. With --serve, the process runs steps that another one requests: it was started under another OpenMP
runtime or allocator.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from drivetrain.hardware import calibration_file
from drivetrain.hardware import facts as hardware
from drivetrain.hardware.calibration import Calibration, Rate
from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.hardware.facts import Hardware
from drivetrain.optimizations import cpu_threads, precision
from drivetrain.plan import evidence
from drivetrain.system import cpu_starvation
from drivetrain.system.files import read_json, write_json
from drivetrain.training.phase_timer import process_seconds
from drivetrain.tuning.calibration import other_processes
from drivetrain.tuning.calibration.comparisons import Comparison, list_comparisons, list_thread_comparisons
from drivetrain.tuning.calibration.other_processes import OtherProcesses

RATES_SECONDS = 0.5
"""Time that are left for the rates."""


def main() -> int:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--first", default="", help="the kind of work that is compared first")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    machine = hardware.from_json(read_json(options.folder / "hardware.json"))
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    if options.serve:
        torch.set_num_threads(cpu_threads.threads_of(machine))
        other_processes.serve()
        return 0
    start_seconds = process_seconds()
    with other_processes.start_processes(machine, options.folder) as others:
        session = Session(
            machine,
            start_seconds,
            lambda result: write_json(options.folder / "calibration.json", asdict(result)),
        )
        session.run(options.seconds - start_seconds, others, options.first)
    return 0


@dataclass
class Session:
    """One calibration while it is made.

    Args:
        machine: its hardware.
        spent: seconds that the process has taken before.
        keep: is handed the calibration so far after every comparison.
    """

    machine: Hardware
    seconds_before: float
    store: Callable[[Calibration], None]
    calibration: Calibration = field(init=False)
    start: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.waited_before = _WaitCounters.now()
        self.calibration = Calibration(
            key=calibration_file.compute_key(self.machine),
            date=evidence.format_date(),
            seconds=0.0,
            waited=0.0,
            probes=(),
        )

    def run(self, seconds: float, other_libraries: OtherProcesses, first: str = "") -> Calibration:
        """Make all comparisons and rates for which there is time.

        Args:
            seconds: the time limit.
            other_libraries: processes under another OpenMP runtime or allocator.
            first: the kind of work that is compared first, in case the time does not suffice.
        """
        machine, deadline = self.machine, self.start + seconds
        on_gpu = machine.gpu is not None
        device = torch.device("cuda" if on_gpu else "cpu")
        torch.set_num_threads(1)
        quiet_machine_comparisons = [] if on_gpu else list(list_thread_comparisons(machine))
        quiet_machine_comparisons += other_libraries.list_comparisons(machine)
        share = (deadline - RATES_SECONDS - self.start) * (0.7 if quiet_machine_comparisons else 1.0)
        ordered = sorted(list_comparisons(machine, device), key=lambda row: not row[0].startswith(first))
        self._make_all(ordered, self.start + share)
        waited, throttled = self.waited_before.compute_shares()
        self._update(waited=waited, throttled=throttled, missing=(*self.calibration.missing, *other_libraries.missing))
        if quiet_machine_comparisons and self.calibration.is_busy:
            busy = f"threads, OpenMP runtimes and allocators: {self.calibration.disturbance}"
            self._update(missing=(*self.calibration.missing, busy))
        else:
            self._make_all(quiet_machine_comparisons, deadline - RATES_SECONDS)
        rates = measure_rates(device, [str(name) for name in precision.formats(machine)], _choose_folder(machine))
        self._update(rates=tuple(rates))
        return self.calibration

    def _make_all(self, comparisons: Sequence[tuple[str, Comparison]], deadline: float) -> None:
        """Make some comparisons, with equal shares of the time."""
        for number, (name, compare) in enumerate(comparisons):
            now = time.monotonic()
            probes = compare(now + (deadline - now) / (len(comparisons) - number)) if now < deadline else []
            reason = "too slow to compare within the time" if now < deadline else "no time left"
            not_measured = () if probes else (f"{name}: {reason}",)
            self._update(probes=(*self.calibration.probes, *probes), missing=(*self.calibration.missing, *not_measured))

    def _update(self, **changes: object) -> None:
        seconds_spent = round(self.seconds_before + time.monotonic() - self.start, 1)
        self.calibration = replace(self.calibration, seconds=seconds_spent, **changes)  # type: ignore[arg-type]
        self.store(self.calibration)


@dataclass(frozen=True)
class _WaitCounters:
    """The counters of waiting for a CPU at one moment, in seconds."""

    waited: float
    throttled: float
    at: float

    @classmethod
    def now(cls) -> _WaitCounters:
        """The counters now."""
        waited = (cpu_starvation.read_waited_seconds() or 0.0) + (cpu_starvation.read_stolen_seconds() or 0.0)
        return cls(waited, ProcessCgroup().read_throttled_seconds() or 0.0, time.monotonic())

    def compute_shares(self) -> tuple[float, float]:
        """Shares of the time since then that this process, on one thread, was ready without a CPU, and throttled."""
        now = _WaitCounters.now()
        span = max(1e-9, now.at - self.at)
        waited, throttled = (now.waited - self.waited) / span, (now.throttled - self.throttled) / span
        return round(min(1.0, max(0.0, waited)), 3), round(min(1.0, max(0.0, throttled)), 3)


def _choose_folder(machine: Hardware) -> Path:
    cache = Path(machine.storage.cache)
    return cache if machine.storage.cache_writable and cache.is_dir() else Path("/tmp")


MATRIX_SIDE = 512
"""Of the matrices that are multiplied, and of the images that are decoded, in pixels."""
COPIED_BYTES = 64 << 20
"""Bytes of the memory that is copied: more than the caches of most chips."""
FILE_BYTES = 16 << 20
"""Bytes of the file that is read."""
RATE_TRIES = 5
"""Times that the work of a rate is done; the fastest counts."""


def measure_rates(device: torch.device, formats: list[str], folder: Path) -> Iterator[Rate]:
    """The speed of matrix products, memory, decoding and reading; one that cannot be measured is left out.

    Args:
        device: matrices are multiplied there.
        formats: number formats that the chip does not emulate.
        folder: of the cache, whose disk is read.
    """
    yield from (_measure_products(device, name) for name in formats if name in ("fp32", "bf16", "fp16"))
    yield _measure_memory()
    for kind in ("JPEG", "PNG"):
        yield _measure_decoding(kind)
    with contextlib.suppress(OSError):
        yield _measure_reading(folder)


def _time_fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few tries; others make work slower, never faster."""
    times = []
    for _ in range(RATE_TRIES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _measure_products(device: torch.device, name: str) -> Rate:
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    side = MATRIX_SIDE if device.type == "cpu" else 8 * MATRIX_SIDE
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))

    def work() -> None:
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize()

    work()
    return Rate(name=f"gemm {name}", value=round(2 * side**3 / _time_fastest(work) / 1e9, 1), unit="GFLOP/s")


def _measure_memory() -> Rate:
    source, target = (torch.zeros(COPIED_BYTES // 4) for _ in range(2))
    seconds = _time_fastest(lambda: target.copy_(source))
    return Rate(name="memory", value=round(2 * COPIED_BYTES / seconds / 1e9, 2), unit="GB/s")


def _measure_decoding(kind: str) -> Rate:
    """Of a photograph-like picture, by one thread: smooth shapes and some noise."""
    rng, ramp = np.random.default_rng(0), np.linspace(0, 200, MATRIX_SIDE)
    smooth = ramp[:, None, None] * 0.5 + ramp[None, :, None] * 0.5
    pixels = (smooth + rng.integers(0, 40, (MATRIX_SIDE, MATRIX_SIDE, 3))).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 85} if kind == "JPEG" else {}))
    seconds = _time_fastest(lambda: Image.open(io.BytesIO(buffer.getvalue())).convert("RGB").tobytes())
    return Rate(
        name=f"decode {kind.lower()}", value=round(MATRIX_SIDE * MATRIX_SIDE / seconds / 1e6, 1), unit="megapixels/s"
    )


def _measure_reading(folder: Path) -> Rate:
    """From the disk: what the kernel kept of the file is dropped first, where that is possible."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, FILE_BYTES, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start = time.perf_counter()
        while file.read(1 << 20):
            pass
        seconds = time.perf_counter() - start
    return Rate(name="file reading", value=round(FILE_BYTES / seconds / 1e9, 3), unit="GB/s")


if __name__ == "__main__":
    raise SystemExit(main())
