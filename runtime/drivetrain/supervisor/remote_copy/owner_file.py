"""owner.json in the copy of a run: which process writes the copy, and which checkpoints belong to it.

A start becomes the owner by one conditional put: create-only for a new copy, else over the version that it has read.
The owner publishes each finished checkpoint, and the state of the run, by another one. So a process whose copy was taken
over fails at its next publication and stops; what it had uploaded is never published. Each start uploads to a folder of
its own (checkpoints/WRITER/step-100): no two processes write the same object of a checkpoint, however late a request
of one arrives.

Nothing beats, so no owner is known to live. A start takes a copy over where it resumes from the store, on a disk that does
not have the run: a machine that is lost and made again goes on unattended, and an owner that lives after all stops. It
is refused on a disk that has the run if another disk's start owns the copy: this machine was replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drivetrain.errors import Busy, CheckpointError
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.store_errors import RemoteError
from drivetrain.system.console import say
from drivetrain.system.files import parse_row, to_json
from drivetrain.system.run_files import CHECKPOINTS, COPY_FILE, JOB_FILE, RunFiles, parse_suffix

OWNER = "owner.json"
TAKE_ATTEMPTS = 10
"""To become the owner while another start publishes: each fails only if that publishes within the same few requests."""
_FOLDER = re.compile(r"[0-9a-f]+/(step|best)-\d+")


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

    def read(self) -> bool:
        """Read the file; returns whether there is a copy.

        Raises:
            RemoteError: if the store gives no answer.
            CheckpointError: if the file is damaged, or missing beside files of a run.
        """
        # The revision first: if the content is newer, a put over it is refused.
        head = self.store.find_head(OWNER)
        if head is None:
            if self.store.find_head(JOB_FILE):
                raise self._unusable_error("is missing")
            self.owner, self._revision = Owner(), ""
        elif head.revision != self._revision:
            self.owner = self._parse(self.store.get(OWNER))
            self._revision = head.revision
        return head is not None

    def take(self, folder: Path) -> None:
        """Become the owner, and remove what earlier ones have left unpublished.

        Args:
            folder: the run folder, in which this start is noted; it may be missing.

        Raises:
            RemoteError: if the store gives no answer.
            Busy: if the owner is a start on another disk, and this one has the run; or another process is faster.
            CheckpointError: if the copy is that of another run, or `read` raises it.
        """
        record = RunFiles(folder).read_object(COPY_FILE)
        local_run, local_writers = str(record.get("run", "")), list(map(str, record.get("writers", [])))
        self.read()
        for _ in range(TAKE_ATTEMPTS):
            previous = self.owner
            run, is_replaced = previous.run or local_run or new_id(), previous.writer not in ("", *local_writers)
            if folder.is_dir():
                self._check_folder(folder, local_run, is_replaced)
                # Before the put: this disk knows its start, wherever that ends.
                write_record(folder, run, [*(writer for writer in local_writers if writer != self.writer), self.writer])
            host, process, since = socket.gethostname(), os.getpid(), datetime.now(UTC).isoformat(timespec="seconds")
            if self._put(replace(previous, run=run, writer=self.writer, host=host, process=process, since=since)):
                if is_replaced:
                    say(
                        f"copy: {self.store.address} was written by {previous.describe()}; this start resumes from it "
                        "and owns it now. If that process lives, it sends nothing more"
                    )
                return
            # An owner that still trains has published a checkpoint since we read the file, or has ended: no new owner.
            if self.owner.writer not in ("", previous.writer):
                break
        raise Busy(
            f"{self.store.address}: another process has begun to write this copy in this moment",
            "one owner of each copy",
            "let it train; or stop it, and call the same command again",
        )

    def _check_folder(self, folder: Path, local_run: str, is_replaced: bool) -> None:
        """Refuse a run folder beside the copy of another run, or beside one that a start on another disk has taken over."""
        if self.owner.run not in ("", local_run):
            raise CheckpointError(
                f"{folder} and {self.store.address} are two different runs of the same name",
                "one run of each name, wherever it is",
                "give the job another name, or start a new run with --new",
            )
        if is_replaced:
            raise Busy(
                f"{self.store.address}: {self.owner.describe()}, has taken over this run, which {folder} has too",
                "one owner of each copy; the disk of a machine that was replaced does not take it back by itself",
                f"wait until it has ended; or to go on here from what is in the store, move {folder} away and call "
                "the same command again: that process then stops copying; or start another run with --new",
            )

    def check(self) -> None:
        """Make sure that the copy is still ours, before an object that all starts write is written.

        Raises:
            LostOwnership: if it is not.
            RemoteError: if the store gives no answer.
        """
        self.read()
        if self.owner.writer != self.writer:
            raise LostOwnership

    def publish(self, owner: Owner) -> None:
        """Replace the file, and remove checkpoints that do not belong to the copy; raises as `check`."""
        self.check()
        if not self._put(owner):
            raise LostOwnership

    def release(self) -> None:
        """Say in the file that this process has ended and everything is there; without an answer, the owner stays."""
        with contextlib.suppress(RemoteError, LostOwnership):
            self.publish(replace(self.owner, writer=""))

    def _put(self, owner: Owner) -> bool:
        """As `publish`; returns False, with what the file says instead, if another process has replaced it."""
        content = to_json(asdict(owner)).encode()
        # Listed before the put, so that nothing of a later owner is among them.
        names = [entry.name for entry in self.store.objects(CHECKPOINTS)]
        for _ in range(2):
            if self._revision:
                revision = self.store.replace(OWNER, content, self._revision)
            else:
                revision = self.store.create(OWNER, content)
            if revision:
                self.owner, self._revision = owner, revision
                break
            # It has changed: by another process, or by a put of ours of which the answer was lost.
            self.read()
            if self.owner.writer != self.writer:
                return False
        if self.owner != owner:
            return False
        published = tuple(f"{CHECKPOINTS}/{checkpoint.folder}/" for checkpoint in owner.checkpoints.values())
        self.store.delete(name for name in names if not name.startswith(published))
        return True

    def _parse(self, content: bytes) -> Owner:
        row: Any = parse_row(content)
        try:
            checkpoints = {name: StoredCheckpoint(**entry) for name, entry in row["checkpoints"].items()}
            for name, checkpoint in checkpoints.items():
                if not (_FOLDER.fullmatch(checkpoint.folder) and checkpoint.folder.endswith(f"/{name}")):
                    raise ValueError
            return Owner(**row | {"checkpoints": checkpoints})
        except (LookupError, TypeError, AttributeError, ValueError):
            raise self._unusable_error("is damaged") from None

    def _unusable_error(self, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{self.store.address / OWNER} {problem}, which says what belongs to this copy of a run",
            "the file as the owner of the copy wrote it; early builds wrote none",
            f"start another run with --new; or if this disk has the run, remove all of {self.store.address} with your "
            "provider's tool, and the same command sends it again",
        )


def list_steps(checkpoints: Iterable[str]) -> list[str]:
    """The names of the step checkpoints among checkpoints, oldest first."""
    return sorted((name for name in checkpoints if name.startswith("step-")), key=parse_suffix)


def write_record(folder: Path, run: str, writers: list[str]) -> None:
    """Store in a run folder which run it is, and which starts on this disk wrote its copy."""
    RunFiles(folder).write_json(COPY_FILE, {"run": run, "writers": writers})


def new_id() -> str:
    """Sixteen digits that nobody else has."""
    return uuid.uuid4().hex[:16]
