"""Machines with and without GPUs, as the check of devices sees them."""

from __future__ import annotations

from dataclasses import replace

from drivetrain.hardware import facts
from drivetrain.hardware.facts import Gpu, Hardware, Torch
from tests.paths import ROOT

GIB = 2**30
AMPERE = Torch(
    version="2.13.0+cu130", cuda="13.0", architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
)
CPU = Torch(version="2.13.0+cpu", cuda=None)


def machine(recording: str, torch: Torch | None = None, image: str | None = None) -> Hardware:
    return replace(facts.read_hardware(ROOT / f"tests/machines/{recording}.json"), torch=torch, image=image)


def make_card(
    index: int, name: str = "RTX 3060", capability: tuple[int, int] = (8, 6), memory: int = 12, **more_fields: object
) -> Gpu:
    fields = {"free": memory * GIB, "driver": "580.95.05"} | more_fields
    return Gpu(index=index, name=name, capability=capability, memory=memory * GIB, **fields)  # type: ignore[arg-type]


def machine_with_gpus(*cards: Gpu, gpu_trouble: str | None = None, image: str | None = None) -> Hardware:
    base = machine("vm-2core-cgroup1", AMPERE, image)
    return replace(base, gpus=cards, gpu_trouble=gpu_trouble)
