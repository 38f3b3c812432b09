"""The file with prices of machines by the hour: `drivetrain plan --on ... --prices FILE`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeFloat, ValidationError
from pydantic_core import PydanticCustomError

from drivetrain.errors import SpecError
from drivetrain.job.values import Spec
from drivetrain.job_spec.validation_errors import list_problems
from drivetrain.job_spec.yaml_file import parse
from drivetrain.tuning.elsewhere.machine_catalog import CATALOG

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
