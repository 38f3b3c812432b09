"""`copy.json` of a run folder: which run this is wherever it lies, and who wrote its copy last."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from drivetrain.storage.object_store import ObjectStore
from drivetrain.system.files import parse_row, read_json, write_json

FILE = "copy.json"


@dataclass(frozen=True)
class CopyRecord:
    """The identity of a run and of one process that writes its copy."""

    run: str
    """The same in the folder and in the store, so that two runs of one name are not taken for one."""
    address: str
    writer: str
    """A new one for each start."""

    def write(self, folder: Path) -> None:
        """Store it in the run folder."""
        write_json(folder / FILE, asdict(self))


def of_folder(folder: Path) -> CopyRecord | None:
    """The record of a run folder; None if it has no copy."""
    return _parse(read_json(folder / FILE))


def of_store(store: ObjectStore) -> CopyRecord | None:
    """The record of a run in a store; None if there is none.

    Raises:
        RemoteError: if the store gives no answer.
    """
    content = store.find(FILE)
    return None if content is None else _parse(parse_row(content))


def new_id() -> str:
    """Sixteen digits that nobody else has."""
    return uuid.uuid4().hex[:16]


def _parse(document: object) -> CopyRecord | None:
    if not isinstance(document, dict):
        return None
    values = [document.get(key) for key in ("run", "address", "writer")]
    return CopyRecord(*map(str, values)) if all(isinstance(value, str) for value in values) else None
