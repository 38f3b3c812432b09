"""The `track:` section of the spec: a server that gets a copy of the run's metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from drivetrain.job.values import Address, Spec

FOLDER = Path(__file__).parents[1] / "tracking" / "servers"
"""Folder with one file per kind of server; `track.server` is the name of a file."""
MLFLOW, WANDB = "mlflow", "wandb"
Project = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]+/)?[A-Za-z0-9_.-]{1,128}$")]


def list_servers() -> list[str]:
    """Return the kinds of servers that have a file, without kinds that have their own key."""
    return sorted({path.stem for path in FOLDER.glob("[!_]*.py")} - {MLFLOW, WANDB})


class Track(Spec):
    """A copy of the run on a tracking server; the run folder remains the original."""

    mlflow: Address | None = Field(None, description="address of an MLflow server")
    wandb: Project | None = Field(None, description="project, or TEAM/PROJECT, at Weights & Biases")
    server: str | None = Field(
        None, description="another kind of server: the name of its file in runtime/drivetrain/tracking/servers"
    )
    address: Address | None = Field(None, description="address of this server")
    experiment: str | None = Field(
        None,
        min_length=1,
        max_length=250,
        description="experiment on the server; the job's name if absent; not with wandb, which has projects",
    )

    @property
    def target(self) -> tuple[str, str]:
        """Kind of the server, and its address or project."""
        if self.mlflow:
            return MLFLOW, self.mlflow
        return (WANDB, self.wandb) if self.wandb else (self.server or "", self.address or "")

    def find_contradiction(self) -> tuple[str, str, str] | None:
        """Return the wrong key, a description and the possible keys; None if the keys name exactly one server."""
        possible = "mlflow: ADDRESS, or wandb: PROJECT, or server: NAME with address: ADDRESS"
        names = [name for name in (MLFLOW, WANDB, "server", "address") if getattr(self, name)]
        if names == ["server", "address"]:
            servers = list_servers()
            return None if self.server in servers else ("server", f"is {self.server!r}", ", ".join(servers) or possible)
        if len(names) > 1:
            return names[1], f"is set together with {names[0]}", possible
        if names in ([], ["server"], ["address"]):
            return {"server": "address", "address": "server"}.get("".join(names), MLFLOW), "is missing", possible
        return ("experiment", "is set together with wandb", possible) if self.wandb and self.experiment else None
