"""Signals: the first one ends the run at the next safe point, the second one at once.

`Signals` is the trainer's side; `stop_early` and `forwarding` are the supervisor's.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import subprocess
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
"""Signals that a fault inside a kernel raises, by the exit code that they give."""
NOTICE = "a notice that this machine will be shut down"
"""Comes as SIGUSR1 from the thread that watches for it; the signals that follow it are no second ones."""


def word(number: int) -> str:
    """A signal by its name, and what it usually comes from."""
    inside = bool(os.environ.get("DRIVETRAIN_IMAGE"))
    origin = {
        signal.SIGINT: "Ctrl-C",
        signal.SIGHUP: "the terminal is closed",
        signal.SIGTERM: "docker stop, or Ctrl-C in docker compose" if inside else "",
    }.get(signal.Signals(number))
    return signal.Signals(number).name + (f" ({origin})" if origin else "")


class Interrupted(KeyboardInterrupt):
    """A signal came. No Exception: what others wrote, compilers above all, must not take it for a failure of theirs."""


class Signals:
    """Turns the first signal into `Interrupted`, raised where nothing can be damaged."""

    def __init__(self) -> None:
        self.received: str | None = None
        self.depth = 0
        _install(self._handle)
        signal.signal(signal.SIGUSR1, self._noticed)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received not in (None, NOTICE):
            os._exit(128 + number)
        ending, self.received = self.received == NOTICE, word(number)
        if not ending:
            self.check()

    def _noticed(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = NOTICE
            self.check()

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come and no section is being protected."""
        why = self.pending()
        if why is not None and self.depth == 0:
            raise why

    def pending(self) -> Interrupted | None:
        """What `check` would raise if no section were protected."""
        return None if self.received is None else Interrupted(f"stopped by {self.received}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A section that a signal does not break: an update, a save. `check` comes after it."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Inside such a section, a part that may be broken all the same, since what it does can be undone."""
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
        Stopped: if a signal came.
    """
    try:
        yield
    except Interrupted as why:
        raise Stopped(str(why), "", "run the same command again") from None


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """After the block signals are ignored: all is done, and Python would let one kill the process on its last steps."""
    try:
        yield
    finally:
        _install(signal.SIG_IGN)


def forget() -> None:
    """In a loader worker: a signal ends it as it ends any process."""
    faulthandler.disable()  # the trainer's file is for the trainer
    for number in WATCHED:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when our parent dies: an orphan would go on unseen."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(137)


@dataclass
class SignalForwarder:
    """The children that signals go to, and the signals that came; without children they are only noted."""

    children: Sequence[subprocess.Popen[bytes]] = ()
    sent: list[int] = field(default_factory=list)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note a signal and pass it on."""
        self.sent.append(number)
        for child in self.children:
            child.send_signal(number)


def stop_early() -> None:
    """Until there is a child, a signal ends this process with `Stopped`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(f"stopped by {word(number)}", "", "run the same command again")

    _install(stop)


@contextlib.contextmanager
def forwarding() -> Iterator[SignalForwarder]:
    """Signals go to the children that the block starts; afterwards they are ignored, for what is left is short."""
    forward = SignalForwarder()
    _install(forward.handle)
    try:
        yield forward
    finally:
        _install(signal.SIG_IGN)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Signals wait; those to a child that the block starts wait until it listens, which is when it makes `Signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)


def _install(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in WATCHED:
        signal.signal(number, handler)
