"""Names the kind of chip in a plan, the most specific name first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivetrain.hardware.facts import Hardware
from drivetrain.optimizations.precision import tensor_cores


def _has_capability(major: int, minor: int = 0) -> Callable[[Hardware], bool]:
    return lambda hardware: hardware.gpu is not None and hardware.gpu.capability >= (major, minor)


PROFILES: Mapping[str, Callable[[Hardware], bool]] = {
    "blackwell": _has_capability(10),
    "hopper": _has_capability(9),
    "ampere": _has_capability(8),
    "turing without tensor cores": lambda h: _has_capability(7)(h) and not (h.gpu and tensor_cores(h.gpu)),
    "turing": _has_capability(7, 5),
    "volta": _has_capability(7),
    "pascal": _has_capability(6),
    "maxwell": _has_capability(5),
    "old gpu": _has_capability(0),
    "arm cpu with sve": lambda h: "sve" in h.cpu.flags,
    "arm cpu with bf16": lambda h: h.cpu.architecture == "aarch64" and "bf16" in h.cpu.flags,
    "arm cpu": lambda h: h.cpu.architecture == "aarch64",
    "cpu with amx": lambda h: "amx_bf16" in h.cpu.flags,
    "cpu with avx512": lambda h: "avx512f" in h.cpu.flags,
    "cpu with avx2": lambda h: "avx2" in h.cpu.flags,
    "cpu": lambda h: True,
}
"""Names, each with the machines that it matches."""


def find_profile(hardware: Hardware) -> str:
    """Find the first name that matches the hardware."""
    return next(name for name, matches in PROFILES.items() if matches(hardware))
