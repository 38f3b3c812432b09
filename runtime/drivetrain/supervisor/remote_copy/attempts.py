"""The attempts that write one copy of a run in a store, and the checkpoints that they have sent whole.

attempts/000002.json            one object for each attempt, created only if it does not exist: the newest one writes
checkpoints/000002/step-100/    files of a checkpoint, below the number of the attempt that sent it
checkpoints/000002/step-100.json  written after them: the checkpoint is whole, and refers to this best one

So no attempt writes over a checkpoint of another. An attempt that is not the newest stops copying at its next object.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError
from drivetrain.storage.object_store import ObjectStore
from drivetrain.system.console import say
from drivetrain.system.files import parse_row, to_json
from drivetrain.system.run_files import CHECKPOINTS, COPY_FILE, RunFiles, parse_suffix

ATTEMPTS = "attempts"
_WHOLE = re.compile(rf"{CHECKPOINTS}/(?P<folder>\d{{6}}/step-\d+)\.json")
_BEST = re.compile(r"\d{6}/best-\d+")


class NewerAttempt(Exception):
    """Another process writes the copy now."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A whole checkpoint of the copy."""

    folder: str
    """Below checkpoints/ in the store."""
    best: str | None
    """The folder of the best checkpoint to which it refers."""

    @property
    def name(self) -> str:
        """The name in a run folder, such as step-100."""
        return self.folder.partition("/")[2]

    @property
    def step(self) -> int:
        """The step after which it was saved."""
        return parse_suffix(self.name)


class Attempt:
    """The number under which this process writes one copy."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        """Become the newest attempt.

        Args:
            folder: the run folder, which is noted as that of this copy; it may be missing.

        Raises:
            RemoteError: if the store gives no answer.
            CheckpointError: if the copy is that of another run.
        """
        self.store = store
        before = list_attempts(store)
        last: dict[str, Any] = parse_row(store.get(f"{ATTEMPTS}/{before[-1]:06}.json")) or {} if before else {}
        local_run = str(RunFiles(folder).read_object(COPY_FILE).get("run", ""))
        if before and folder.is_dir() and last.get("run") != local_run:
            raise CheckpointError(
                f"{folder} and {store.address} are two different runs of the same name",
                "one run of each name, wherever it is",
                "give the job another name, or start a new run with --new",
            )
        self.run = str(last.get("run") or local_run or uuid.uuid4().hex[:16])
        self.number = before[-1] if before else 0
        since = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"run": self.run, "host": socket.gethostname(), "process": os.getpid(), "since": since}
        is_created = False
        while not is_created:
            self.number += 1
            is_created = store.create(f"{ATTEMPTS}/{self.number:06}.json", to_json(row).encode())
        if folder.is_dir():
            self.note_in(folder)
        if last:
            say(
                f"copy: {store.address}: attempt {self.number}; attempt {before[-1]}, process {last.get('process')} on "
                f"{last.get('host')} since {last.get('since')}, sends nothing more if it still runs"
            )

    def note_in(self, folder: Path) -> None:
        """Note in a run folder which run it is, so that two runs of one name are not taken for one."""
        RunFiles(folder).write_json(COPY_FILE, {"run": self.run})

    def check(self) -> None:
        """Make sure that no newer attempt has begun, before an object is written or removed.

        Raises:
            NewerAttempt: if one has.
            RemoteError: if the store gives no answer.
        """
        if self.store.find_head(f"{ATTEMPTS}/{self.number + 1:06}.json"):
            raise NewerAttempt


def list_attempts(store: ObjectStore) -> list[int]:
    """List the numbers of the attempts, which follow each other."""
    names = (entry.name for entry in store.objects(ATTEMPTS))
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(rf"{ATTEMPTS}/(\d{{6}})\.json", name)))


def list_whole(store: ObjectStore) -> list[StoredCheckpoint]:
    """List the whole checkpoints, the newest last: those of the newest attempt, by their steps."""
    checkpoints = []
    for entry in store.objects(CHECKPOINTS):
        if match := _WHOLE.fullmatch(entry.name):
            best = str((parse_row(store.find(entry.name) or b"") or {}).get("best"))
            checkpoints.append(StoredCheckpoint(match["folder"], best if _BEST.fullmatch(best) else None))
    return sorted(checkpoints, key=lambda row: (row.folder.partition("/")[0], row.step))
