"""Cuts a batch of texts by length into parts of so many tokens: padding is hardly computed, the loss is the batch's own.

With dropout the parts draw other numbers than the whole batch would, from the same distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from runtime.optimizations import Choice, Effect, Stage, Value, feature_cache, micro_batch

if TYPE_CHECKING:
    from runtime.hardware import Hardware
    from runtime.job import Job
    from runtime.workload import Workload

STAGE = Stage.STEP
OFF = "off"
REDRAWS = True
Values = Annotated[int, Field(ge=16)] | Literal["off"]

TOKENS = 512
"""Tokens of a part on a CPU: enough for its matrix kernels, and little padding."""


def EFFECT(workload: Workload | None) -> Effect:
    """That of every split of a batch."""
    return micro_batch.EFFECT(workload)


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """On for texts on a CPU; a GPU computes a little padding faster than it starts more kernels."""
    obstacle = refuse(job, hardware, workload, TOKENS)
    if obstacle:
        return Choice(OFF, obstacle)
    if EFFECT(workload) is Effect.TRAINING:
        return Choice(OFF, "BatchNorm would see other batches, which changes what is learned; by request")
    if hardware.gpu is not None:
        return Choice(OFF, "on a GPU more passes cost more than the padding that is left; by request")
    return Choice(TOKENS, "texts of like length together, without the padding between them")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Only texts of different lengths are padded."""
    if value == OFF:
        return None
    if not job.task.startswith("text") or (workload is not None and not workload.ragged):
        return "samples have one size, so nothing is padded"
    if workload is not None and workload.prefix and not workload.prefix_ragged \
            and feature_cache.choose(job, hardware, workload).value:  # fmt: skip
        return "feature_cache leaves one vector of each text"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """Not contested: the padding that is not computed is counted, not guessed."""
    return [choose(job, hardware, workload).value]


def apply(run: Any, value: Value) -> None:
    """Let the step cut its batches by length."""
    from functools import partial

    from runtime.data import pieces

    run.step.cut = partial(pieces.cut, tokens=int(value))


def seen(run: Any) -> Value:
    """Tokens of a part, as the step cuts its batches."""
    found: Value = getattr(run.step.cut, "keywords", {}).get("tokens", OFF)
    return found
