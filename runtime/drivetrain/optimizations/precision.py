"""Computes in a shorter number format if the chip supports it well: less memory, faster matrix units."""

from __future__ import annotations

import re
from typing import Literal

from drivetrain.distributed import world
from drivetrain.hardware.facts import Gpu
from drivetrain.optimizations import Choice, Effect, Hardware, Job, NetworkRun, Stage, Value, Workload

STAGE = Stage.STEP
IN_LOOP = True
EFFECT = Effect.ROUNDING
OFF = "fp32"
Values = Literal["fp32", "tf32", "bf16", "fp16"]

# TU116 and TU117 report capability 7.5 but have no tensor cores; fp16 is slow there and gives NaN (pytorch issues 58123
# and 77955).
_NO_TENSOR_CORES = re.compile(r"GTX 16\d\d|Quadro T\d|\bT(400|500|550|600|1000|1200|2000)\b|MX4[0-9]{2}", re.IGNORECASE)


_X86_FLAGS = {"bf16": {"avx512_bf16", "amx_bf16"}, "fp16": {"avx512_fp16", "amx_fp16"}}


def tensor_cores(gpu: Gpu) -> bool:
    """Return whether the chip has tensor cores: from capability 7.0 on, except TU116 and TU117."""
    return gpu.capability >= (7, 0) and not _NO_TENSOR_CORES.search(gpu.name)


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Choose bf16 from capability 8.0 on, fp16 on the first tensor cores. On CPUs choose bf16 for classes if an x86
    chip has instructions for it, and its first steps can be compared with fp32; else fp32.
    """
    gpu = hardware.gpu
    if gpu is None:
        obstacle = _explain_fp32_on_cpu(job, hardware, workload)
        if obstacle:
            return Choice("fp32", obstacle)
        return Choice("bf16", "this CPU has bf16 instructions; fp32 if the first steps differ or are not faster")
    chip = f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})"
    if gpu.capability >= (8, 0):
        return Choice("bf16", f"{chip} has bf16 tensor cores; TF32 for operations that stay in fp32")
    if tensor_cores(gpu):
        return Choice("fp16", f"{chip} has fp16 but no bf16 tensor cores; with gradient scaling")
    if gpu.capability >= (7, 0):
        return Choice("fp32", f"{chip} has no tensor cores, and fp16 produces NaN on it")
    return Choice("fp32", f"{chip} has no tensor cores")


def _explain_fp32_on_cpu(job: Job, hardware: Hardware, workload: Workload | None) -> str | None:
    """Explain why the rule does not choose bf16 on this CPU; None if it does."""
    obstacle = _refuse_cpu(hardware, "bf16")
    if obstacle:
        return obstacle
    if hardware.cpu.architecture == "aarch64":
        # pytorch issues 180447 and 191316: some releases compute bf16 products on Arm up to a hundred times slower.
        return "some releases of torch are slow in bf16 on Arm; used only if measured faster or requested"
    if job.PREDICTS_NUMBERS if workload is None else workload.numeric:
        return "numbers are predicted, in which rounding shows; used only if requested"
    if job.optimize.get("measure") == "off" or not world.seems_alone(job, hardware):
        return "bf16 is used on CPUs only if its first steps are compared with fp32: with one process, and not with measure: off"
    return None


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: a format that the chip emulates, or computes wrongly."""
    return _refuse_cpu(hardware, value) if hardware.gpu is None else _refuse_gpu(hardware.gpu, value)


def _refuse_cpu(hardware: Hardware, value: Value) -> str | None:
    flags = set(hardware.cpu.flags)
    if value == "tf32":
        return "TF32 needs an NVIDIA GPU of capability 8.0 or newer; this job runs on a CPU"
    arm = hardware.cpu.architecture == "aarch64"
    names = {"bf16": {"bf16"}, "fp16": {"asimdhp"}} if arm else _X86_FLAGS
    needed_flags = names[str(value)]
    if not flags & needed_flags:
        under_cap = f" left under {hardware.cpu.capped}" if hardware.cpu.capped else ""
        return f"this CPU has no {value} instructions{under_cap} ({' or '.join(sorted(needed_flags))}); emulation is many times slower"
    return None


def _refuse_gpu(gpu: Gpu, value: Value) -> str | None:
    chip = f"{gpu.name} has capability {gpu.capability[0]}.{gpu.capability[1]}"
    if value in ("bf16", "tf32") and gpu.capability < (8, 0):
        return f"{chip}; {value} needs 8.0, below that torch only emulates it"
    if value == "fp16" and gpu.capability >= (7, 0) and not tensor_cores(gpu):
        return f"{gpu.name} has no tensor cores, and fp16 produces NaN on it"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """List the values to measure: fp32 and every shorter format; on a CPU none where numbers are predicted."""
    return [OFF] if hardware.gpu is None and workload and workload.numeric else formats(hardware)


def formats(hardware: Hardware) -> list[Value]:
    """List fp32 and every shorter format that this chip does not emulate."""
    if hardware.gpu is None:
        return [value for value in ("fp32", "bf16") if value == OFF or _refuse_cpu(hardware, value) is None]
    return [
        value for value in ("fp32", "tf32", "bf16", "fp16") if value == OFF or _refuse_gpu(hardware.gpu, value) is None
    ]


def apply(run: NetworkRun, value: Value) -> None:
    """Apply autocast around the forward pass; TF32 for the GPU's other float32 arithmetic; gradient scaling for fp16."""
    import torch

    from drivetrain.system import torch_settings

    if run.device.type == "cuda" and value in ("tf32", "bf16"):
        torch_settings.set_tf32(True)
    if value == "bf16":
        run.step.forward.dtype = torch.bfloat16
    elif value == "fp16":
        run.step.forward.dtype = torch.float16
        run.step.scale_losses(run.job.train.fp16)


def effective(run: NetworkRun) -> Value:
    """Return the type of autocast, or of the fp32 kernels; `mixed` if they differ."""
    import torch

    from drivetrain.system import torch_settings

    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    if run.step.forward.dtype in names:
        return names[run.step.forward.dtype]
    return {None: "mixed", False: OFF, True: "tf32"}[torch_settings.read_tf32()]
