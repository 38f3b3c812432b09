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
from typing import Any

from runtime.errors import Busy
from runtime.storage.object_store import ObjectStore
from runtime.storage.store_errors import RemoteError, Trouble
from runtime.system.files import parse_json

FILE = "writer.json"
BEAT = 10.0
"""Seconds between two changes."""
STALE = 45.0
"""Seconds without a change after which its writer is dead."""
LOOK = 3.0
"""Seconds between two looks at a lock of somebody else."""


class WriterLock:
    """The right to write one run in a store."""

    def __init__(self, store: ObjectStore, writer: str) -> None:
        self.store = store
        self.writer = writer
        self.lost = False
        """Whether somebody else has taken it."""
        self._revision = ""
        self._beats = 0
        self._shown = -math.inf
        """When the lock was ours for sure, by our clock."""
        self._turn = threading.Lock()

    def acquire(self, before: str | None, tell: Callable[[str], None]) -> None:
        """Take the lock, or wait for one that may be stale.

        Args:
            before: the last writer of this very folder, which cannot live any more, since the folder is locked by us.
            tell: is told why it takes long.

        Raises:
            Busy: if somebody else writes this run.
            RemoteError: if the store gives no answer.
        """
        end = None
        seen = ""
        while True:
            self._shown = time.monotonic()
            if revision := self.store.create(FILE, self._content()):
                self._revision = revision
                return
            found, revision = self._read()
            if not revision:
                continue  # released in this moment
            if found.get("writer") in (self.writer, before) or (end and revision == seen and time.monotonic() > end):
                taken = self.store.replace(FILE, self._content(), revision)
                if taken is None and self._read()[0].get("writer") != self.writer:
                    raise self._busy(found)
                self._revision = taken or self._read()[1]
                return
            if end is None:
                tell(
                    f"copy: {self.store.address} was last written by {_who(found)}; looking for {STALE:.0f} s whether it still is"
                )
                end, seen = time.monotonic() + STALE, revision
            elif revision != seen:
                raise self._busy(found)
            time.sleep(LOOK)

    def adopt(self) -> None:
        """Take over the lock that our starter has acquired under the same name."""
        found, self._revision = self._read()
        self.lost = found.get("writer") != self.writer

    def beat(self) -> None:
        """Show that we live; notes if the lock is lost.

        Raises:
            RemoteError: if the store gives no answer.
        """
        with self._turn:
            self._beat()

    def check(self) -> None:
        """Make sure that the lock is ours before something is written; notes if it is lost.

        Raises:
            RemoteError: if it has not been changed for so long that somebody else may take it, and cannot be now.
        """
        if not self.lost and self._is_old():
            # The client takes no request in a thread in which it asks for the next part of an upload.
            with ThreadPoolExecutor(1) as other:
                other.submit(self._beat_if_old).result()

    def _is_old(self) -> bool:
        return time.monotonic() - self._shown > STALE / 2

    def _beat_if_old(self) -> None:
        with self._turn:
            if self._is_old():  # else the other thread has done it
                self._beat()

    def _beat(self) -> None:
        for _ in range(2):
            if self.lost:
                return
            self._beats += 1
            begun = time.monotonic()
            if revision := self.store.replace(FILE, self._content(), self._revision):
                self._revision, self._shown = revision, begun
                return
            self.adopt()  # an answer that was lost, or somebody else

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Beat from another thread for the time of the block."""
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(BEAT) and not self.lost:
                with contextlib.suppress(RemoteError):  # a store that is away: the next beat tells who has it
                    self.beat()

        thread = threading.Thread(target=go_on, name="lock", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(BEAT)

    def release(self) -> None:
        """Give it back; if the store is away it becomes stale."""
        with contextlib.suppress(RemoteError):
            if not self.lost and self._read()[0].get("writer") == self.writer:
                self.store.delete([FILE])

    def _read(self) -> tuple[dict[str, Any], str]:
        """Content and revision of the lock; empty if there is none."""
        try:
            # The revision first: if the content is newer, `replace` refuses.
            revision = self.store.head(FILE).revision
            found = parse_json(self.store.get(FILE))
        except RemoteError as error:
            if error.trouble is Trouble.MISSING:
                return {}, ""
            raise
        except ValueError:
            return {}, revision
        return (found if isinstance(found, dict) else {}), revision

    def _content(self) -> bytes:
        host = socket.gethostname()
        return json.dumps({"writer": self.writer, "host": host, "process": os.getpid(), "beat": self._beats}).encode()

    def _busy(self, found: dict[str, Any]) -> Busy:
        return Busy(
            f"{self.store.address}: {_who(found)} is training this run",
            "one trainer per run, wherever it is",
            "wait for it, stop it, or start another run with --new",
        )


def _who(found: dict[str, Any]) -> str:
    return f"process {found.get('process', '?')} on {found.get('host', '?')}"
