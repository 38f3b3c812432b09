"""Signs of life: each process says every second where it is and what it has done, so that a lost one is named within a minute.

A collective of torch waits half an hour for a process that is frozen or cut off, and then does not say which one it was. The
sign is given by a thread, so a long save or a slow batch does not silence it. A network that loses most of what is sent lets a
sign through now and then, while an exchange stands still: that is told by who waits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from drivetrain.distributed import store as stores
from drivetrain.errors import PeerError
from drivetrain.system.console import say_error

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

SIGN_INTERVAL = 1.0
"""Seconds between two signs."""
LOST_AFTER = 45.0
"""Seconds without a sign after which a process counts as lost."""
SUSPECT_AFTER = 4 * SIGN_INTERVAL
"""Seconds without a sign that tell who is gone when a connection has broken."""
ACTION = "run the same command again; it resumes from the last checkpoint; the log of that node says more"
MIN_BYTES_PER_SECOND = 1e6
"""Bytes a second below which an exchange stands still: LOST_AFTER is so much longer for what it carries."""
LEAVE_TIMEOUT = 2 * SUSPECT_AFTER
"""Seconds for which rank 0 waits at the end until the others have left."""
LEFT = "left"


class Heartbeat:
    """Gives this process's sign of life, and watches those of the others: rank 0 all, every other rank 0."""

    def __init__(self, rank: int, count: int, prefix: str = "") -> None:
        """
        Args:
            rank: of this process.
            count: of all processes.
            prefix: of the keys, so that nobody reads the signs of an earlier group of these processes.
        """
        self.rank, self.count = rank, count
        self.status: Callable[[], str] = lambda: "its start"
        """Where this process is: step and phase."""
        self.phase: Callable[[], str] = lambda: ""
        """The phase alone."""
        self.record: Callable[[], str] = lambda: ""
        """What this process has done, in one line for rank 0; called from another thread."""
        self.records: dict[int, str] = {}
        """In rank 0: the last record of every other process."""
        self.waited: dict[str, float] = {}
        """Seconds in collectives, by the phase in which they were called."""
        self._waits_since: float | None = None
        """Since when this process waits in a collective; None if it does not."""
        self._travelling = 0
        """Bytes of the collectives that have begun and not ended."""
        self._over = threading.Event()
        self._published = False
        """Whether this process has told the others who is lost; it then ends by itself, in order."""
        self._seen: dict[int, tuple[str, float]] = {}
        self._store: Store = stores.watching_store(prefix)
        self._say(0)
        self._answered = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._guard = threading.Thread(target=self._watch_store, name="heartbeat-store", daemon=True)

    def begin(self) -> None:
        """Start to watch; every other process has given its first sign by now."""
        self._answered = time.monotonic()
        self._thread.start()
        self._guard.start()

    def end(self) -> None:
        """Say that this process leaves, and watch no longer; rank 0 waits for the others, who would lose its store.

        A thread that is still in the store when Python ends aborts the process, so all wait for theirs.
        """
        self._over.set()
        self._thread.join(SIGN_INTERVAL + LEAVE_TIMEOUT)

    @contextlib.contextmanager
    def waiting(self, travels: int) -> Iterator[None]:
        """A block that begins or ends a collective; its time is added to that of the phase.

        Args:
            travels: bytes that begin to travel, or less than zero for those that have arrived at its end.
        """
        begun = self._waits_since = time.monotonic()
        self._travelling += max(0, travels)
        try:
            yield
        finally:
            self._waits_since = None
            self._travelling = max(0, self._travelling + min(0, travels))
            phase = self.phase()
            self.waited[phase] = self.waited.get(phase, 0.0) + time.monotonic() - begun

    def lost(self) -> str:
        """Who is gone, after a connection has broken: waits until the silence tells."""
        end = time.monotonic() + 2 * SUSPECT_AFTER
        while time.monotonic() < end:
            if suspect := self._find_silent(SUSPECT_AFTER):
                return suspect
            time.sleep(0.2)
        return ""

    def _watch(self) -> None:
        number = 0
        while not self._over.wait(SIGN_INTERVAL):
            number += 1
            try:
                self._say(number)
                self._look()
                self._answered = time.monotonic()
            except RuntimeError as error:
                if self._over.wait(SIGN_INTERVAL):
                    return
                where = "rank 0, the leader, is lost" if self.rank else "the store of the starter is lost"
                self._die(f"{where}: its store does not answer ({str(error).splitlines()[0][:100]})")
            if suspect := self._find_silent(LOST_AFTER) or self._stuck():
                self._die(suspect)
        with contextlib.suppress(RuntimeError):  # the leader may have left before us
            self._store.set(f"sign/{self.rank}", f"{LEFT}\n{self.record()}")
            self._await_others()

    def _await_others(self) -> None:
        """In rank 0: until all others have left, or at least know that it leaves."""
        end = time.monotonic() + LEAVE_TIMEOUT
        while self.rank == 0 and time.monotonic() < end:
            self._look()
            if all(text == LEFT for text, _ in self._seen.values()):
                return
            time.sleep(0.02)

    def _watch_store(self) -> None:
        """End this process if the store is silent: a question to a host that is frozen or cut off never returns."""
        while not self._over.wait(SIGN_INTERVAL):
            silent = time.monotonic() - self._answered
            if silent > LOST_AFTER or (silent > 2 * SUSPECT_AFTER and self._waits_too_long()):
                node, _, where = _parts(self._seen.get(0, ("0 ? - its start", 0.0))[0])
                message = f"rank 0 on node {node} is lost or cut off from node {stores.node_name()}"
                message = message if self.rank else "the store of the starter is lost"
                self._die(
                    f"{message}: its store has not answered for {silent:.0f} s, last seen in {where}", announce=False
                )

    def _say(self, number: int) -> None:
        waits = "waits" if self._waits_since else "-"
        self._store.set(f"sign/{self.rank}", f"{number} {stores.node_name()} {waits} {self.status()}\n{self.record()}")

    def _look(self) -> None:
        """Note which signs are new."""
        watched = range(1, self.count) if self.rank == 0 else (0,)
        values = self._store.multi_get([f"sign/{rank}" for rank in watched])
        for rank, value in zip(watched, values, strict=True):
            text, _, record = value.decode().partition("\n")
            if record:
                self.records[rank] = record
            if self._seen.get(rank, ("", 0.0))[0] != text:
                self._seen[rank] = (text, time.monotonic())
        if self.rank and self._seen[0][0] == LEFT:
            self._over.set()  # its store may end at any time, and nothing is exchanged any more
        if not self._published and self._store.check(["lost"]):
            self._die(self._store.get("lost").decode())

    def _find_silent(self, silence: float) -> str:
        """The process that has been silent longest, if it was so long."""
        now = time.monotonic()
        silent = [
            (since, rank, text) for rank, (text, since) in self._seen.items() if text != LEFT and now - since > silence
        ]
        if not silent:
            return ""
        since, rank, text = min(silent)
        node, _, where = _parts(text)
        return f"rank {rank} on node {node} is lost: no sign of life for {now - since:.0f} s, last seen in {where}"

    def _waits_too_long(self) -> bool:
        """Whether the present collective has taken longer than any network that is worth training over."""
        since = self._waits_since
        return since is not None and time.monotonic() - since > LOST_AFTER + self._travelling / MIN_BYTES_PER_SECOND

    def _stuck(self) -> str:
        """In rank 0: who was heard last, if all wait in a collective and nothing arrives; empty if one of them computes."""
        if self.rank or not self._waits_too_long():
            return ""
        now = time.monotonic()
        heard = {rank: now - since for rank, (_, since) in self._seen.items()}
        if any(not _parts(text)[1] and heard[rank] < 2 * SUSPECT_AFTER for rank, (text, _) in self._seen.items()):
            return ""
        rank = max(heard, key=lambda rank: heard[rank])
        node, _, where = _parts(self._seen[rank][0])
        return (
            f"an exchange stands still: all processes have waited for it for {LOST_AFTER:.0f} s, so the network loses what they send; "
            f"rank {rank} on node {node} is the one that was heard last, {heard[rank]:.0f} s ago, last seen in {where}"
        )

    def _die(self, text: str, *, announce: bool = True) -> None:
        """End this process at once: its main thread may wait in a collective that never ends."""
        if self.rank == 0 and announce:
            self.publish(text)
        say_error(PeerError(text, "all processes of the run", ACTION))
        os._exit(PeerError.exit_code)

    def give_up(self, text: str) -> None:
        """Let the others know why this process ends, and watch no longer."""
        self._over.set()
        self.publish(text)

    def publish(self, text: str) -> None:
        """Let the others know who is lost, and give them time to read it."""
        self._published = True
        with contextlib.suppress(RuntimeError):
            self._store.set("lost", text)
            time.sleep(2 * SIGN_INTERVAL)


def _parts(sign: str) -> tuple[str, bool, str]:
    """Of a sign of life: the node, whether the process waits in a collective, and where it is."""
    _, node, waits, where = sign.split(" ", 3)
    return node, waits == "waits", where
