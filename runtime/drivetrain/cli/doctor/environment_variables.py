"""Checks environment variables that have no effect or do harm; each was verified in the library that reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from drivetrain.cli.doctor.finding import Finding, fail, ok, warn
from drivetrain.cli.doctor.snapshot import Snapshot
from drivetrain.system.library_variables import PRECISION_VARIABLES, is_on


def _matters_always(value: str) -> bool:
    return True


def _is_bound(snapshot: Snapshot, value: str) -> bool:
    """Return whether threads are bound to CPUs under a quota without a cpuset, to which other containers are bound."""
    cpu = snapshot.hardware.cpu
    return is_on(value) and cpu.quota is not None and (cpu.cpuset or cpu.host) >= cpu.host


def _lacks_cpuset(snapshot: Snapshot, value: str) -> bool:
    cpu = snapshot.hardware.cpu
    return value not in ("", "none", "disabled") and (cpu.cpuset or cpu.host) >= cpu.host


def _lacks_gpu(snapshot: Snapshot, value: str) -> bool:
    return snapshot.hardware.gpu is None


def _hides_gpu(snapshot: Snapshot, value: str) -> bool:
    return value in ("", "-1", "NoDevFiles") and (
        snapshot.hardware.gpu is not None or bool(snapshot.hardware.gpu_trouble)
    )


def _spins(snapshot: Snapshot, value: str) -> bool:
    return value.lower() == "active" and snapshot.hardware.cpu.quota is not None


def _is_lowered(snapshot: Snapshot, value: str) -> bool:
    return value.lower() not in ("", "all", "default_isa") and "avx512f" in snapshot.hardware.cpu.flags


_SLOWS = "slows training down"
ANYWHERE: dict[str, tuple[Callable[[str], bool], str]] = {
    "TORCH_CPU_BACKEND": (_matters_always, "has no effect: torch does not read this variable"),
    "TORCH_NUM_THREADS": (_matters_always, "has no effect: torch reads OMP_NUM_THREADS, which drivetrain sets"),
    "MKL_DEBUG_CPU_TYPE": (_matters_always, "has no effect: MKL has ignored it since 2020.1"),
    "TF_ENABLE_ONEDNN_OPTS": (_matters_always, "has no effect: only TensorFlow reads it"),
    "KMP_DUPLICATE_LIB_OK": (
        is_on,
        "dangerous: it hides that two OpenMP runtimes are loaded, which can give wrong results",
    ),
    "CUDA_LAUNCH_BLOCKING": (is_on, f"{_SLOWS}: the CPU waits for every GPU kernel; use it only for debugging"),
    **PRECISION_VARIABLES,
    "ATEN_CPU_CAPABILITY": (_matters_always, f"{_SLOWS}: torch does not use all instruction sets of this CPU"),
    "TORCH_COMPILE_DISABLE": (is_on, "turns torch.compile off, whatever the plan says"),
    "TORCHDYNAMO_DISABLE": (is_on, "turns torch.compile off, whatever the plan says"),
    "DOCKER_DEFAULT_PLATFORM": (
        _matters_always,
        "makes `docker compose` ask for images of that processor; `make` and `drivetrain launch` ignore it",
    ),
    "PYTHONOPTIMIZE": (is_on, "disables all assertions, including those of drivetrain"),
}
"""Variables with the values that matter on every machine, and their effects."""
BY_MACHINE: dict[str, tuple[Callable[[Snapshot, str], bool], str]] = {
    "OMP_PROC_BIND": (_is_bound, "slows training down: it pins threads to CPUs that other containers use too"),
    "GOMP_CPU_AFFINITY": (_is_bound, "slows training down: it pins threads to CPUs that other containers use too"),
    "KMP_AFFINITY": (
        _lacks_cpuset,
        "slows training down without a cpuset: every container pins its threads to the same CPUs",
    ),
    "OMP_WAIT_POLICY": (_spins, "slows training down: threads that wait in a busy loop use up the CPU quota"),
    "PYTORCH_CUDA_ALLOC_CONF": (_lacks_gpu, "has no effect without a GPU"),
    "PYTORCH_ALLOC_CONF": (_lacks_gpu, "has no effect without a GPU"),
    "CUDA_VISIBLE_DEVICES": (_hides_gpu, "hides every GPU from torch"),
    "ONEDNN_MAX_CPU_ISA": (_is_lowered, "slows training down: oneDNN does not use all instruction sets of this CPU"),
}
"""Those that matter on some machines."""


def check(snapshot: Snapshot) -> list[Finding]:
    """Return a finding for each variable that should not be set."""
    environ = snapshot.environ
    effects = {name: effect for name, (wrong, effect) in ANYWHERE.items() if name in environ and wrong(environ[name])}
    for name, (wrong_here, effect) in BY_MACHINE.items():
        if name in environ and wrong_here(snapshot, environ[name]):
            effects[name] = effect
    findings = [warn(name, f"={environ[name]} {effect}", f"unset {name}") for name, effect in effects.items()]
    for path in environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if "/" in path and not Path(path).exists():
            text = f"{path} does not exist: every program prints a warning and does not preload it"
            findings.append(fail("LD_PRELOAD", text, "unset LD_PRELOAD"))
    folder = environ.get("TMPDIR")
    if folder and not Path(folder).is_dir():
        findings.append(fail("TMPDIR", f"{folder} does not exist", f"mkdir -p {folder}"))
    return findings or [ok("environment", "no environment variable that is ignored or harmful")]
