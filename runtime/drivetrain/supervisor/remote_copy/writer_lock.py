"""One writer per run in a store: an object that is created only if it is not there, and changed while its writer lives.

Clocks of machines are not compared: a lock is stale if it has not changed for as long as we have looked.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from drivetrain.errors import Busy
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.store_errors import RemoteError, Trouble
from drivetrain.system.files import parse_json

FILE = "writer.json"
HEARTBEAT_SECONDS = 10.0
"""Between two changes of a lock by its writer."""
STALE_SECONDS = 45.0
"""Without a change, after which the writer is dead."""
POLL_SECONDS = 3.0
"""Between two reads of a lock of another writer."""


@dataclass(frozen=True)
class LockRecord:
    """The lock as it lies in the store."""

    revision: str
    """Of the object; another one after each change."""
    content: dict[str, Any]
    """Empty if it cannot be parsed."""

    @property
    def writer(self) -> object:
        """Who holds the lock."""
        return self.content.get("writer")

    def describe_writer(self) -> str:
        """Process and host of the writer, for a message."""
        return f"process {self.content.get('process', '?')} on {self.content.get('host', '?')}"


class WriterLock:
    """The right to write one run in a store."""

    def __init__(self, store: ObjectStore, writer: str) -> None:
        self.store = store
        self.writer = writer
        self.lost = False
        """Whether another writer has the lock now."""
        self._revision = ""
        self._heartbeats = 0
        self._confirmed_at = -math.inf
        """When the store last confirmed that the lock is ours, by our clock."""
        self._heartbeat_lock = threading.Lock()

    def acquire(self, previous_writer: str | None, report: Callable[[str], None]) -> None:
        """Acquire the lock, after waiting until it is stale if another writer holds it.

        Args:
            previous_writer: the last writer of this very folder, which has ended, since the folder is locked by us.
            report: gets the reason for a wait.

        Raises:
            Busy: if another process writes this run.
            RemoteError: if the store gives no answer.
        """
        deadline = math.inf
        first_revision = ""
        while True:
            self._confirmed_at = time.monotonic()
            if revision := self.store.create(FILE, self._content()):
                self._revision = revision
                return
            record = self._read()
            if record is None or not record.revision:
                continue  # released between the two requests
            # Our name: an answer to our own request was lost on the way.
            if record.writer in (self.writer, previous_writer):
                return self._replace(record)
            if not first_revision:
                report(
                    f"copy: {self.store.address} was last written by {record.describe_writer()}; "
                    f"looking for {STALE_SECONDS:.0f} s whether it still is"
                )
                deadline, first_revision = time.monotonic() + STALE_SECONDS, record.revision
            elif record.revision != first_revision:
                raise self._busy(record)  # its writer lives
            elif time.monotonic() > deadline:
                return self._replace(record)
            time.sleep(POLL_SECONDS)

    def _replace(self, record: LockRecord) -> None:
        """Put our name into a lock whose writer has ended.

        Raises:
            Busy: if another process was faster.
        """
        revision = self.store.replace(FILE, self._content(), record.revision)
        if not revision:  # refused, or done although the answer was lost
            current = self._read()
            if current is None or current.writer != self.writer:
                raise self._busy(record)
            revision = current.revision
        self._revision = revision

    def adopt(self) -> None:
        """Use the lock that our starter has acquired under the same name; notes if it is lost."""
        record = self._read()
        self._revision = record.revision if record else ""
        self.lost = record is None or record.writer != self.writer

    def beat(self) -> None:
        """Change the lock, which shows that we live; notes if it is lost.

        Raises:
            RemoteError: if the store gives no answer.
        """
        with self._heartbeat_lock:
            self._beat()

    def check(self) -> None:
        """Make sure that the lock is ours before something is written; notes if it is lost.

        Raises:
            RemoteError: if it must be changed before another writer may replace it, and the store gives no answer.
        """
        if not self.lost and self._needs_heartbeat():
            # The client takes no request in a thread in which it asks for the next part of an upload.
            with ThreadPoolExecutor(1) as other_thread:
                other_thread.submit(self._beat_if_needed).result()

    def _needs_heartbeat(self) -> bool:
        return time.monotonic() - self._confirmed_at > STALE_SECONDS / 2

    def _beat_if_needed(self) -> None:
        with self._heartbeat_lock:
            if self._needs_heartbeat():  # else the thread of `beating` has done it meanwhile
                self._beat()

    def _beat(self) -> None:
        # A second attempt, since the answer to an earlier one may be lost: then the lock is ours at a newer revision.
        for _ in range(2):
            if self.lost:
                return
            self._heartbeats += 1
            began_at = time.monotonic()
            if revision := self.store.replace(FILE, self._content(), self._revision):
                self._revision, self._confirmed_at = revision, began_at
                return
            self.adopt()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Beat from another thread for the time of the block."""
        ended = threading.Event()

        def beat_until_end() -> None:
            while not ended.wait(HEARTBEAT_SECONDS) and not self.lost:
                with contextlib.suppress(RemoteError):  # a store that is away: the next beat tells who has it
                    self.beat()

        thread = threading.Thread(target=beat_until_end, name="lock", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(HEARTBEAT_SECONDS)

    def release(self) -> None:
        """Remove the lock; if the store is away, it becomes stale."""
        with contextlib.suppress(RemoteError):
            if not self.lost and (record := self._read()) and record.writer == self.writer:
                self.store.delete([FILE])

    def _read(self) -> LockRecord | None:
        """The lock in the store; None if there is none."""
        try:
            # The revision first: if the content is newer, `replace` refuses.
            revision = self.store.head(FILE).revision
            content = parse_json(self.store.get(FILE))
        except RemoteError as error:
            if error.trouble is Trouble.MISSING:
                return None
            raise
        except ValueError:
            return LockRecord(revision, {})
        return LockRecord(revision, content if isinstance(content, dict) else {})

    def _content(self) -> bytes:
        host = socket.gethostname()
        document = {"writer": self.writer, "host": host, "process": os.getpid(), "beat": self._heartbeats}
        return json.dumps(document).encode()

    def _busy(self, record: LockRecord) -> Busy:
        return Busy(
            f"{self.store.address}: {record.describe_writer()} is training this run",
            "one trainer per run, wherever it is",
            "wait for it, stop it, or start another run with --new",
        )
