"""The calibration of a machine: short probes of what decisions depend on, made once. Frozen data, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

BUSY_SHARE = 0.15
"""Share of the time that the threads of the probes waited for a CPU from which on nothing is said about thread counts:
a second thread that has to wait slows down every operation, and the neighbor may be gone tomorrow."""
_MIN_QUOTA_SHARE = 0.05
"""Share of the time from which on a quota is named as a cause."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The speed of one value of a setting, relative to another value, on one kind of work."""

    setting: str
    """The optimization."""
    value: str
    """As in YAML: bf16, true, 1."""
    against: str
    """The value it was compared with, in turn."""
    work: str
    """attention, convolution, linear, recurrent, dropout, texts, or `any`."""
    size: int = 0
    """Weights per layer of the network that was trained, or elements of the tensor; 0 if it says nothing."""
    beside: str = ""
    """Another setting that was on for both, such as `precision=bf16`."""
    ratio: float
    """Median of the pairs; above 1 where the value is faster."""
    low: float
    """Lower end of the middle half of the pairs."""
    high: float
    pairs: int

    def describe(self, date: str) -> str:
        """Such as `bf16 1.63x [1.58-1.70] the speed of fp32 on convolution, calibrated 2026-11-23`."""
        condition = f" with {self.beside}" if self.beside else ""
        spread = f"{self.ratio:.2f}x [{self.low:.2f}-{self.high:.2f}]"
        return f"{self.value} {spread} the speed of {self.against} on {self.work}{condition}, calibrated {date}"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Everything that was measured on one machine."""

    key: str
    """What it holds for: chip, instruction sets, CPU limits, torch, libraries, version of this package."""
    date: str
    seconds: float
    """Wall-clock time that it took."""
    waited: float
    """Share of the time that threads of the probes were ready without a CPU, or stolen by the hypervisor."""
    throttled: float = 0.0
    """Share of the time for which the CPU quota was used up; part of `waited`."""
    probes: tuple[Probe, ...]
    missing: tuple[str, ...] = ()
    """What was not measured, each with its reason."""

    @property
    def is_busy(self) -> bool:
        """Whether other processes or the quota took too much of the CPUs to compare numbers of threads."""
        return self.waited > BUSY_SHARE

    @property
    def disturbance(self) -> str:
        """Why the probes waited: `other processes took 40% of the CPU time`, the quota was used up, or both."""
        other_processes = f"other processes took {self.waited - self.throttled:.0%} of the CPU time"
        if self.throttled < _MIN_QUOTA_SHARE:
            return other_processes
        quota = f"the CPU quota was used up for {self.throttled:.0%} of the time"
        return quota if self.throttled > self.waited / 2 else f"{quota}, and {other_processes}"

    def find_nearest(self, setting: str, work: str, size: int, also: str = "") -> tuple[Probe, ...]:
        """The probes of a setting on the work and the size that are nearest: one for each value.

        Args:
            setting: the optimization.
            work: the kind of work.
            size: as in `Probe.size`; the nearest is the one with the smallest ratio.
            also: the other setting that was on.
        """
        rows = [p for p in self.probes if (p.setting, p.work, p.beside) == (setting, work, also)]
        return tuple(
            _find_nearest((p for p in rows if p.value == value), size) for value in dict.fromkeys(p.value for p in rows)
        )


def _find_nearest(probes: Iterable[Probe], size: int) -> Probe:
    return min(probes, key=lambda probe: abs(math.log(max(1, probe.size) / max(1, size))))
