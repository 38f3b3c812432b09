"""Signal handling: the first signal ends the run at the next safe point, the second one at once.

`Signals` is for the trainer; `stop_early` and `forward_signals` are for the supervisor. `explain_kill` explains exit code 137,
after which a process cannot explain itself.
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

from drivetrain.errors import Stopped

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""A second one of these ends the trainer at once."""
SCHEDULER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Sent by schedulers before a limit. They, and SIGHUP, may come several times and before SIGTERM: none counts as second."""
HANDLED_SIGNALS = (*STOP_SIGNALS, signal.SIGHUP, *SCHEDULER_SIGNALS)
IGNORED_SIGNALS = frozenset(number for number in HANDLED_SIGNALS if signal.getsignal(number) is signal.SIG_IGN)
"""Our starter ignores these, as `nohup` and a shell's `&` do: they stay without effect, also in our children."""
SIGNAL_GROUP_SECONDS = 0.3
"""Seconds in which signals count as one: ending a session or a service sends them to every process, us and our starter."""
ABORTED_CODES = tuple(128 + number for number in STOP_SIGNALS)
"""Exit codes after a second signal."""
CRASH_EXIT_CODES = {
    128 + number: number.name
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
}
"""Signals raised by a fault inside a kernel, by exit code."""
KILLED_EXIT_CODE = 137
"""128 plus the number of SIGKILL."""


def describe_signal(number: int) -> str:
    """Return a signal's name, and its usual cause."""
    inside = bool(os.environ.get("DRIVETRAIN_IMAGE"))
    origin = {
        signal.SIGINT: "Ctrl-C",
        signal.SIGHUP: "the terminal is closed",
        signal.SIGUSR1: "a notice of the scheduler",
        signal.SIGUSR2: "a notice of the scheduler",
        signal.SIGXCPU: "the limit of CPU time",
        signal.SIGTERM: "make stop, docker stop, or Ctrl-C in docker compose" if inside else "",
    }.get(signal.Signals(number))
    return signal.Signals(number).name + (f" ({origin})" if origin else "")


class Interrupted(KeyboardInterrupt):
    """A signal has arrived; no Exception, so that compilers do not handle it as a failure."""


class Signals:
    """Turns the first signal into `Interrupted`, raised only at safe points.

    Args:
        scheduled: whether a scheduler sends the signals: it repeats SIGTERM, which then is no second wish to stop.
    """

    scheduled = False
    first: float | None = None
    """When the first of REPEATED came."""

    def __init__(self, *, scheduled: bool = False) -> None:
        self.scheduled = scheduled
        self.received: str | None = None
        self.depth = 0
        install_handler(self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in STOP_SIGNALS:
            now = time.monotonic()
            self.first = self.first or now
            if now - self.first > SIGNAL_GROUP_SECONDS and not (self.scheduled and number == signal.SIGTERM):
                self._end_at_once(number)
        if self.received is None:
            self.received = describe_signal(number)
            self.check()

    def _end_at_once(self, number: int) -> None:
        os._exit(128 + number)

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived and no section is protected."""
        interruption = self.peek()
        if interruption is not None and self.depth == 0:
            raise interruption

    def peek(self) -> Interrupted | None:
        """Return the error that `check` would raise if no section were protected."""
        return None if self.received is None else Interrupted(f"stopped by {self.received}")

    @contextlib.contextmanager
    def protect_section(self) -> Iterator[None]:
        """Let no signal interrupt the block, such as an update or a save. Call `check` after it."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextlib.contextmanager
    def allow_interruption(self) -> Iterator[None]:
        """Let signals interrupt a part of a protected section after all, since its effects can be undone."""
        depth, self.depth = self.depth, 0
        try:
            self.check()
            yield
        finally:
            self.depth = depth


@contextlib.contextmanager
def raise_stopped() -> Iterator[None]:
    """Raise `Stopped` if a signal arrives in the block."""
    try:
        yield
    except Interrupted as interruption:
        raise Stopped(str(interruption), "", "run the same command again") from None


@contextlib.contextmanager
def ignore_signals_after() -> Iterator[None]:
    """Ignore signals after the block: all work is done, and one could kill the process during its exit."""
    try:
        yield
    finally:
        ignore_signals()


def handle_as_worker() -> None:
    """Ignore all signals but SIGTERM, which the trainer sends to end this loader worker."""
    faulthandler.disable()  # the trainer's file is not for its workers
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to send SIGKILL when our parent dies; an orphan would continue unnoticed."""
    pr_set_pdeathsig = 1
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:  # macOS
        threading.Thread(target=_end_after_parent, args=[parent], daemon=True).start()
    if os.getppid() != parent:
        os._exit(137)


def _end_after_parent(parent: int) -> None:
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
    """Install a handler that ends this process with `Stopped` until there is a child."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(f"stopped by {describe_signal(number)}", "", "run the same command again")

    install_handler(stop)


@contextlib.contextmanager
def forward_signals() -> Iterator[SignalForwarder]:
    """Forward signals to the children that the block starts; afterwards ignore them, as little work is left."""
    forward = SignalForwarder()
    install_handler(forward.handle)
    try:
        yield forward
    finally:
        ignore_signals()


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Block signals; a child that is started in the block receives them once it creates `Signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)


def install_handler(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Handle the signals that end a run, except those that our starter ignores."""
    for number in HANDLED_SIGNALS:
        if number not in IGNORED_SIGNALS:
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore all signals that can be ignored, from now on."""
    install_handler(signal.SIG_IGN)


def explain_kill(victim: str) -> str:
    """Return the message in three parts about a process that was killed, but not at its memory limit."""
    return (
        f"{victim} was killed (exit {KILLED_EXIT_CODE}, SIGKILL), but not because of its memory limit\n"
        "  possible: `kill -9`, `docker kill`, `docker stop` with too short a time, or a host that ran out of memory: "
        "`dmesg | grep -i kill` names what its kernel killed\n"
        "  do:       run the same command again; it resumes from the last checkpoint"
    )
