"""The hardware that this container may use, next to the host's. Frozen data; without torch or machine access.

`detect` creates it from the machine; `load` from a file (`--hardware FILE`), so that every decision can be reproduced
on any machine.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from drivetrain.errors import SpecError, nearest
from drivetrain.system.files import parse_json

Kind = TypeVar("Kind")
NO_MPS = "Apple's GPU (mps) is not used; training computes on the CPU"
EMULATION = "the image is for another kind of processor, so all of it is emulated, many times slower"


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The processor. Counts are logical CPUs unless the name says otherwise."""

    model: str
    """Marketing name, as reported by the kernel."""
    vendor: str
    """GenuineIntel, AuthenticAMD, ARM, Apple or unknown."""
    architecture: str
    """x86_64 or aarch64, also for a Mac, which calls it arm64."""
    flags: tuple[str, ...]
    """Relevant instruction sets: avx2, fma, avx512f, avx512_bf16, amx_bf16, ...; on Arm asimd, sve, bf16, i8mm, ..."""
    host: int
    """Logical CPUs of the machine."""
    affinity: int
    """Logical CPUs in the affinity mask of this process."""
    cpuset: int | None
    """Logical CPUs in the cgroup's cpuset; None if there is no such file."""
    quota: float | None
    """The cgroup's CPU quota, in CPUs; None without a quota."""
    cores: int
    """Physical cores of the affinity mask: two hyperthreads of one core count once."""
    budget: int
    """CPUs to use: min(affinity, cpuset, quota rounded down), at least 1."""
    capped: str | None = None
    """The variable that caps the instruction set of torch or oneDNN; `flags` are what remains."""
    fast_cores: int | None = None
    """Physical cores of the affinity mask that are of the fastest kind; None if all are alike, or unknown."""
    emulated: bool = False
    """Whether a processor of the other architecture computes in its place; its instruction sets do not count."""
    neighbors: float = 0.0
    """CPUs of the affinity mask that other programs used when this was measured; 0 before."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory in bytes."""

    host: int
    """Memory of the machine."""
    limit: int | None
    """The cgroup's limit (the lowest of all ancestors); None without one."""
    used: int
    """Non-reclaimable memory that the cgroup (or, without a limit, the machine) already uses."""
    available: int
    """Memory left for us: limit minus use, at most what the machine has available."""
    swap: bool
    """Whether the kernel may swap this container's memory."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Sizes in bytes; None if unreadable."""

    shm: int | None
    """Size of /dev/shm."""
    shm_exec: bool
    """Whether /dev/shm is mounted exec."""
    tmp_exec: bool
    """Whether the temporary folder is mounted exec."""
    runs_free: int | None
    """Free space for run folders."""
    cache: str
    """Folder for compiled code, and for measurements and decoded images that all runs share."""
    cache_exec: bool
    """Whether compiled code in it may be executed."""
    cache_writable: bool
    """Whether we may write to it."""
    cache_room: int | None = None
    """Space for the cache: free space, plus the space of decoded images that may be removed."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as reported by NVML. Memory in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    memory: int
    free: int
    driver: str
    mig: bool = False
    uuid: str = ""
    """Unique id, independent of the order of GPUs; empty if it is unknown."""


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The installed torch, read from its files without importing it."""

    version: str
    cuda: str | None
    """CUDA version of the build; None for a CPU build."""
    architectures: tuple[str, ...] = ()
    """Architectures that the build has code for: sm_75, sm_80, ...; empty for a CPU build, or if unreadable."""


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """Paths of shared libraries that may be preloaded; None if not installed."""

    iomp5: str | None = None
    libomp: str | None = None
    tcmalloc: str | None = None


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Resources that this container may actually use."""

    name: str
    """Short name of the machine, for titles."""
    place: str
    """host, docker, podman, kubernetes or container."""
    cgroup: int
    """Version of the cgroups: 1, 2, or 0 for none."""
    image: str | None
    """The image of this process (cpu, ampere, legacy); None outside of our images."""
    cpu: Cpu
    memory: Memory
    storage: Storage
    gpus: tuple[Gpu, ...] = ()
    gpu_trouble: str | None = None
    """Why no GPU can be used although there is an NVIDIA device; None if all is well."""
    gpu_note: str | None = None
    """Which GPUs are used and which are not, if there was a choice."""
    torch: Torch | None = None
    compiler: str | None = None
    """Path of the C++ compiler; None without one, or without Python's headers."""
    libraries: Libraries = field(default_factory=Libraries)
    assumed: tuple[str, ...] = ()
    """Names of values that were assumed, not read (recorded machines only)."""
    system: str = "Linux"
    """The kernel: Linux, or Darwin on a Mac without a container."""
    wsl2: bool = False
    """Whether Windows lends the GPU to this Linux (WSL2), whose driver moves memory to the host before any runs out."""
    shared_by: int = 1
    """How many supervisors of one run share this machine: several if a starter such as torchrun starts each process."""
    machines: int = 1
    """Number of machines that train this run together."""

    @property
    def gpu(self) -> Gpu | None:
        """Return the first GPU, the basis of decisions."""
        return self.gpus[0] if self.gpus else None

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values for `from_json`; rare facts only where they hold."""
        values = asdict(self)
        for name, usual in (("wsl2", False), ("shared_by", 1), ("machines", 1)):
            if values[name] == usual:
                del values[name]
        return values


def from_json(data: dict[str, Any], source: str = "hardware") -> Hardware:
    """Restore a Hardware from `to_json`.

    Raises:
        SpecError: for a missing or unknown key, or a value of the wrong type.
    """
    return from_json_as(Hardware, data, source)


RECORD_AGAIN = "run that command on the machine, or use a file from tests/machines"


def read_hardware(path: Path) -> Hardware:
    """Read the hardware of a recorded machine; raises SpecError if the file cannot be read or lacks a value."""
    try:
        data = parse_json(path.read_bytes(), dict)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"--hardware {path}: {error}",
            "a JSON file as written by `drivetrain plan --json` without JOB",
            RECORD_AGAIN,
        ) from None
    return from_json(data, str(path))


def from_json_as(kind: type[Kind], values: dict[str, Any], source: str) -> Kind:
    """Restore a frozen dataclass from its JSON values, nested ones included.

    Raises:
        SpecError: for a missing or unknown key, or a value of the wrong type.
    """
    hints = get_type_hints(kind)
    names = {f.name for f in fields(cast(Any, kind))}
    for key in values:
        if key not in names:
            raise SpecError(
                f"{source}: unknown fact {key!r}",
                f"known: {', '.join(sorted(names))}",
                nearest(key, names) or RECORD_AGAIN,
            )
    try:
        return kind(**{key: _convert(hints[key], values[key], f"{source}: {key}") for key in values})
    except TypeError as error:
        raise SpecError(
            f"{source}: {error}", "all keys that `drivetrain plan --json` without JOB prints", RECORD_AGAIN
        ) from None


def _convert(hint: object, value: object, source: str) -> object:
    """Convert `value` to the type `hint`, nested classes and tuples included."""
    for kind in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
            return from_json_as(kind, value, source)
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            inner = get_args(kind)
            kinds = inner[:1] * len(value) if inner[-1] is ... else inner
            if len(kinds) == len(value):
                return tuple(_convert(k, v, source) for k, v in zip(kinds, value, strict=True))
        if type(value) is kind or (kind is float and type(value) is int):
            return value
    name = hint.__name__ if isinstance(hint, type) else str(hint).replace("drivetrain.hardware.facts.", "")
    raise SpecError(
        f"{source}: is {value!r}",
        f"a value of type {name}",
        "copy it from the output of `drivetrain plan --json` without JOB",
    )
