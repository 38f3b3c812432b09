"""The `sweep:` part of the spec: which keys `drivetrain sweep` varies, and how trials are judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Discriminator, Field, JsonValue, Tag

from drivetrain.job.values import Count, Duration, Positive, Spec


class SearchRange(Spec):
    """Numbers from `low` to `high`, both included; whole ones if the key takes no others."""

    low: int | float = Field(description="smallest value")
    high: int | float = Field(description="largest value")
    log: bool = Field(False, description="draw on a logarithmic scale, such as for a learning rate")
    step: Positive | Annotated[int, Field(gt=0)] | None = Field(
        None, description="distance of neighbouring values; any value in between if absent"
    )


def _choose_form(value: object) -> str:
    return "choices" if isinstance(value, list) else "range"


Choices = Annotated[list[JsonValue], Field(json_schema_extra={"minItems": 2})]
Values = Annotated[
    Annotated[SearchRange, Tag("range")] | Annotated[Choices, Tag("choices")],
    # So that a mistake in a range is not reported as that of a list, too.
    Discriminator(_choose_form),
]


class Sweep(Spec):
    """A search for the best values of some keys (`drivetrain sweep`); `drivetrain train` trains the spec's own values."""

    space: dict[str, Values] = Field(
        min_length=1,
        description="the keys to vary: a range `{low: 1e-4, high: 1e-1, log: true}`, or a list of values",
    )
    trials: Count = Field(20, description="how many trials; each trains the job with other values")
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the search; the same one tries the same values")
    metric: str | None = Field(
        None,
        description="validation metric to improve; that of the best checkpoint if absent",
    )
    pruning: bool = Field(
        True,
        description="end a trial whose best value so far is worse than the median; from the sixth trial on, not in the first "
        "quarter of the epochs",
    )
    max_time: Duration | None = Field(
        None, description="begin no further trial after this much wall-clock time: 8h; the same command goes on"
    )


@dataclass(frozen=True)
class Parameter:
    """A key of the space, checked."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    whole: bool = False
    """Whether the numbers of the range are whole."""
    choices: tuple[JsonValue, ...] = ()
    """The values to choose from; empty for a range."""


def format_assignments(values: Mapping[str, JsonValue]) -> list[str]:
    """Format the values by key as `--set` options take them; `train.optimizer` before `train.optimizer.lr`."""
    return [
        f"{key}={json.dumps(values[key], ensure_ascii=False)}" for key in sorted(values, key=lambda key: key.count("."))
    ]
