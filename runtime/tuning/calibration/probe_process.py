"""The process of `calibrate`: python -m runtime.tuning.calibration.probe_process FOLDER SECONDS [--first WORK] [--serve]

FOLDER holds hardware.json; calibration.json is written to it after every comparison, so that the parent can end this
process at any time. With --serve, the process runs steps that another one requests: it was started under another OpenMP
runtime or allocator.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from runtime.hardware import calibration_file
from runtime.hardware import facts as hardware
from runtime.hardware.calibration import Calibration
from runtime.hardware.cgroup_usage import ProcessCgroup
from runtime.hardware.facts import Hardware
from runtime.optimizations import cpu_threads, precision
from runtime.plan import evidence
from runtime.system import cpu_starvation
from runtime.system.files import read_json, write_json
from runtime.training.phase_timer import since_start
from runtime.tuning.calibration import other_processes
from runtime.tuning.calibration.comparisons import Comparison, comparisons, thread_comparisons
from runtime.tuning.calibration.other_processes import OtherProcesses
from runtime.tuning.calibration.rates import rates

RATES = 0.5
"""Seconds that are left for the rates."""


def main() -> int:
    """Measure, and write the result."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("seconds", type=float)
    arguments.add_argument("--first", default="", help="the kind of work that is compared first")
    arguments.add_argument("--serve", action="store_true")
    given = arguments.parse_args()
    machine = hardware.from_json(read_json(given.folder / "hardware.json"))
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    if given.serve:
        torch.set_num_threads(cpu_threads.threads_of(machine))
        other_processes.serve()
        return 0
    spent = since_start()
    with other_processes.started(machine, given.folder) as others:
        session = Session(machine, spent, lambda found: write_json(given.folder / "calibration.json", asdict(found)))
        session.run(given.seconds - spent, others, given.first)
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
    spent: float
    keep: Callable[[Calibration], None]
    found: Calibration = field(init=False)
    start: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.waiting = _Waiting.now()
        self.found = Calibration(
            key=calibration_file.key(self.machine), date=evidence.today(), seconds=0.0, waited=0.0, probes=()
        )

    def run(self, seconds: float, others: OtherProcesses, first: str = "") -> Calibration:
        """Make all comparisons and rates for which there is time.

        Args:
            seconds: the time limit.
            others: processes under another OpenMP runtime or allocator.
            first: the kind of work that is compared first, in case the time does not suffice.
        """
        machine, end = self.machine, self.start + seconds
        on_gpu = machine.gpu is not None
        device = torch.device("cuda" if on_gpu else "cpu")
        torch.set_num_threads(1)
        several = [] if on_gpu else list(thread_comparisons(machine))
        several += others.comparisons(machine)
        share = (end - RATES - self.start) * (0.7 if several else 1.0)
        every = sorted(comparisons(machine, device), key=lambda row: not row[0].startswith(first))
        self._all(every, self.start + share)
        waited, throttled = self.waiting.shares()
        self._update(waited=waited, throttled=throttled, missing=(*self.found.missing, *others.missing))
        if several and self.found.is_busy:
            busy = f"threads, OpenMP runtimes and allocators: {self.found.disturbance}"
            self._update(missing=(*self.found.missing, busy))
        else:
            self._all(several, end - RATES)
        known = rates(device, [str(name) for name in precision.formats(machine)], _disk(machine))
        self._update(rates=tuple(known))
        return self.found

    def _all(self, every: Sequence[tuple[str, Comparison]], end: float) -> None:
        """Make some comparisons, with equal shares of the time."""
        for number, (name, compare) in enumerate(every):
            now = time.monotonic()
            rows = compare(now + (end - now) / (len(every) - number)) if now < end else []
            why = "too slow to compare within the time" if now < end else "no time left"
            lost = () if rows else (f"{name}: {why}",)
            self._update(probes=(*self.found.probes, *rows), missing=(*self.found.missing, *lost))

    def _update(self, **changes: object) -> None:
        spent = round(self.spent + time.monotonic() - self.start, 1)
        self.found = replace(self.found, seconds=spent, **changes)  # type: ignore[arg-type]
        self.keep(self.found)


@dataclass(frozen=True)
class _Waiting:
    """The counters of waiting for a CPU at one moment, in seconds."""

    waited: float
    throttled: float
    at: float

    @classmethod
    def now(cls) -> _Waiting:
        """The counters now."""
        waited = (cpu_starvation.seconds_waited() or 0.0) + (cpu_starvation.seconds_stolen() or 0.0)
        return cls(waited, ProcessCgroup().throttled() or 0.0, time.monotonic())

    def shares(self) -> tuple[float, float]:
        """Shares of the time since then that this process, on one thread, was ready without a CPU, and throttled."""
        now = _Waiting.now()
        span = max(1e-9, now.at - self.at)
        waited, throttled = (now.waited - self.waited) / span, (now.throttled - self.throttled) / span
        return round(min(1.0, max(0.0, waited)), 3), round(min(1.0, max(0.0, throttled)), 3)


def _disk(machine: Hardware) -> Path:
    cache = Path(machine.storage.cache)
    return cache if machine.storage.cache_writable and cache.is_dir() else Path("/tmp")


if __name__ == "__main__":
    raise SystemExit(main())
