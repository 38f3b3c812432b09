"""The registry of the kinds of data: one file or folder for each, which names the functions that know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.errors import CheckpointError, nearest
from drivetrain.job import FORECASTING, Job
from drivetrain.tasks import audio, custom, image, series, table, text
from drivetrain.tasks.modality import Modality

__all__ = ["JOBS", "MODALITIES", "Modality", "find_stored_modality", "modality_of", "suggest_task"]

MODALITIES: dict[str, Modality] = {
    module.MODALITY.kind: module.MODALITY for module in (image, audio, series, text, table, custom)
}
"""Every kind of data by its name, the more special one first: a table is drafted for the first that it fits."""
JOBS: dict[str, type[Job]] = {name: job for modality in MODALITIES.values() for name, job in modality.tasks.items()}
"""The class of the jobs of every task, by its name."""


def suggest_task(name: str) -> str:
    """Return advice for the name of a task that does not exist."""
    return FORECASTING if "forecast" in name.casefold() else nearest(name, JOBS) or "pick one"


def modality_of(job: Job | type[Job]) -> Modality:
    """Return the kind of data of a job or of a class of jobs."""
    task = job if isinstance(job, type) else type(job)
    return next(modality for modality in MODALITIES.values() if issubclass(task, modality.job))


def find_stored_modality(preprocessing: Mapping[str, Any]) -> Modality:
    """Find the kind of data of a trained model, by its stored preprocessing.

    Raises:
        CheckpointError: if the kind is unknown.
    """
    kind = preprocessing.get("kind")
    if kind not in MODALITIES:
        raise CheckpointError(
            f"the model has an unknown kind of preprocessing: {kind!r}",
            ", ".join(MODALITIES),
            "use the version of drivetrain that wrote the model",
        )
    return MODALITIES[kind]
