"""The machines that `drivetrain plan --on` knows, with the rates that a model of the time needs, and their prices."""

from __future__ import annotations

import datetime
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeFloat, ValidationError
from pydantic_core import PydanticCustomError

from drivetrain.errors import SpecError, nearest
from drivetrain.hardware.facts import Gpu, Hardware
from drivetrain.hardware.image_selection import AMPERE_DRIVER
from drivetrain.job.values import Spec
from drivetrain.job_spec.validation_errors import list_problems
from drivetrain.job_spec.yaml_file import parse

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device computes and moves in a second."""

    matmul: float
    """FLOP of matrix products in fp32."""
    low_matmul: float
    """FLOP of matrix products in bf16 or fp16; as `matmul` where the chip has no units for them."""
    bandwidth: float
    """Bytes read and written."""

    def scale(self, share: float) -> Rates:
        """A share of these rates."""
        return Rates(**{name: share * value for name, value in asdict(self).items()})


@dataclass(frozen=True, kw_only=True)
class CatalogMachine:
    """A machine by its data sheet."""

    name: str
    chip: str
    """Part of the processor's or the card's name, as the system reports it."""
    rates: Rates
    cpus: int
    memory: int
    """Bytes of the machine's memory."""
    gpu: Gpu | None = None

    def matches(self, hardware: Hardware) -> bool:
        """Whether some hardware is such a machine."""
        if self.gpu is None:
            return hardware.gpu is None and hardware.cpu.budget == self.cpus and self.chip in hardware.cpu.model
        # An L4 is no L40.
        return hardware.gpu is not None and bool(re.search(rf"\b{self.chip}\b", hardware.gpu.name))

    def limit_cpus(self, cpus: float | None) -> CatalogMachine:
        """The machine under a limit of CPUs; its rates shrink with them if it computes on them."""
        if cpus is None or cpus >= self.cpus:
            return self
        share = cpus / self.cpus if self.gpu is None else 1.0
        return replace(self, cpus=max(1, int(cpus)), rates=self.rates.scale(share))

    def make_hardware(self, this_machine: Hardware) -> Hardware:
        """The facts of this machine as a plan needs them; what no data sheet says is as it is here."""
        cpu = replace(
            this_machine.cpu,
            model="unknown" if self.gpu else self.chip,
            vendor="unknown",
            architecture="x86_64",
            flags=("avx", "avx2", "fma", "f16c"),
            host=self.cpus,
            affinity=self.cpus,
            budget=self.cpus,
            cores=max(1, self.cpus // 2),
            cpuset=None,
            quota=None,
            capped=None,
        )
        memory = replace(this_machine.memory, host=self.memory, limit=None, used=0, available=int(0.9 * self.memory))
        gpus = (self.gpu,) if self.gpu else ()
        return replace(
            this_machine, name=self.name, cpu=cpu, memory=memory, gpus=gpus, torch=None, calibration=None, image=None
        )


def _make_card(
    name: str, chip: str, capability: tuple[int, int], gibibytes: float, teraflops: tuple[float, float], bandwidth: int
) -> CatalogMachine:
    """A machine with one card.

    Args:
        teraflops: of matrix products in fp32 (TF32 where a plan uses it) and in bf16 or fp16, dense, with fp32 sums.
        bandwidth: GB/s.
    """
    rates = Rates(matmul=1e12 * teraflops[0], low_matmul=1e12 * teraflops[1], bandwidth=1e9 * bandwidth)
    memory = int(gibibytes * GIB)
    gpu = Gpu(
        index=0, name=f"NVIDIA {chip}", capability=capability, memory=memory, free=memory, driver=f"{AMPERE_DRIVER}.0"
    )
    return CatalogMachine(name=name, chip=chip, rates=rates, cpus=4, memory=16 * GIB, gpu=gpu)


def _make_codespace(cpus: int) -> CatalogMachine:
    """Two CPUs are the hyperthreads of one core of an EPYC 7763: 32 fp32 FLOP a cycle at 3.2 GHz, of which products reach 0.85."""
    rates = Rates(matmul=43e9 * cpus, low_matmul=43e9 * cpus, bandwidth=10e9 * cpus)
    return CatalogMachine(name=f"codespace-{cpus}", chip="EPYC 7763", rates=rates, cpus=cpus, memory=4 * cpus * GIB)


# NVIDIA's data sheets: dense rates, of GeForce cards those with fp32 sums.
CATALOG: tuple[CatalogMachine, ...] = (
    _make_codespace(2),
    _make_codespace(4),
    _make_card("gtx1080", "GTX 1080", (6, 1), 8, (8.9, 8.9), 320),
    _make_card("v100", "V100", (7, 0), 16, (15.7, 125), 900),
    _make_card("t4", "T4", (7, 5), 15, (8.1, 65), 320),
    _make_card("rtx3060", "RTX 3060", (8, 6), 12, (12.7, 25.5), 360),
    _make_card("rtx4090", "RTX 4090", (8, 9), 24, (82.6, 165), 1008),
    _make_card("l4", "L4", (8, 9), 22, (30.3, 121), 300),
    _make_card("a100", "A100", (8, 0), 40, (156, 312), 1555),
    _make_card("h100", "H100", (9, 0), 80, (494, 989), 3350),
    _make_card("h200", "H200", (9, 0), 141, (494, 989), 4800),
)


def find_machines(names: str) -> tuple[CatalogMachine, ...]:
    """The machines of a list such as `codespace-2,t4`.

    Raises:
        SpecError: with the names that are possible.
    """
    by_name = {machine.name: machine for machine in CATALOG}
    requested = list(dict.fromkeys(name.strip().lower() for name in names.split(",") if name.strip()))
    for name in requested or [""]:
        if name not in by_name:
            raise SpecError(
                f"--on {name!r} is no known machine",
                ", ".join(by_name),
                nearest(name, by_name)
                or "for another one use --hardware FILE, the output of `drivetrain facts --json` there",
            )
    return tuple(by_name[name] for name in requested)


EXAMPLE = "docs/prices.yaml"


def _check_date(text: str) -> str:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("date", "a day such as 2026-11-28") from None
    return text


def _check_machines(prices: dict[str, float]) -> dict[str, float]:
    names = {machine.name for machine in CATALOG}
    if unknown := [name for name in prices if name not in names]:
        raise PydanticCustomError("machines", f"{', '.join(sorted(names))}; not {', '.join(map(repr, unknown[:3]))}")
    return prices


class PriceList(Spec):
    """Prices of machines, as their provider names them on a day."""

    currency: str = Field(description="such as USD", min_length=1, max_length=8)
    date: Annotated[str, AfterValidator(_check_date)] = Field(description="day of the prices")
    per_hour: Annotated[dict[str, NonNegativeFloat], AfterValidator(_check_machines)] = Field(
        description="price of an hour by the machine's name in --on"
    )

    def compute_price(self, machine: str, seconds: float) -> float | None:
        """The price of so many seconds; None for a machine without one."""
        hourly = self.per_hour.get(machine)
        return None if hourly is None else hourly * seconds / 3600


def read_price_list(path: Path) -> PriceList:
    """Read such a file; raises SpecError with every mistake in it."""
    try:
        document = parse(path.read_bytes(), str(path))
        return PriceList.model_validate(document.data)
    except OSError as error:
        possible = "a YAML file with currency, date and per_hour"
        raise SpecError(f"--prices {path}: {error.strerror or error}", possible, f"{EXAMPLE} is one") from None
    except ValidationError as error:
        raise SpecError(list_problems(error, PriceList, document)) from None
