"""Signal handling: the first signal ends the run at the next safe point, the second one at once.

`Signals` is for the trainer; `stop_early` and `forwarding` are for the supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType

from runtime.errors import Stopped

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
AT_ONCE = tuple(128 + number for number in WATCHED)
"""Exit codes after a second signal."""
CRASHES = {
    128 + number: number.name
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
}
"""Signals raised by a fault inside a kernel, by exit code."""
NOTICE = "a notice that this machine will be shut down"
"""Reported for SIGUSR1 from the thread that polls for a preemption notice; signals that follow do not count as
second.
"""


def signal_name(number: int) -> str:
    """A signal's name, and its usual cause."""
    inside = bool(os.environ.get("DRIVETRAIN_IMAGE"))
    origin = {
        signal.SIGINT: "Ctrl-C",
        signal.SIGHUP: "the terminal is closed",
        signal.SIGTERM: "make stop, docker stop, or Ctrl-C in docker compose" if inside else "",
    }.get(signal.Signals(number))
    return signal.Signals(number).name + (f" ({origin})" if origin else "")


class Interrupted(KeyboardInterrupt):
    """A signal has arrived. Not an Exception, so that other code, above all compilers, does not handle it as a
    failure.
    """


class Signals:
    """Turns the first signal into `Interrupted`, raised only at safe points.

    Args:
        scheduled: whether a scheduler sends the signals: it repeats SIGTERM, which then is no second wish to stop.
    """

    def __init__(self, *, scheduled: bool = False) -> None:
        self.scheduled = scheduled
        self.received: str | None = None
        self.depth = 0
        _install(self._handle)
        signal.signal(signal.SIGUSR1, self._noticed)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received not in (None, NOTICE):
            if self.scheduled and number == signal.SIGTERM:
                return
            os._exit(128 + number)
        ending, self.received = self.received == NOTICE, signal_name(number)
        if not ending:
            self.check()

    def _noticed(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = NOTICE
            self.check()

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived and no section is protected."""
        why = self.pending()
        if why is not None and self.depth == 0:
            raise why

    def pending(self) -> Interrupted | None:
        """What `check` would raise if no section were protected."""
        return None if self.received is None else Interrupted(f"stopped by {self.received}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A section that no signal interrupts, such as an update or a save. Call `check` after it."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """A part of a protected section that may be interrupted after all, since its effects can be undone."""
        depth, self.depth = self.depth, 0
        try:
            self.check()
            yield
        finally:
            self.depth = depth


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """A block that a signal ends with `Stopped`.

    Raises:
        Stopped: if a signal arrived.
    """
    try:
        yield
    except Interrupted as why:
        raise Stopped(str(why), "", "run the same command again") from None


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Ignore signals after the block: all work is done, and Python would let one kill the process during its exit."""
    try:
        yield
    finally:
        _install(signal.SIG_IGN)


def forget() -> None:
    """Restore default signal handling, for loader workers."""
    faulthandler.disable()  # the trainer's file is not for its workers
    for number in WATCHED:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


def die_with(parent: int) -> None:
    """Ask the kernel to send SIGKILL when our parent dies; an orphan would continue unnoticed."""
    pr_set_pdeathsig = 1
    if prctl := getattr(ctypes.CDLL(None), "prctl", None):
        prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:  # macOS
        threading.Thread(target=_end_without, args=[parent], daemon=True).start()
    if os.getppid() != parent:
        os._exit(137)


def _end_without(parent: int) -> None:
    """End this process within a second of its parent's death, where the kernel does not."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(137)


@dataclass
class SignalForwarder:
    """Forwards signals to children and records them; without children they are only recorded."""

    children: Sequence[subprocess.Popen[bytes]] = ()
    sent: list[int] = field(default_factory=list)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record a signal and forward it."""
        self.sent.append(number)
        for child in self.children:
            child.send_signal(number)


def stop_early() -> None:
    """Until there is a child, a signal ends this process with `Stopped`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(f"stopped by {signal_name(number)}", "", "run the same command again")

    _install(stop)


@contextlib.contextmanager
def forwarding() -> Iterator[SignalForwarder]:
    """Forward signals to the children that the block starts; afterwards ignore them, as little work is left."""
    forward = SignalForwarder()
    _install(forward.handle)
    try:
        yield forward
    finally:
        _install(signal.SIG_IGN)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Block signals; a child that is started in the block receives them once it creates `Signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)


def _install(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in WATCHED:
        signal.signal(number, handler)
