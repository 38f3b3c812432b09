"""The attempts that write one copy of a run in a store, and the checkpoints that they have sent completely.

attempts/000002.json            one object for each attempt, created only if it does not exist: the newest one writes
checkpoints/000002/step-100/    a step or best checkpoint, under the number of its attempt; its manifest is sent last

So no attempt overwrites a checkpoint of another attempt. An attempt that is not the newest stops at its next object.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError
from drivetrain.storage.object_store import ObjectStore
from drivetrain.system.console import say
from drivetrain.system.files import parse_row, to_json
from drivetrain.system.run_files import CHECKPOINTS, COPY_FILE, RunFiles, parse_suffix
from drivetrain.training.checkpoints.manifest import MANIFEST

ATTEMPTS = "attempts"
_WHOLE = re.compile(rf"{CHECKPOINTS}/(\d{{6}}/(?:step|best)-\d+)/{re.escape(MANIFEST)}")


class NewerAttempt(Exception):
    """Another process is writing the copy now."""


class Attempt:
    """An attempt of this process to write one copy, with its number."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        """Become the newest attempt.

        Args:
            folder: run folder, which is noted as the source of this copy; it may be missing.

        Raises:
            RemoteError: if the store does not answer.
            CheckpointError: if the copy belongs to another run.
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
        """Note the run's id in its folder, so that two runs of the same name are not confused."""
        RunFiles(folder).write_json(COPY_FILE, {"run": self.run})

    def check(self) -> None:
        """Check that no newer attempt has begun, before an object is written or removed.

        Raises:
            NewerAttempt: if a newer attempt has begun.
            RemoteError: if the store does not answer.
        """
        if self.store.find_head(f"{ATTEMPTS}/{self.number + 1:06}.json"):
            raise NewerAttempt


def list_attempts(store: ObjectStore) -> list[int]:
    """List the numbers of the attempts, which are consecutive."""
    names = (entry.name for entry in store.objects(ATTEMPTS))
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(rf"{ATTEMPTS}/(\d{{6}})\.json", name)))


def list_names(store: ObjectStore) -> list[str]:
    """List the objects of all checkpoints."""
    return [entry.name for entry in store.objects(CHECKPOINTS)]


def find_whole(names: Iterable[str], kind: str) -> list[str]:
    """Find the folders of complete checkpoints of a kind, step or best, sorted by attempt and then by step."""
    folders = [match[1] for match in filter(None, map(_WHOLE.fullmatch, names)) if f"/{kind}-" in match[1]]
    return sorted(folders, key=lambda folder: (folder.partition("/")[0], parse_suffix(folder)))
