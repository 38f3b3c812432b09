"""Reads back the effective settings of a run, after assembly and at its end, and compares them with the plan."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from threadpoolctl import threadpool_info

from drivetrain import optimizations
from drivetrain.models import strided_convolution
from drivetrain.system import torch_settings
from drivetrain.system.console import Detail
from drivetrain.system.run_files import PLAN_FILE, RunFiles
from drivetrain.system.units import format_bytes
from drivetrain.training import trained_layers
from drivetrain.training.run import Run

LIKELY_CAUSES = {
    "cpu_threads": "other code changed the number of threads",
    "openmp_runtime": "LD_PRELOAD was removed, or another OpenMP runtime was loaded first",
    "allocator": "LD_PRELOAD was removed",
    "allocator_segments": "PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF was already set to another value",
    "feature_cache": "frozen layers were unfrozen, or there is not enough space; see events.jsonl",
    "gpu_resident_data": "the samples did not fit; see events.jsonl",
    "compile": "the compiler or its graphs failed (see events.jsonl), or step_graph captures whole steps",
    "step_graph": "a step could not be captured; see events.jsonl",
    "micro_batch": "a larger micro-batch ran out of memory; see events.jsonl",
    "precision": "values were not finite, or no layer used it; see events.jsonl",
}


def compare_with_plan(run: Run) -> dict[str, dict[str, Any]]:
    """Return for each decision the planned and the effective value, whether they agree, and the likely cause if not."""
    rows: dict[str, dict[str, Any]] = {}
    for optimization in optimizations.every():
        planned, real = run.plan.value(optimization.name), optimization.effective(run)
        # `off` leaves the decision to torch, so any effective value is right.
        same = real == planned or (planned == optimization.off and optimization.stage is optimizations.Stage.PROCESS)
        cause = None if same else LIKELY_CAUSES.get(optimization.name, "the network or torch ignored the setting")
        rows[optimization.name] = {"asked": planned, "seen": real, "same": same, "cause": cause}
    return rows


def record(run: Run, say: Callable[[str], None]) -> None:
    """Report the effective settings, and write them to the run's plan.json."""
    run.effective_settings = compare_with_plan(run)
    say(Detail(describe_settings(run)))
    for line in trained_layers.describe(run):
        say(line)
    names = strided_convolution.list_rewritten(run.model)
    if names:
        run.events.add(
            "convolution",
            f"{', '.join(names)}: stride 1 over every n-th pixel, since oneDNN's gradient of a "
            "strided 1x1 convolution of few channels is wrong (uxlfoundation/oneDNN#6035)",
        )
    _print_warnings(run.effective_settings, say)
    _write_plan(run)


def record_changes(run: Run, say: Callable[[str], None]) -> None:
    """Report and write settings that changed during the run, because of the network's code, the compiler or memory."""
    earlier, current = run.effective_settings, compare_with_plan(run)
    changed = {name: current[name] for name, row in earlier.items() if row["same"] and not current[name]["same"]}
    if changed:
        run.effective_settings = earlier | changed
        _print_warnings(changed, say)
        _write_plan(run)


def _write_plan(run: Run) -> None:
    settings = run.effective_settings | {"libraries": list_libraries()}
    RunFiles(run.folder).write_json(PLAN_FILE, run.plan.to_json() | {"seen": settings})


def _print_warnings(rows: Mapping[str, Mapping[str, object]], say: Callable[[str], None]) -> None:
    for name, row in rows.items():
        if not row["same"]:
            say(f"warning: {name}: requested {row['asked']}, effective {row['seen']}: {row['cause']}")


def list_libraries() -> dict[str, str]:
    """List library versions and thread counts of this process, and torch's settings."""
    config = torch.__config__.show()
    versions = {"torch": str(torch.__version__), "instruction set": str(torch.backends.cpu.get_cpu_capability())}
    for name, pattern in (("MKL", r"Math Kernel Library Version (\S+)"), ("oneDNN", r"(?:MKL-DNN|oneDNN) v(\S+)")):
        match = re.search(pattern, config)
        if match:
            versions[name] = match[1]
    for pool in threadpool_info():
        name = " ".join(filter(None, (str(pool["internal_api"]), pool["version"])))
        versions[str(pool["prefix"])] = f"{name}, {pool['num_threads']} threads"
    versions["torch settings"] = "; ".join(f"{name}: {value}" for name, value in torch_settings.read_switches().items())
    return versions


def describe_settings(run: Run) -> str:
    """Return a line such as `cpu: 2 threads, fp32, oneDNN avx512, libiomp5, limit 4.0 GiB`."""
    hardware = run.hardware
    values = {o.name: o.effective(run) for o in optimizations.every()}
    openmp = {"iomp5": "libiomp5", "libomp": "libomp"}.get(str(values["openmp_runtime"]), "libgomp")
    limit = f"limit {format_bytes(hardware.memory.limit)}" if hardware.memory.limit else "no memory limit"
    device = hardware.gpu.name if hardware.gpu else "cpu"
    kernels = "cuDNN" if hardware.gpu else _describe_cpu_kernels()
    threads = f"{values['cpu_threads']} thread{'' if values['cpu_threads'] == 1 else 's'}"
    return f"{device}: {threads}, {values['precision']}, {kernels}, {openmp}, {limit}"


def _describe_cpu_kernels() -> str:
    """Return the name of the CPU's kernel library; on x86 and on Arm with SVE also the instruction set."""
    name = "oneDNN" if torch._C._has_mkldnn else "torch's own kernels"
    name += " with the Arm Compute Library" if getattr(torch._C, "_has_mkldnn_acl", False) else ""
    instructions = str(torch.backends.cpu.get_cpu_capability()).lower().replace("_", "")
    return name if instructions == "default" and platform.machine() != "x86_64" else f"{name} {instructions}"
