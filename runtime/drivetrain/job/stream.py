"""The `data.stream:` part of the spec: shards that are read while the run trains on them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from drivetrain.job.values import Size, Spec

DEFAULT_CACHE = "20g"
MAX_COUNT = 4096


class Stream(Spec):
    """Training data in shards that are read while they are trained on. The order is a function of the seed and the epoch."""

    streams: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        8,
        description="equal parts of the shuffled row of shards; each batch has samples of all. Best a multiple of the number of "
        "processes; any number of processes gets the same batches",
    )
    window: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        4, description="shards of a stream whose samples are shuffled together; more is nearer to a full shuffle"
    )
    cache: Size = Field(
        DEFAULT_CACHE,
        description="disk space for shards, shared by all runs and processes of a machine; it must hold `window` shards of each "
        "stream. Tar shards on this machine are read in place",
    )


def _expand_stream(value: Any) -> Any:
    """`true` means all defaults, `false` that nothing is streamed."""
    if isinstance(value, bool):
        return {} if value else None
    if value is None or isinstance(value, dict | Stream):
        return value
    raise PydanticCustomError("stream", "true, false, or settings such as {cache: 20g, window: 4}")


MaybeStream = Annotated[Stream | None, BeforeValidator(_expand_stream)]
