"""Updates all parameters with one fused kernel, which reads and writes memory once instead of many times."""

from __future__ import annotations

from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload

STAGE = Stage.OPTIMIZER
EFFECT = Effect.ROUNDING
OFF = False
REFUSES_OFF = True
UNMEASURED = "three to five times faster on every machine so far"
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on if torch has a fused kernel for the optimizer, which then works on CPU and GPU."""
    is_fused = _read_user_choice(job)
    if is_fused is not None:
        return Choice(is_fused, "the optimizer of the program, as it was built")
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(OFF, obstacle)
    return Choice(True, f"torch has a fused {job.train.optimizer.name} kernel for this device")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse an optimizer without a fused kernel, and one of a Python program, which is used as it was built."""
    if value and not job.train.optimizer.has_fused_kernel:
        return f"torch has no fused kernel for {job.train.optimizer.name}"
    is_fused = _read_user_choice(job)
    if is_fused is not None and is_fused != value:
        return f"the optimizer of the program was built {'with' if is_fused else 'without'} fused=True, and is used as it is"
    return None


def _read_user_choice(job: Job) -> bool | None:
    """Return whether an optimizer of a Python program is fused; None if the runtime builds it."""
    is_fused: bool | None = getattr(job.train.optimizer, "fused", None)
    return is_fused


def apply(run: AssembledRun, value: Value) -> None:
    """Set the option in the optimizer's parameter groups before the first step."""
    if _read_user_choice(run.job) is not None:
        return
    for group in run.optimizer.param_groups:
        group["fused"], group["foreach"] = True, False


def effective(run: AssembledRun) -> Value:
    """Return the option in the optimizer's parameter groups."""
    return all(bool(group.get("fused")) for group in run.optimizer.param_groups)
