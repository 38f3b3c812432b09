"""Decides by the calibration of the machine: the value whose probe, nearest to the network's layers, is clearly fastest.

A calibrated value is a prediction for a network like this one. So a measurement of the network itself comes before it,
and the numbers of a value that changes the rounding are checked before the first step (`drivetrain.tuning.numerics_check`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drivetrain.distributed import world
from drivetrain.hardware.calibration import Calibration
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.optimizations import Optimization, Value

MIN_SPEEDUP = 1.05
"""Speedup that a value needs, beside a spread that excludes a tie."""
HOPELESS_SPEEDUP = 0.8
"""A value whose probe is at most this fast, compared with the present one, is not measured by `measure: auto`."""


@dataclass(frozen=True)
class Judgement:
    """What the calibration says about one decision."""

    value: Value | None
    """The fastest value; None if the probes do not tell."""
    text: str
    """The ratio, the work and the date."""


def judge_by_calibration(
    optimization: Optimization, job: Job, hardware: Hardware, workload: Workload | None, default: Value
) -> Judgement | None:
    """The fastest possible value; None without a calibration, or if it has no probe for this decision.

    Args:
        optimization: the decision.
        job, hardware, workload: as in `choose`.
        default: the value without a calibration; one that the probes know nothing about is kept.
    """
    calibration = find_usable(job, hardware)
    if calibration is None:
        return None
    spreads = _collect_spreads(optimization, job, hardware, workload)
    if default not in spreads:
        return None
    best = max(spreads, key=lambda value: spreads[value][1])
    runner_up = default if best != default else max((v for v in spreads if v != default), key=lambda v: spreads[v][1])
    probes = optimization.select_probes(job, hardware, workload)
    by_value = {_parse_value(probe.value): probe for probe in reversed(probes)}
    comparison = (by_value.get(best) or by_value.get(runner_up) or probes[0]).describe(calibration.date)
    is_clear = spreads[best][0] > spreads[runner_up][2] and spreads[best][1] >= MIN_SPEEDUP * spreads[runner_up][1]
    return Judgement(best if is_clear else None, comparison if is_clear else f"no clear difference: {comparison}")


def find_usable(job: Job, hardware: Hardware) -> Calibration | None:
    """The calibration that decisions may use; none with `measure: off` or several processes: their machines may differ."""
    if job.optimize.get("measure") == "off" or world.count_local_ranks(job, hardware) > 1:
        return None
    return hardware.calibration


def explain_hopeless(
    optimization: Optimization, job: Job, hardware: Hardware, workload: Workload | None, value: Value, current: Value
) -> str | None:
    """Why a value need not be measured; None if it may be as fast as the present one."""
    calibration = find_usable(job, hardware)
    if calibration is None or job.optimize.get("measure") == "full":
        return None
    spreads = _collect_spreads(optimization, job, hardware, workload)
    if value not in spreads or current not in spreads or spreads[value][2] > HOPELESS_SPEEDUP * spreads[current][0]:
        return None
    ratio = spreads[value][1] / spreads[current][1]
    return f"calibrated {ratio:.2f}x {str(current).lower()} on {calibration.date}"


def _collect_spreads(
    optimization: Optimization, job: Job, hardware: Hardware, workload: Workload | None
) -> Mapping[Value, tuple[float, float, float]]:
    """(low, median, high) of the speed of every possible value, relative to the one that all were compared with."""
    probes = optimization.select_probes(job, hardware, workload)
    measured = {_parse_value(probe.value): (probe.low, probe.ratio, probe.high) for probe in probes}
    # The value that all probes were compared with has no probe of its own.
    if len({probe.against for probe in probes}) == 1:
        measured[_parse_value(probes[0].against)] = (1.0, 1.0, 1.0)
    possible = {v: spread for v, spread in measured.items() if optimization.refuse(job, hardware, workload, v) is None}
    return possible if len(possible) > 1 else {}


def _parse_value(text: str) -> Value:
    return text == "true" if text in ("true", "false") else int(text) if text.isdigit() else text
