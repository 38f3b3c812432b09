"""Race: contenders as live processes that take turns; those that wait are stopped, with all their workers."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from drivetrain.system.signals import die_with_parent


class Failed(Exception):
    """A contender that has died; the text is the last thing it said."""


@dataclass
class Contender:
    """A process that does steps by order.

    Args:
        name: in the table.
        command: that starts it.
        environment: its variables.
        log: where it may print.
        seconds: of a block.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    seconds: float
    rates: list[float] = field(default_factory=list)
    """Samples per second, by block."""
    told: dict[str, Any] = field(default_factory=dict)
    """Its last answer."""
    peak: int = 0
    """Bytes at most of the process and its workers."""
    count: int = 1

    def stand(self) -> dict[str, Any]:
        """Start it and wait until it stands; its first answer.

        Raises:
            Failed: if it does not come so far.
        """
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        first = self._answer()
        self._stop()
        self._size()
        return first

    def warm_up(self) -> None:
        """A block that does not count, and from which the next ones get their size.

        Raises:
            Failed: if it has died.
        """
        self.block()
        self.rates.clear()
        self._size()

    def _size(self) -> None:
        self.count = max(1, round(self.seconds * self.told["steps"] / self.told["seconds"]))

    def block(self) -> None:
        """One block; its rate is kept.

        Raises:
            Failed: if it has died.
        """
        assert self.child.stdin is not None
        os.killpg(self.child.pid, signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(f"{self.count}\n".encode())
            self.child.stdin.flush()
        told = self._answer()
        self._stop()
        self.rates.append(told["samples"] / told["seconds"])

    def close(self) -> None:
        """End it."""
        if hasattr(self, "child"):
            self.peak = _peak(self.child.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            for pipe in (self.child.stdin, self.child.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _stop(self) -> None:
        os.killpg(self.child.pid, signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            self.child.wait()
            raise Failed(f"{self.name}: {last_words(self.log)}")
        self.told = self.told | json.loads(line)
        return self.told


def last_words(log: Path) -> str:
    """The last line of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else "ended without a word"


def _peak(pid: int) -> int:
    """Bytes at most of a process and of those it started, each counted alone."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
                total += next((int(x.split()[1]) << 10 for x in status.splitlines() if x.startswith("VmHWM:")), 0)
    return total
