"""Preloads Intel's or LLVM's OpenMP runtime with a short spin time: waiting threads do not use up the CPU quota."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload

STAGE = Stage.PROCESS
EFFECT = Effect.ROUNDING
OFF = "off"
UNMEASURED = "it is fixed when a process starts"
Values = Literal["iomp5", "libomp", "off"]


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Choose the installed one of the two, on x86."""
    if hardware.gpu is not None:
        return Choice(OFF, "training runs on the GPU; torch's own libgomp is enough")
    if hardware.system == "Darwin":
        return Choice(OFF, "torch for macOS has an OpenMP runtime of its own, and nothing can be preloaded there")
    if hardware.cpu.architecture == "aarch64":
        exception = "; used only if requested" if hardware.libraries.libomp else ""
        return Choice(OFF, f"on Arm neither libomp nor torch's own libgomp is faster in general{exception}")
    if hardware.libraries.iomp5:
        reason = "libiomp5 is installed; KMP_BLOCKTIME=1 keeps waiting threads from using up the CPU quota"
        return Choice("iomp5", reason)
    if hardware.libraries.libomp:
        reason = "LLVM's libomp is installed; KMP_BLOCKTIME=1 keeps waiting threads from using up the CPU quota"
        return Choice("libomp", reason)
    missing = "neither libiomp5 (`pip install intel-openmp`) nor libomp (Debian: libomp5) is installed"
    return Choice(OFF, f"{missing}; torch uses its own libgomp")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: if the library is not installed."""
    if _path(hardware, value) is None:
        return f"the {value} library is not installed on this machine"
    return None


def environment(hardware: Hardware, value: Value) -> dict[str, str]:
    """Preload one runtime for all libraries of the process; both read KMP_BLOCKTIME, in milliseconds."""
    path = _path(hardware, value)
    return {"LD_PRELOAD": path, "KMP_BLOCKTIME": "1"} if path else {}


def effective(run: AssembledRun) -> Value:
    """Return the runtime that is mapped into this process; torch's libgomp is mapped as well, but not used."""
    return read_preloaded()


def read_preloaded() -> Value:
    """Return the effective value, without a run."""
    maps = Path("/proc/self/maps")
    mapped = maps.read_text(encoding="utf-8", errors="replace") if maps.exists() else ""  # macOS preloads nothing
    return "iomp5" if "libiomp5" in mapped else "libomp" if "/libomp.so" in mapped else OFF


def _path(hardware: Hardware, value: Value) -> str | None:
    paths: dict[Value, str | None] = {"iomp5": hardware.libraries.iomp5, "libomp": hardware.libraries.libomp}
    return paths.get(value)
