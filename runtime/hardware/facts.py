"""Hardware: what this container may use, host beside allowed. Frozen facts, no torch, no reading of the machine.

`detect.py` makes one from the machine; `load` makes one from a file (`--hardware FILE`), so that every decision
can be replayed on any laptop.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from runtime.errors import SpecError, nearest
from runtime.system.files import parse_json


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Processor facts. Counts are logical CPUs unless the name says otherwise."""

    model: str
    """Marketing name, as the kernel prints it."""
    vendor: str
    """GenuineIntel, AuthenticAMD, ARM or unknown."""
    architecture: str
    """x86_64 or aarch64."""
    flags: tuple[str, ...]
    """Instruction sets that matter here: avx2, fma, avx512f, avx512_bf16, amx_bf16, ..."""
    host: int
    """Logical CPUs of the machine."""
    affinity: int
    """Logical CPUs in the affinity mask of this process."""
    cpuset: int | None
    """Logical CPUs in the cgroup's cpuset; None where there is no such file."""
    quota: float | None
    """CPUs that the cgroup's quota amounts to; None without a quota."""
    cores: int
    """Physical cores behind the affinity mask: two hyperthreads of one core count once."""
    budget: int
    """What we may use: min(affinity, cpuset, quota rounded down), at least 1."""
    capped: str | None = None
    """The variable that keeps torch or oneDNN below what the chip could do; `flags` are those that are left."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory facts, all in bytes."""

    host: int
    """Memory of the machine."""
    limit: int | None
    """The cgroup's limit (the lowest of all ancestors); None without one."""
    used: int
    """What the cgroup (or, without a limit, the machine) uses already and cannot give back."""
    available: int
    """What is left for us: limit minus use, never more than the machine has available."""
    swap: bool
    """Whether the kernel may swap this container out."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Sizes in bytes; None for what could not be read."""

    shm: int | None
    """Size of /dev/shm."""
    shm_exec: bool
    """Whether /dev/shm is mounted exec."""
    tmp_exec: bool
    """Whether the temporary folder is mounted exec."""
    runs_free: int | None
    """Room left under the run folder."""
    cache: str
    """Folder for compiled code, and for what is measured or decoded once for all runs."""
    cache_exec: bool
    """Whether compiled code in it may be executed."""
    cache_writable: bool
    """Whether we may write to it."""
    cache_room: int | None = None
    """Room in it: what is free, and what decoded images take that may give way."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as NVML shows it. Memory in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    memory: int
    free: int
    driver: str
    mig: bool = False
    uuid: str = ""
    """The one name that every order of GPUs agrees on; empty in facts of older versions."""


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The installed torch, read from its files without importing it."""

    version: str
    cuda: str | None
    """CUDA version of the build; None for a CPU build."""
    architectures: tuple[str, ...] = ()
    """Chips that the build has code for: sm_75, sm_80, ...; empty for a CPU build, or if that could not be read."""


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """Shared libraries that may be preloaded, as paths; None where they are not installed."""

    iomp5: str | None = None
    libomp: str | None = None
    tcmalloc: str | None = None


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What this container may really use."""

    name: str
    """Short name of the machine, for titles."""
    place: str
    """host, docker, podman, kubernetes or container."""
    cgroup: int
    """Version of the control groups: 1, 2, or 0 for none."""
    image: str | None
    """The image this process runs in (cpu, ampere, legacy); None outside our images."""
    cpu: Cpu
    memory: Memory
    storage: Storage
    gpus: tuple[Gpu, ...] = ()
    gpu_trouble: str | None = None
    """Why no GPU can be used although something NVIDIA is there; None if all is well."""
    gpu_note: str | None = None
    """Which GPUs are used and which are not, where there was a choice."""
    torch: Torch | None = None
    compiler: str | None = None
    """Path of the C++ compiler with Python headers beside it; None without either."""
    libraries: Libraries = field(default_factory=Libraries)
    assumed: tuple[str, ...] = ()
    """Names of facts that were assumed, not read (recorded machines only)."""

    @property
    def gpu(self) -> Gpu | None:
        """The first GPU, the one that decisions look at."""
        return self.gpus[0] if self.gpus else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `from_json` gives the same object back."""
        return asdict(self)


def from_json(data: dict[str, Any], source: str = "hardware") -> Hardware:
    """Make a Hardware from `to_json`'s data.

    Raises:
        SpecError: for a missing or unknown fact, or one of the wrong type.
    """
    made: Hardware = _make(Hardware, data, source)
    return made


def load(path: Path) -> Hardware:
    """Read the facts of a recorded machine.

    Raises:
        SpecError: if the file cannot be read or lacks a fact.
    """
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(
            f"--hardware {path}: {error}",
            "a JSON file as written by `drivetrain facts --json`",
            "run that command on the machine, or use a file from tests/machines",
        ) from None
    if not isinstance(data, dict):
        raise SpecError(f"--hardware {path}: not a JSON object", "the output of `drivetrain facts --json`")
    return from_json(data, str(path))


def _make(kind: Any, values: dict[str, Any], source: str) -> Any:
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}
    for key in values:
        if key not in known:
            raise SpecError(
                f"{source}: unknown fact {key!r}", f"known: {', '.join(sorted(known))}", nearest(key, known)
            )
    try:
        return kind(**{key: _value(hints[key], value, f"{source}: {key}") for key, value in values.items()})
    except TypeError as error:
        raise SpecError(f"{source}: {error}", "all keys that `drivetrain facts --json` prints") from None


def _value(hint: Any, value: Any, source: str) -> Any:
    """`value` as the type that `hint` asks for, parts and lists made on the way."""
    for kind in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        if is_dataclass(kind) and isinstance(value, dict):
            return _make(kind, value, source)
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            inner = get_args(kind)
            kinds = inner[:1] * len(value) if inner[-1] is ... else inner
            if len(kinds) == len(value):
                return tuple(_value(k, v, source) for k, v in zip(kinds, value, strict=True))
        if type(value) is kind or (kind is float and type(value) is int):
            return value
    name = hint.__name__ if isinstance(hint, type) else str(hint).replace("runtime.hardware.facts.", "")
    raise SpecError(
        f"{source}: is {value!r}", f"a value of type {name}", "copy it from the output of `drivetrain facts --json`"
    )
