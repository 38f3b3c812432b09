"""CPU starvation: CPU time that a run was denied because others used it, on this machine or, if virtual, on its
host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.hardware.facts import Hardware
from runtime.report.log_series import Series

TOLD = 0.05
"""Share of the CPU time from which on it is reported."""


@dataclass(frozen=True)
class CpuStarvation:
    """CPU time that the run was denied, as a share."""

    others: float
    """Used by other processes, relative to this run's CPUs."""
    others_share: float
    stolen: float
    """Used by other virtual machines (steal time), relative to the whole machine."""
    stolen_share: float


def starved(telemetry: Mapping[str, Series], hardware: Hardware | None) -> CpuStarvation | None:
    """CPU starvation over the whole run; None if nothing was counted.

    A thread also waits because of the quota, which is reported separately, and for the run's own threads. So no more
    counts than what the run left unused of its CPUs.
    """
    waited, stolen, busy = (
        telemetry.get(key, Series(key)) for key in ("waited_seconds", "stolen_seconds", "cpu_percent")
    )
    if hardware is None or len(busy) < 2 or not (waited or stolen):
        return None
    seconds = busy.xs[-1] - busy.xs[0]
    spans = zip(busy.xs, busy.xs[1:], busy.ys[1:], strict=False)
    used = sum((after - before) * percent / 100 for before, after, percent in spans)
    may = seconds * (hardware.cpu.quota or hardware.cpu.budget)
    held, ready, away = (_risen(series) for series in (telemetry.get("throttled_seconds", Series("")), waited, stolen))
    others = min(max(0.0, ready - held), max(0.0, may - used))
    return CpuStarvation(others, others / max(1e-9, may), away, away / max(1e-9, seconds * hardware.cpu.host))


def _risen(series: Series) -> float:
    risen = series.risen("")
    return risen.ys[-1] if risen else 0.0
