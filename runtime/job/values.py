"""Value types of the job spec: sizes such as `4g`, durations such as `5m`, intervals such as `200 steps`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_STEPS = re.compile(r"(\d+)\s*steps?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Spec(BaseModel):
    """A mapping of the spec: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def named(default: str | None = None) -> BeforeValidator:
    """`adam` is short for `{name: adam}`; a mapping without a name gets `default`."""

    def expand(value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if default is not None and isinstance(value, dict) and "name" not in value:
            return {"name": default, **value}
        return value

    return BeforeValidator(expand)


def size_bytes(text: str) -> int:
    """Bytes in `256m`, `4g` (powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if not match or float(match[1]) == 0:
        raise PydanticCustomError("size", "a size with its unit: 256m, 4g")
    return int(float(match[1]) * 1024 ** (" kmgt".index(match[2].lower())))


def duration_seconds(text: str) -> float:
    """Seconds in `90s`, `5m`, `2h`, `1d`."""
    match = _DURATION.fullmatch(text.strip())
    if not match or float(match[1]) == 0:
        raise PydanticCustomError("duration", "a duration with its unit: 90s, 5m, 2h")
    return float(match[1]) * _SECONDS[match[2]]


def interval(text: str) -> tuple[str, float]:
    """`epoch` -> ("epoch", 1), `200 steps` -> ("steps", 200), `5m` -> ("seconds", 300)."""
    if text.strip() == "epoch":
        return "epoch", 1
    if (match := _STEPS.fullmatch(text.strip())) and int(match[1]) > 0:
        return "steps", int(match[1])
    try:
        return "seconds", duration_seconds(text)
    except PydanticCustomError:
        raise PydanticCustomError("interval", "`epoch`, `200 steps` or a duration such as 5m") from None


def _checked(check: Any) -> AfterValidator:
    def validate(text: str) -> str:
        check(text)
        return text

    return AfterValidator(validate)


Size = Annotated[str, _checked(size_bytes)]
Duration = Annotated[str, _checked(duration_seconds)]
Interval = Annotated[str, _checked(interval)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
