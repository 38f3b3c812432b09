"""owner.json in the copy of a run: which process writes the copy, and which checkpoints belong to it.

A start becomes the owner by one conditional put: create-only for a new copy, else over the version that it has read.
The owner publishes each finished checkpoint, and the state of the run, by another one. So a process whose copy was taken
over fails at its next publication and stops; what it had uploaded is never published. Each start uploads to a folder of
its own (checkpoints/WRITER/step-100): no two processes write the same object of a checkpoint, however late a request
of one arrives.

Nothing beats, so no owner is known to live. A start takes a copy over where it resumes from the store, on a disk that does
not have the run: a machine that is lost and made again goes on unattended, and an owner that lives after all stops. It
is refused on a disk that has the run if another disk's start owns the copy: this machine was replaced.

A copy of an earlier version has no owner.json: its checkpoints are in checkpoints/step-100, its lock is writer.json.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drivetrain.errors import Busy, CheckpointError
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor.remote_copy.copied_files import OLD_LOCK, OWNER, name_best
from drivetrain.system.console import say
from drivetrain.system.files import parse_row, to_json
from drivetrain.system.run_files import CHECKPOINTS, COPY_FILE, JOB_FILE, STATE_FILE, RunFiles
from drivetrain.system.run_records import RunState, read_integer
from drivetrain.training.checkpoints.manifest import MANIFEST

TAKE_ATTEMPTS = 10
"""To become the owner while another start publishes: each fails only if that publishes within the same few requests."""
_FOLDER = re.compile(r"(?:[0-9a-f]+/)?((?:step|best)-\d+)")
_MANIFEST = re.compile(rf"{CHECKPOINTS}/({_FOLDER.pattern})/{re.escape(MANIFEST)}")


class LostOwnership(Exception):
    """Another process owns the copy now."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint of the copy."""

    folder: str
    """Below checkpoints/ in the store."""
    best: str | None = None
    """The name of the best checkpoint to which it refers."""


@dataclass(frozen=True)
class Owner:
    """What owner.json says."""

    run: str = ""
    """The same in the folder and in the store, so that two runs of one name are not taken for one."""
    writer: str = ""
    """Another one for each start; empty if the last one has sent everything and ended."""
    host: str = "?"
    process: int = 0
    since: str = "?"
    status: str = ""
    """Of the run, as state.json has it."""
    checkpoints: Mapping[str, StoredCheckpoint] = field(default_factory=dict)
    """By name, step-100 or best-50."""

    def describe(self) -> str:
        """Process, host and start of the owner, for a message."""
        return f"process {self.process} on {self.host}, since {self.since}"


