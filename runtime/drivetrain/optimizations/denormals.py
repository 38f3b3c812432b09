"""Flushes denormal numbers to zero; arithmetic on numbers below 1e-38 is many times slower on most CPUs."""

from __future__ import annotations

from drivetrain.optimizations import Choice, Effect, Hardware, Job, NetworkRun, Stage, Value, Workload

STAGE = Stage.PROCESS
IN_LOOP = True
EFFECT = Effect.ROUNDING
OFF = False
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on if the instruction set supports it."""
    if hardware.cpu.architecture in ("x86_64", "aarch64"):
        return Choice(True, "flushes denormals to zero: costs nothing, avoids slow arithmetic below 1e-38")
    return Choice(False, f"{hardware.cpu.architecture} cannot flush denormal numbers to zero")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: on CPUs other than x86_64 and aarch64."""
    if hardware.cpu.architecture not in ("x86_64", "aarch64"):
        return f"{hardware.cpu.architecture} cannot flush denormal numbers to zero"
    return None


def apply(run: NetworkRun, value: Value) -> None:
    """Set the mode of this process."""
    import torch

    torch.set_flush_denormal(True)


def effective(run: NetworkRun) -> Value:
    """Return whether a denormal number times one is zero."""
    from drivetrain.system import torch_settings

    return torch_settings.flushes_denormals()
