"""Checks environment variables that have no effect or do harm; each was verified in the library that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from runtime.cli.doctor.finding import Finding, fail, ok, warn
from runtime.cli.doctor.snapshot import Snapshot


def _always(scene: Snapshot, value: str) -> bool:
    return True


def _on(scene: Snapshot, value: str) -> bool:
    return value.lower() not in ("", "0", "false", "off", "no")


def _bound(scene: Snapshot, value: str) -> bool:
    """Whether threads are bound to CPUs under a quota without a cpuset: other containers are bound to the same CPUs."""
    cpu = scene.hardware.cpu
    return _on(scene, value) and cpu.quota is not None and (cpu.cpuset or cpu.host) >= cpu.host


def _no_cpuset(scene: Snapshot, value: str) -> bool:
    cpu = scene.hardware.cpu
    return value not in ("", "none", "disabled") and (cpu.cpuset or cpu.host) >= cpu.host


def _no_gpu(scene: Snapshot, value: str) -> bool:
    return scene.hardware.gpu is None


def _hidden(scene: Snapshot, value: str) -> bool:
    return value in ("", "-1", "NoDevFiles") and (scene.hardware.gpu is not None or bool(scene.hardware.gpu_trouble))


def _spinning(scene: Snapshot, value: str) -> bool:
    return value.lower() == "active" and scene.hardware.cpu.quota is not None


def _lowered(scene: Snapshot, value: str) -> bool:
    return value.lower() not in ("", "all", "default_isa") and "avx512f" in scene.hardware.cpu.flags


RULES: dict[str, tuple[Callable[[Snapshot, str], bool], str]] = {
    "TORCH_CPU_BACKEND": (_always, "does nothing: torch has no such variable"),
    "TORCH_NUM_THREADS": (_always, "does nothing: torch reads OMP_NUM_THREADS, and every plan sets it"),
    "MKL_DEBUG_CPU_TYPE": (_always, "does nothing: MKL has ignored it since 2020.1"),
    "TF_ENABLE_ONEDNN_OPTS": (_always, "does nothing here: it is TensorFlow's"),
    "OMP_PROC_BIND": (_bound, "harms: threads are tied to CPUs that the quota shares with other containers"),
    "GOMP_CPU_AFFINITY": (_bound, "harms: threads are tied to CPUs that the quota shares with other containers"),
    "KMP_AFFINITY": (_no_cpuset, "harms without a cpuset: every container ties its threads to the same first CPUs"),
    "OMP_WAIT_POLICY": (_spinning, "harms: threads that wait actively burn the CPU quota"),
    "KMP_DUPLICATE_LIB_OK": (_on, "harms: it hides that two OpenMP runtimes are loaded, which may compute wrongly"),
    "PYTORCH_CUDA_ALLOC_CONF": (_no_gpu, "does nothing without a GPU"),
    "PYTORCH_ALLOC_CONF": (_no_gpu, "does nothing without a GPU"),
    "CUDA_VISIBLE_DEVICES": (_hidden, "hides every GPU from torch"),
    "CUDA_LAUNCH_BLOCKING": (_on, "harms: every kernel is waited for; it is for debugging"),
    "NVIDIA_TF32_OVERRIDE": (_always, "overrides the plan's precision behind its back"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": (_on, "overrides the plan's precision behind its back"),
    "ONEDNN_DEFAULT_FPMATH_MODE": (lambda s, v: v.upper() not in ("", "STRICT"), "rounds behind the plan's back"),
    "ATEN_CPU_CAPABILITY": (_always, "harms: torch's kernels use fewer instructions than this CPU has"),
    "ONEDNN_MAX_CPU_ISA": (_lowered, "harms: oneDNN uses fewer instructions than this CPU has"),
    "TORCH_COMPILE_DISABLE": (_on, "turns torch.compile off behind the plan's back"),
    "TORCHDYNAMO_DISABLE": (_on, "turns torch.compile off behind the plan's back"),
    "PYTHONOPTIMIZE": (_on, "removes assertions, ours among them"),
}


def check(scene: Snapshot) -> Iterator[Finding]:
    """A finding for each variable that should not be set."""
    found = [
        warn(name, f"={scene.environ[name]} {why}", f"unset {name}")
        for name, (wrong, why) in RULES.items()
        if name in scene.environ and wrong(scene, scene.environ[name])
    ]
    yield from found
    for path in scene.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if "/" in path and not Path(path).exists():
            found.append(
                fail("LD_PRELOAD", f"{path} is not there: every program warns and none preloads it", "unset LD_PRELOAD")
            )
            yield found[-1]
    folder = scene.environ.get("TMPDIR")
    if folder and not Path(folder).is_dir():
        found.append(fail("TMPDIR", f"{folder} is not there", f"mkdir -p {folder}"))
        yield found[-1]
    if not found:
        yield ok("environment", "no setting that does nothing or harms")
