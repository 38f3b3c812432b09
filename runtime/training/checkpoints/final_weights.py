"""Selects the final weights of a run: those of its best evaluation, or the next best that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError
from runtime.job.formatting import format_metric
from runtime.training.checkpoints import checkpoint
from runtime.training.checkpoints.checkpoint import Loaded
from runtime.training.run import Run


@dataclass(frozen=True)
class FinalWeights:
    """A checkpoint, and the evaluation that selected it."""

    loaded: Loaded
    metric: str
    value: float | None
    """None if the weights are those of the last step."""
    step: int
    epoch: int
    metrics: dict[str, float] = field(default_factory=dict)
    confusion: dict[str, Any] = field(default_factory=dict)

    def words(self) -> str:
        """A description of the weights for messages."""
        if self.value is None:
            return f"the weights of the last step, {self.step}"
        return f"best {self.metric} {format_metric(self.value)} after epoch {self.epoch}"


def weights(run: Run) -> FinalWeights:
    """Load the weights of the best evaluation; else of an earlier best one, else of the last step.

    An event is recorded if they are not those of the best evaluation.

    Raises:
        CheckpointError: if no checkpoint of the run can be read.
    """
    metric, wrong = run.watch.best.metric, []
    if run.watch.best.best is None:
        wrong.append(f"no evaluation gave {metric} a value that is a number")
    for path in _candidates(run):
        try:
            found = _read(checkpoint.load(path), metric)
        except CheckpointError as error:
            wrong.append(error.given)
            continue
        if wrong:
            which = f"an older best: {found.words()}" if found.value is not None else found.words()
            run.events.add("checkpoint", f"{'; '.join(wrong)}; the model has {which}", run.counters.step)
        return found
    raise CheckpointError(
        f"no checkpoint can be read: {'; '.join(wrong)}",
        "a disk that stores files reliably",
        "check the disk of the run folder, and start again with --new",
    )


def _candidates(run: Run) -> Iterator[Path]:
    """Checkpoints that may be used, best first."""
    best = run.watch.best
    if best.best is not None:
        first = run.checkpoints / f"best-{best.step}"
        yield first
        yield from (path for path in reversed(checkpoint.steps(run.checkpoints, "best")) if path != first)
    yield from reversed(checkpoint.steps(run.checkpoints))


def _read(loaded: Loaded, metric: str) -> FinalWeights:
    state = loaded.state
    if loaded.path.name.startswith("best-"):
        best = state["watch"]["best"]
        return FinalWeights(
            loaded, best["metric"], best["best"], best["step"], best["epoch"] + 1, state["metrics"], state["confusion"]
        )
    counters = state["counters"]
    return FinalWeights(loaded, metric, None, counters["step"], counters["epoch"], state["last"])
