"""Which probes of a calibration are nearest to a job: by the kind of its layers and by their size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain.hardware.calibration import Probe
    from drivetrain.hardware.facts import Hardware
    from drivetrain.job import Job
    from drivetrain.job.workload import Workload

ATTENTION, CONVOLUTION, RECURRENT, LINEAR = "attention", "convolution", "recurrent", "linear"
"""Kinds of work, the one that takes most of the time of a network with several of them first."""
ASSUMED_WEIGHTS_PER_LAYER = 30_000
"""Assumed weights per layer until the network is known: the narrow probes."""
_TASKS = {"image": CONVOLUTION, "text": ATTENTION, "series": RECURRENT}
_MATRICES = ("Conv", "Linear", "LSTM", "GRU", "RNN", "Embedding", "Bilinear")


def kind(job: Job, workload: Workload | None) -> str:
    """The kind of work that most of a step is: by the layers; by the task until they are known."""
    if workload is None or not workload.layers:
        return next((work for task, work in _TASKS.items() if job.task.startswith(task)), LINEAR)
    if any("Attention" in layer for layer in workload.layers):
        return ATTENTION
    if workload.has("LSTM", "GRU", "RNN"):
        return RECURRENT
    return CONVOLUTION if workload.has("Conv") else LINEAR


def size(workload: Workload | None) -> int:
    """The mean number of weights of a layer that has a matrix or kernel."""
    if workload is None or not workload.layers:
        return ASSUMED_WEIGHTS_PER_LAYER
    layers = sum(count for layer, count in workload.layers.items() if layer.startswith(_MATRICES))
    return max(1, workload.parameters // max(1, layers))


def nearest(job: Job, hardware: Hardware, workload: Workload | None, setting: str, also: str = "") -> tuple[Probe, ...]:
    """The probes of a setting that are nearest to the network, one for each value; none without a calibration.

    Args:
        job, hardware, workload: as in `choose`.
        setting: the optimization.
        also: another setting that was on, as in `Probe.beside`.
    """
    if hardware.calibration is None:
        return ()
    return hardware.calibration.find_nearest(setting, kind(job, workload), size(workload), also)


def for_any_size(job: Job, hardware: Hardware, setting: str) -> tuple[Probe, ...]:
    """The probes of a setting that is fixed before the network is known: of all sizes those that differ least.

    A value is then taken only if it is better for small and for large networks of the job's kind.
    """
    if hardware.calibration is None:
        return ()
    work = kind(job, None)
    rows = [p for p in hardware.calibration.probes if (p.setting, p.work) == (setting, work)]
    values = dict.fromkeys(p.value for p in rows)
    return tuple(min((p for p in rows if p.value == value), key=lambda p: abs(math.log(p.ratio))) for value in values)
