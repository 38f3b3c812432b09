"""The `sweep:` section of the spec: the keys that `drivetrain sweep` varies, and the metric that ranks trials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Discriminator, Field, JsonValue, Tag

from drivetrain.job.values import Count, Duration, Positive, Spec


class SearchRange(Spec):
    """Numbers from `low` to `high`, both included; whole numbers if the key accepts no others."""

    low: int | float = Field(description="smallest value")
    high: int | float = Field(description="largest value")
    log: bool = Field(False, description="draw on a logarithmic scale, such as for a learning rate")
    step: Positive | Annotated[int, Field(gt=0)] | None = Field(
        None, description="distance between neighboring values; any value in between if absent"
    )


def _choose_form(value: object) -> str:
    return "choices" if isinstance(value, list) else "range"


Choices = Annotated[list[JsonValue], Field(json_schema_extra={"minItems": 2})]
Values = Annotated[
    Annotated[SearchRange, Tag("range")] | Annotated[Choices, Tag("choices")],
    # Without it, a mistake in a range would also be reported as a mistake in a list.
    Discriminator(_choose_form),
]


class Sweep(Spec):
    """A search for the best values of some keys (`drivetrain sweep`); `drivetrain train` uses the job's own values."""

    space: dict[str, Values] = Field(
        min_length=1,
        description="the keys to vary: a range `{low: 1e-4, high: 1e-1, log: true}`, or a list of values",
    )
    trials: Count = Field(20, description="number of trials, each with other values")
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the search; the same seed tries the same values")
    metric: str | None = Field(
        None, description="validation metric to improve; the metric of the best checkpoint if absent"
    )
    pruning: bool = Field(
        True,
        description="end a trial early if its best value so far is worse than the median; from the sixth trial on, and not in "
        "the first quarter of the epochs",
    )
    max_time: Duration | None = Field(
        None,
        description="begin no further trial after this much wall-clock time, such as 8h; the same command continues the sweep",
    )


@dataclass(frozen=True)
class Parameter:
    """A checked key of the search space."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    whole: bool = False
    """Whether the numbers of the range are whole."""
    choices: tuple[JsonValue, ...] = ()
    """Values to choose from; empty for a range."""


def format_assignments(values: Mapping[str, JsonValue]) -> list[str]:
    """Format values by key for `--set` options."""
    # `train.optimizer` replaces everything below it, so it comes before `train.optimizer.lr`.
    keys = sorted(values, key=lambda key: key.count("."))
    return [f"{key}={json.dumps(values[key], ensure_ascii=False)}" for key in keys]
