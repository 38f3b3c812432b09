"""The `track:` part of the spec: a server that gets a copy of the run's metrics."""

from __future__ import annotations

from pydantic import Field

from runtime.job.values import Address, Spec


class Track(Spec):
    """A copy of the run on a tracking server; the run folder stays the truth."""

    mlflow: Address = Field(
        description="address of an MLflow server; a user and password, or a token, come from MLflow's own environment "
        "variables"
    )
    experiment: str | None = Field(
        None, min_length=1, max_length=250, description="experiment on the server; the job's name if absent"
    )
