"""Generates the random bits of dropout on a CPU for four elements at a time, where torch generates a number for each.

The distribution is the same (rates rounded to 1/65536, the scale to match); the random numbers differ, as with another
seed. It applies to `nn.Dropout` layers only, and to calls from 32,768 elements on. Functional dropout, and dropout
inside recurrent and attention kernels, stays torch's.
"""

from __future__ import annotations

from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload

STAGE = Stage.MODEL
EFFECT = Effect.ROUNDING
OFF = False
UNMEASURED = "it changes the random numbers, so its steps cannot be compared one by one"
REDRAWS = True
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on for every CPU; small calls still use torch's dropout, so nothing is lost."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    reason = "generates random bits for four elements at a time; same distribution, different random numbers"
    return Choice(True, reason)


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: without dropout, or on a GPU."""
    if hardware.gpu is not None:
        return "a GPU already generates dropout masks in parallel"
    if job.optimize.get("compile") in (True, "graphs"):
        return "compiled networks use torch's own dropout (optimize.compile)"
    if workload is not None and not {"Dropout", "DropoutFromBits"} & set(workload.layers):
        return "the network has no dropout layer"
    return None


def apply(run: AssembledRun, value: Value) -> None:
    """Make the network's dropout layers use it."""
    from torch import nn

    from drivetrain.models.fast_dropout import DropoutFromBits

    for module in run.model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = DropoutFromBits


def effective(run: AssembledRun) -> Value:
    """Return whether dropout layers use it."""
    from drivetrain.models.fast_dropout import DropoutFromBits

    return any(isinstance(module, DropoutFromBits) for module in run.model.modules())
