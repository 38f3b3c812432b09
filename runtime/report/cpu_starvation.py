"""Starved: what a run could not have of its CPUs, since others on the machine, or other machines, had them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.hardware.facts import Hardware
from runtime.report.log_series import Series

TOLD = 0.05
"""Share of the CPU time from which it is told."""


@dataclass(frozen=True)
class CpuStarvation:
    """CPU seconds that were lacking, and what share that is."""

    others: float
    """While other processes had the CPU, of what this run may use."""
    others_share: float
    stolen: float
    """While the hypervisor ran other machines, of the whole machine."""
    stolen_share: float


def starved(telemetry: Mapping[str, Series], hardware: Hardware | None) -> CpuStarvation | None:
    """What was lacking over the whole run; None where nothing was counted.

    A thread also waits for the quota, which is told by itself, and for its own siblings; so no more counts than what the
    run has left unused of the CPUs that it may use.
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
