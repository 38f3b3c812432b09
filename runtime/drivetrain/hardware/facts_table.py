"""Renders the hardware as a table: the machine next to the share that this process may use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drivetrain.hardware.facts import EMULATION, NO_MPS, Cpu, Gpu, Hardware, Memory, Storage, Torch
from drivetrain.system.units import format_bytes

_Row = tuple[str, str, str, str]
"""JSON key, label, value of the machine, value for this process."""


def render_facts(hardware: Hardware) -> RenderableType:
    """Return the table of `drivetrain plan` without a job for 100 columns, with its problems and assumptions."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim", show_edge=False)
    table.add_column("fact", no_wrap=True)
    table.add_column("the machine", overflow="fold")
    table.add_column("this process may use", overflow="fold")
    assumed = {name.split(".")[0] for name in hardware.assumed}
    for key, label, machine, allowed in _list_rows(hardware):
        table.add_row(Text(label + "*" * (key in assumed)), Text(machine), Text(allowed))
    head = Text(f"facts of {hardware.name}\n", style="bold")
    return Group(head, table, *(Text(f"  {note}", style="yellow") for note in _list_notes(hardware)))


def _list_rows(hardware: Hardware) -> Iterator[_Row]:
    cpu = hardware.cpu
    where = f"{hardware.place}{' under WSL2' if hardware.wsl2 else ''}"
    yield "place", "environment", where, f"cgroup v{hardware.cgroup}" if hardware.cgroup else "no cgroups"
    yield "image", "image", "", hardware.image or "not a Drivetrain image"
    yield "cpu", "CPU", f"{cpu.model} ({cpu.vendor}, {cpu.architecture})", _format_flags(cpu)
    yield "cpu", "logical CPUs", str(cpu.host), _format_budget(cpu)
    yield "cpu", "physical cores", "", _format_cores(cpu)
    yield "memory", "memory", format_bytes(hardware.memory.host), _format_memory(hardware.memory)
    yield from _list_storage_rows(hardware.storage)
    yield "compiler", "C++ compiler", "", hardware.compiler or "none (g++ and Python.h are both needed)"
    yield "torch", "torch", "", _format_torch(hardware.torch)
    libraries = [path for path in asdict(hardware.libraries).values() if path]
    yield "libraries", "preloadable libraries", "", "\n".join(libraries) or "none"
    if not hardware.gpus:
        yield "gpus", "GPU", "", f"none: {NO_MPS}" if hardware.system == "Darwin" else "none"
    for gpu in hardware.gpus:
        yield "gpus", f"GPU {gpu.index}", _format_gpu(gpu), f"{format_bytes(gpu.free)} free"


def _list_storage_rows(storage: Storage) -> Iterator[_Row]:
    shm = f"{format_bytes(storage.shm)}, {_format_exec(storage.shm_exec)}" if storage.shm is not None else "not there"
    writable = "writable" if storage.cache_writable else "not writable"
    yield "storage", "/dev/shm", "", shm
    yield "storage", "temporary folder", "", _format_exec(storage.tmp_exec)
    yield "storage", "run folder", "", f"{format_bytes(storage.runs_free)} free"
    yield "storage", "compile cache", storage.cache, f"{writable}, {_format_exec(storage.cache_exec)}"


def _format_flags(cpu: Cpu) -> str:
    capped = f" (capped by {cpu.capped})" if cpu.capped else ""
    return f"{' '.join(cpu.flags) or 'unknown'}{capped}"


def _format_budget(cpu: Cpu) -> str:
    cpuset = f", cpuset {cpu.cpuset}" if cpu.cpuset is not None else ""
    quota = f"quota {cpu.quota:g}" if cpu.quota is not None else "no quota"
    return f"{cpu.budget} (affinity {cpu.affinity}{cpuset}, {quota})"


def _format_cores(cpu: Cpu) -> str:
    kinds = f", {cpu.fast_cores} of them fast" if cpu.fast_cores else ""
    return f"{cpu.cores}{', shared by hyperthreads' if cpu.cores < cpu.affinity else ''}{kinds}"


def _format_memory(memory: Memory) -> str:
    limit = f"limit {format_bytes(memory.limit)}" if memory.limit is not None else "no limit"
    swap = "swap on" if memory.swap else "swap off"
    return f"{format_bytes(memory.available)} ({limit}, {format_bytes(memory.used)} in use, {swap})"


def _format_exec(allowed: bool) -> str:
    return "exec" if allowed else "noexec"


def _format_torch(torch: Torch | None) -> str:
    if torch is None:
        return "not installed"
    chips = f", code for {' '.join(torch.architectures)}" if torch.architectures else ""
    return f"{torch.version} ({f'CUDA {torch.cuda}{chips}' if torch.cuda else 'CPU build'})"


def _format_gpu(gpu: Gpu) -> str:
    major, minor = gpu.capability
    mig = ", one MIG instance" if gpu.mig else ""
    return f"{gpu.name}, {format_bytes(gpu.memory)}, capability {major}.{minor}, driver {gpu.driver}{mig}"


def _list_notes(hardware: Hardware) -> Iterator[str]:
    if hardware.gpu_trouble:
        yield f"note  gpu: {hardware.gpu_trouble}"
    if hardware.cpu.emulated:
        yield f"note  cpu: {EMULATION}"
    if hardware.assumed:
        yield f"*     assumed, not read from a machine: {', '.join(hardware.assumed)}"
