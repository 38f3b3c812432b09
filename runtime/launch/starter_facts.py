"""What only the starter of a container knows, for the records of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.launch.project import PROJECT
from runtime.supervisor import provenance
from runtime.tracking import tracker_child


def variables(client: Any, image: str, spec: Path) -> dict[str, str]:
    """Environment variables for the container.

    Args:
        client: the engine's.
        image: the name of the image that it starts.
        spec: the job file.
    """
    found = {
        provenance.IMAGE: str(client.images.get(image).id),
        provenance.COMMIT: provenance.commit(spec.absolute().parent, PROJECT / "runs") or "",
    }
    return {tracker_child.VARIABLE: "host", **{name: text for name, text in found.items() if text}}
