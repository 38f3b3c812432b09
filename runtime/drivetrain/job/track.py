"""The `track:` part of the spec: a server that gets a copy of the run's metrics."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from drivetrain.job.values import Address, Spec

FOLDER = Path(__file__).parents[1] / "tracking" / "servers"
"""One file a kind of server; the name of the file is what `server` takes."""
MLFLOW = "mlflow"


def list_servers() -> list[str]:
    """The kinds of servers that there is a file for."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


class Track(Spec):
    """A copy of the run on a tracking server; the run folder stays the truth."""

    mlflow: Address | None = Field(
        None,
        description="address of an MLflow server; a user and password, or a token, come from MLflow's own environment "
        "variables",
    )
    server: str | None = Field(
        None, description="another kind of server: the name of its file in runtime/drivetrain/tracking/servers"
    )
    address: Address | None = Field(None, description="where that server is")
    experiment: str | None = Field(
        None, min_length=1, max_length=250, description="experiment on the server; the job's name if absent"
    )

    @property
    def target(self) -> tuple[str, str]:
        """Kind and address of the server."""
        return (MLFLOW, self.mlflow) if self.mlflow else (self.server or "", self.address or "")

    def find_contradiction(self) -> tuple[str, str, str] | None:
        """What is wrong with the keys together: the key, what it is, what is possible; None if they name one server."""
        if self.mlflow and (self.server or self.address):
            key = "server" if self.server else "address"
            return key, "is set beside mlflow", "mlflow: ADDRESS, or server: NAME with address: ADDRESS"
        if not self.mlflow and not (self.server and self.address):
            key = "server" if self.address else "address" if self.server else "mlflow"
            return key, "is missing", "mlflow: ADDRESS, or server: NAME with address: ADDRESS"
        if self.server and self.server not in list_servers():
            return "server", f"is {self.server!r}", ", ".join(list_servers())
        return None
