"""Chip profiles: preferences that were measured to beat the defaults on a chip, most specific profile first.

A profile without preferences only names the chip in the plan. A preference needs evidence: the command and the number
that showed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from drivetrain.hardware.facts import Hardware
from drivetrain.optimizations import Value
from drivetrain.optimizations.precision import tensor_cores


@dataclass(frozen=True)
class Preference:
    """A value that was measured to beat `choose` on this chip, with the measurement."""

    value: Value
    evidence: str


@dataclass(frozen=True)
class Profile:
    """A name, the machines it matches, and its preferences."""

    name: str
    matches: Callable[[Hardware], bool]
    preferences: Mapping[str, Preference] = field(default_factory=dict)


def _has_capability(major: int, minor: int = 0) -> Callable[[Hardware], bool]:
    return lambda hardware: hardware.gpu is not None and hardware.gpu.capability >= (major, minor)


PROFILES: tuple[Profile, ...] = (
    Profile("blackwell", _has_capability(10)),
    Profile("hopper", _has_capability(9)),
    Profile("ampere", _has_capability(8)),
    Profile("turing without tensor cores", lambda h: _has_capability(7)(h) and not (h.gpu and tensor_cores(h.gpu))),
    Profile("turing", _has_capability(7, 5)),
    Profile("volta", _has_capability(7)),
    Profile("pascal", _has_capability(6)),
    Profile("maxwell", _has_capability(5)),
    Profile("old gpu", _has_capability(0)),
    Profile("arm cpu with sve", lambda h: "sve" in h.cpu.flags),
    Profile("arm cpu with bf16", lambda h: h.cpu.architecture == "aarch64" and "bf16" in h.cpu.flags),
    Profile("arm cpu", lambda h: h.cpu.architecture == "aarch64"),
    Profile("cpu with amx", lambda h: "amx_bf16" in h.cpu.flags),
    Profile("cpu with avx512", lambda h: "avx512f" in h.cpu.flags),
    Profile("cpu with avx2", lambda h: "avx2" in h.cpu.flags),
    Profile("cpu", lambda h: True),
)


def find_profile(hardware: Hardware) -> Profile:
    """The first profile that matches the hardware."""
    return next(row for row in PROFILES if row.matches(hardware))
