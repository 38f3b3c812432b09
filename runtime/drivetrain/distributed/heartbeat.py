"""Signs of life: each process writes its step and phase to the store every second, so a lost one is named within a minute.

A collective of torch waits half an hour for a process that is frozen or cut off, and its error does not name that process.
A thread writes the signs, so a long save or a slow batch does not delay them. A network that loses most packets still lets
a sign through now and then, while a collective makes no progress; this is recognized when all processes wait in it.
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
"""Seconds between two signs of a process."""
LOST_AFTER = 45.0
"""Seconds without a sign after which a process counts as lost."""
SUSPECT_AFTER = 4 * SIGN_INTERVAL
"""Seconds without a sign after which a process counts as lost if a connection has broken as well."""
RESUME_ADVICE = "run the same command again; it resumes from the last checkpoint; the log of that node says more"
MIN_BYTES_PER_SECOND = 1e6
"""Slowest network that is supported: a collective may take LOST_AFTER seconds, and its bytes divided by this."""
LEAVE_TIMEOUT = 2 * SUSPECT_AFTER
"""Seconds for which rank 0 waits at the end until the others have left."""
HAS_LEFT = "left"
"""The sign of a process that has ended in order."""


class Heartbeat:
    """Writes this process's signs of life and watches those of others: rank 0 watches all, every other process rank 0."""

    def __init__(self, rank: int, count: int, prefix: str = "") -> None:
        """
        Args:
            rank: rank of this process.
            count: number of all processes.
            prefix: prefix of the store's keys, so that signs of an earlier group of these processes are not read.
        """
        self.rank, self.count = rank, count
        self.status: Callable[[], str] = lambda: "its start"
        """Returns step and phase of this process, for messages."""
        self.phase: Callable[[], str] = lambda: ""
        """Returns the phase alone."""
        self.record: Callable[[], str] = lambda: ""
        """Returns this process's measurements as one line for rank 0; called from the watching thread."""
        self.records: dict[int, str] = {}
        """In rank 0: the last record of every other process, by rank."""
        self.waited: dict[str, float] = {}
        """Seconds in collectives, by the phase in which they were called."""
        self._waiting_since: float | None = None
        """Time at which this process began to wait in a collective; None if it does not wait."""
        self._unfinished_bytes = 0
        """Bytes of the collectives that have begun and not ended."""
        self._ended = threading.Event()
        self._published = False
        """Whether this process has told the others who is lost; it then ends by itself, in order."""
        self._signs: dict[int, tuple[str, float]] = {}
        """By rank: the last sign, and the time at which it was first read."""
        self._store: Store = stores.connect_again(prefix)
        self._write_sign(0)
        self._answered = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._guard = threading.Thread(target=self._watch_store, name="heartbeat-store", daemon=True)

    def begin(self) -> None:
        """Start to watch; every other process has written its first sign by now."""
        self._answered = time.monotonic()
        self._thread.start()
        self._guard.start()

    def end(self) -> None:
        """Announce that this process leaves, and stop watching; rank 0, which keeps the store, waits for the others.

        A thread that still uses the store when Python ends aborts the process, so this waits for the thread.
        """
        self._ended.set()
        self._thread.join(SIGN_INTERVAL + LEAVE_TIMEOUT)

    @contextlib.contextmanager
    def waiting(self, started_bytes: int) -> Iterator[None]:
        """A block that begins or ends a collective; its duration is added to `waited`.

        Args:
            started_bytes: size of the data if the block begins a collective, minus that size if it ends one.
        """
        begun_at = self._waiting_since = time.monotonic()
        self._unfinished_bytes += max(0, started_bytes)
        try:
            yield
        finally:
            self._waiting_since = None
            self._unfinished_bytes = max(0, self._unfinished_bytes + min(0, started_bytes))
            phase = self.phase()
            self.waited[phase] = self.waited.get(phase, 0.0) + time.monotonic() - begun_at

    def find_lost(self) -> str:
        """Describe the lost process after a connection has broken; waits some seconds until a process is silent."""
        end = time.monotonic() + 2 * SUSPECT_AFTER
        while time.monotonic() < end:
            if suspect := self._find_silent(SUSPECT_AFTER):
                return suspect
            time.sleep(0.2)
        return ""

    def _watch(self) -> None:
        number = 0
        while not self._ended.wait(SIGN_INTERVAL):
            number += 1
            try:
                self._write_sign(number)
                self._read_signs()
                self._answered = time.monotonic()
            except RuntimeError as error:
                if self._ended.wait(SIGN_INTERVAL):
                    return
                where = "rank 0, the leader, is lost" if self.rank else "the store of the starter is lost"
                self._abort(f"{where}: its store does not answer ({str(error).splitlines()[0][:100]})")
            if suspect := self._find_silent(LOST_AFTER) or self._describe_stalled_exchange():
                self._abort(suspect)
        with contextlib.suppress(RuntimeError):  # the leader may have left before us
            self._store.set(f"sign/{self.rank}", f"{HAS_LEFT}\n{self.record()}")
            self._await_others()

    def _await_others(self) -> None:
        """In rank 0: wait until all others have left, or at least know that it leaves."""
        end = time.monotonic() + LEAVE_TIMEOUT
        while self.rank == 0 and time.monotonic() < end:
            self._read_signs()
            if all(text == HAS_LEFT for text, _ in self._signs.values()):
                return
            time.sleep(0.02)

    def _watch_store(self) -> None:
        """End this process if the store is silent: a request to a host that is frozen or cut off never returns."""
        while not self._ended.wait(SIGN_INTERVAL):
            silence = time.monotonic() - self._answered
            if silence > LOST_AFTER or (silence > 2 * SUSPECT_AFTER and self._waits_too_long()):
                node, _, where = _parse_sign(self._signs.get(0, ("0 ? - its start", 0.0))[0])
                message = f"rank 0 on node {node} is lost or cut off from node {stores.find_node_name()}"
                message = message if self.rank else "the store of the starter is lost"
                self._abort(
                    f"{message}: its store has not answered for {silence:.0f} s, last seen in {where}", announce=False
                )

    def _write_sign(self, number: int) -> None:
        node, waits = stores.find_node_name(), "waits" if self._waiting_since else "-"
        self._store.set(f"sign/{self.rank}", f"{number} {node} {waits} {self.status()}\n{self.record()}")

    def _read_signs(self) -> None:
        """Read the signs of the watched processes, and note the time of those that are new."""
        watched = range(1, self.count) if self.rank == 0 else (0,)
        values = self._store.multi_get([f"sign/{rank}" for rank in watched])
        for rank, value in zip(watched, values, strict=True):
            text, _, record = value.decode().partition("\n")
            if record:
                self.records[rank] = record
            if self._signs.get(rank, ("", 0.0))[0] != text:
                self._signs[rank] = (text, time.monotonic())
        if self.rank and self._signs[0][0] == HAS_LEFT:
            self._ended.set()  # the store of rank 0 may end at any time, and nothing is exchanged any more
        if not self._published and self._store.check(["lost"]):
            self._abort(self._store.get("lost").decode())

    def _find_silent(self, seconds: float) -> str:
        """Describe the process that has been silent longest; empty if none was silent for that many seconds."""
        now = time.monotonic()
        silent = [
            (since, rank, text)
            for rank, (text, since) in self._signs.items()
            if text != HAS_LEFT and now - since > seconds
        ]
        if not silent:
            return ""
        since, rank, text = min(silent)
        node, _, where = _parse_sign(text)
        return f"rank {rank} on node {node} is lost: no sign of life for {now - since:.0f} s, last seen in {where}"

    def _waits_too_long(self) -> bool:
        """Whether this process has waited in a collective for longer than the slowest supported network takes."""
        since = self._waiting_since
        return (
            since is not None and time.monotonic() - since > LOST_AFTER + self._unfinished_bytes / MIN_BYTES_PER_SECOND
        )

    def _describe_stalled_exchange(self) -> str:
        """In rank 0: a message if all processes wait in a collective and nothing arrives; empty if one of them computes."""
        if self.rank or not self._waits_too_long():
            return ""
        now = time.monotonic()
        sign_ages = {rank: now - since for rank, (_, since) in self._signs.items()}
        for rank, (text, _) in self._signs.items():
            _, waits, _ = _parse_sign(text)
            if not waits and sign_ages[rank] < 2 * SUSPECT_AFTER:
                return ""
        rank = max(sign_ages, key=lambda rank: sign_ages[rank])
        node, _, where = _parse_sign(self._signs[rank][0])
        return (
            f"an exchange stands still: all processes have waited for it for {LOST_AFTER:.0f} s, so the network loses what they send; "
            f"rank {rank} on node {node} is the one that was heard last, {sign_ages[rank]:.0f} s ago, last seen in {where}"
        )

    def _abort(self, text: str, *, announce: bool = True) -> None:
        """Print the error and end this process at once: its main thread may wait in a collective that never ends."""
        if self.rank == 0 and announce:
            self.publish(text)
        say_error(PeerError(text, "all processes of the run", RESUME_ADVICE))
        os._exit(PeerError.exit_code)

    def give_up(self, text: str) -> None:
        """Tell the others why this process ends, and stop watching."""
        self._ended.set()
        self.publish(text)

    def publish(self, text: str) -> None:
        """Write into the store who is lost, and give the others time to read it."""
        self._published = True
        with contextlib.suppress(RuntimeError):
            self._store.set("lost", text)
            time.sleep(2 * SIGN_INTERVAL)


def _parse_sign(sign: str) -> tuple[str, bool, str]:
    """Return node, whether the process waits in a collective, and its step and phase, of a sign of life."""
    _, node, waits, where = sign.split(" ", 3)
    return node, waits == "waits", where