class OwnerFile:
    """The owner file of one copy, as this process has read or written it last."""

    def __init__(self, store: ObjectStore, writer: str) -> None:
        """
        Args:
            writer: the name of this start.
        """
        self.store = store
        self.writer = writer
        self.owner = Owner()
        self._revision = ""
        """Of the file in the store; empty if there is none."""
        self._is_lost = False

    def read(self) -> bool:
        """Read the file; returns whether there is a copy.

        Raises:
            RemoteError: if the store gives no answer.
            CheckpointError: if the file is damaged.
        """
        # The revision first: if the content is newer, a put over it is refused.
        head = self.store.find_head(OWNER)
        self._revision = head.revision if head else ""
        if head:
            self.owner = self._parse(self.store.get(OWNER))
            return True
        names = [entry.name for entry in self.store.objects()]
        self.owner = self._read_earlier(names) if JOB_FILE in names else Owner()
        return JOB_FILE in names

    def take(self, folder: Path) -> None:
        """Become the owner, and remove what earlier ones have left unpublished.

        Args:
            folder: the run folder, in which this start is noted; it may be missing.

        Raises:
            RemoteError: if the store gives no answer.
            Busy: if the owner is a start on another disk, and this one has the run; or another process is faster.
            CheckpointError: if the copy is that of another run.
        """
        for _ in range(TAKE_ATTEMPTS):
            previous_writer = self._try_to_take(folder)
            if previous_writer is None:
                return
            # An owner that still trains has published a checkpoint since we read the file, or has ended: no new owner.
            if self.owner.writer not in ("", previous_writer):
                break
        raise Busy(
            f"{self.store.address}: another process has begun to write this copy in this moment",
            "one owner of each copy",
            "let it train; or stop it, and call the same command again",
        )

    def _try_to_take(self, folder: Path) -> str | None:
        """Become the owner as `take` does; returns None, or who owned the copy if the file was replaced meanwhile."""
        exists, self._is_lost = self.read(), False
        run, writers = _read_record(folder)
        if self.owner.run not in ("", run) and folder.is_dir():
            raise CheckpointError(
                f"{folder} and {self.store.address} are two different runs of the same name",
                "one run of each name, wherever it is",
                "give the job another name, or start a new run with --new",
            )
        replaced = self.owner if self.owner.writer not in ("", *writers) else None
        if replaced and folder.is_dir():
            raise Busy(
                f"{self.store.address}: {replaced.describe()}, has taken over this run, which {folder} has too",
                "one owner of each copy; the disk of a machine that was replaced does not take it back by itself",
                f"wait until it has ended; or to go on here from what is in the store, move {folder} away and call the "
                "same command again: that process then stops copying; or start another run with --new",
            )
        # Listed before the put, so that nothing of a later owner is among them.
        names = [entry.name for entry in self.store.objects(CHECKPOINTS)] if exists else []
        run, since = self.owner.run or run or new_id(), datetime.now(UTC).isoformat(timespec="seconds")
        if folder.is_dir():
            # Before the put: this disk knows its start, wherever that ends.
            write_record(folder, run, [*(writer for writer in writers if writer != self.writer), self.writer])
        previous_writer = self.owner.writer
        owner = replace(
            self.owner, run=run, writer=self.writer, host=socket.gethostname(), process=os.getpid(), since=since
        )
        if not self._put(owner) and not self._adopt():
            return previous_writer
        if replaced:
            say(
                f"copy: {self.store.address} was written by {replaced.describe()}; this start resumes from it and owns "
                "it now. If that process lives, it sends nothing more"
            )
        published = tuple(f"{CHECKPOINTS}/{checkpoint.folder}/" for checkpoint in owner.checkpoints.values())
        self.store.delete([OLD_LOCK, *(name for name in names if not name.startswith(published))])
        return None

    def check(self) -> None:
        """Make sure that the copy is still ours, before an object that all starts write is written.

        Raises:
            LostOwnership: if it is not.
            RemoteError: if the store gives no answer.
        """
        head = self.store.find_head(OWNER)
        if self._is_lost or ((head is None or head.revision != self._revision) and not self._adopt()):
            raise LostOwnership

    def publish(self, owner: Owner) -> None:
        """Replace the file, and with it what belongs to the copy.

        Raises:
            LostOwnership: if another process has replaced it.
            RemoteError: if the store gives no answer.
        """
        if owner != self.owner and (self._is_lost or not (self._put(owner) or (self._adopt() and self._put(owner)))):
            raise LostOwnership

    def release(self) -> None:
        """Say in the file that this process has ended and everything is there; without an answer, the owner stays."""
        with contextlib.suppress(RemoteError, LostOwnership):
            self.publish(replace(self.owner, writer=""))

    def _put(self, owner: Owner) -> bool:
        content = to_json(asdict(owner)).encode()
        if self._revision:
            revision = self.store.replace(OWNER, content, self._revision)
        else:
            revision = self.store.create(OWNER, content)
        if revision:
            self.owner, self._revision = owner, revision
        return bool(revision)

    def _adopt(self) -> bool:
        """Read the file again: whether it is ours, at a revision of which the answer was lost."""
        self._is_lost = not self.read() or self.owner.writer != self.writer
        return not self._is_lost

    def _parse(self, content: bytes) -> Owner:
        row: Any = parse_row(content)
        try:
            checkpoints = {name: StoredCheckpoint(**entry) for name, entry in row["checkpoints"].items()}
            matches = {name: _FOLDER.fullmatch(each.folder) for name, each in checkpoints.items()}
            if any(match is None or match[1] != name for name, match in matches.items()):
                raise ValueError
            return Owner(**row | {"checkpoints": checkpoints})
        except (LookupError, TypeError, AttributeError, ValueError):
            raise CheckpointError(
                f"{self.store.address / OWNER} is damaged",
                "the file as the owner of the copy wrote it",
                "remove it: the checkpoints are then found by their manifests",
            ) from None

    def _read_earlier(self, names: list[str]) -> Owner:
        """What an owner file would say of a copy without one."""
        lock, record, state = map(self._find_object, (OLD_LOCK, COPY_FILE, STATE_FILE))
        checkpoints = {}
        for match in filter(None, map(_MANIFEST.fullmatch, names)):
            best = name_best(self._find_object(f"{CHECKPOINTS}/{match[1]}/{STATE_FILE}"))
            checkpoints[match[2]] = StoredCheckpoint(match[1], best if match[2].startswith("step-") else None)
        return Owner(
            str(record.get("run", "")),
            str(lock.get("writer", "")),
            str(lock.get("host", "?")),
            read_integer(lock, "process") or 0,
            status=RunState(state).status or "",
            checkpoints=checkpoints,
        )

    def _find_object(self, name: str) -> dict[str, object]:
        return parse_row(self.store.find(name) or b"") or {}


def _read_record(folder: Path) -> tuple[str, list[str]]:
    """The run that a folder holds, and the starts of it on this disk that wrote its copy; empty if it has none."""
    if not (record := RunFiles(folder).read_object(COPY_FILE)):
        return "", []
    return str(record.get("run", "")), list(map(str, record.get("writers") or [record.get("writer", "")]))


def write_record(folder: Path, run: str, writers: list[str]) -> None:
    """Store in a run folder which run it is, and which starts on this disk wrote its copy."""
    RunFiles(folder).write_json(COPY_FILE, {"run": run, "writers": writers})


def new_id() -> str:
    """Sixteen digits that nobody else has."""
    return uuid.uuid4().hex[:16]
