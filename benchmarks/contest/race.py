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


class ContenderError(Exception):
    """A contender has died; the message is the last line of its log."""


@dataclass
class Contender:
    """A process that does steps by order.

    Args:
        name: in the table.
        command: that starts it.
        environment: its variables.
        log: where it may print.
        block_seconds: about as long as a block takes.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    block_seconds: float
    rates: list[float] = field(default_factory=list)
    """Samples per second, by block."""
    answer: dict[str, Any] = field(default_factory=dict)
    """Its last answer."""
    peak_memory: int = 0
    """Bytes at most of the process and its workers."""
    steps: int = 1

    def start(self) -> dict[str, Any]:
        """Start it and wait until it is ready; returns its first answer.

        Raises:
            ContenderError: if it dies before that.
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
        answer = self._read_answer()
        self._stop()
        self._set_steps()
        return answer

    def warm_up(self) -> None:
        """A block that does not count, and from which the next ones get their size.

        Raises:
            ContenderError: if it has died.
        """
        self.run_block()
        self.rates.clear()
        self._set_steps()

    def _set_steps(self) -> None:
        self.steps = max(1, round(self.block_seconds * self.answer["steps"] / self.answer["seconds"]))

    def run_block(self) -> None:
        """One block; its rate is kept.

        Raises:
            ContenderError: if it has died.
        """
        assert self.child.stdin is not None
        os.killpg(self.child.pid, signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(f"{self.steps}\n".encode())
            self.child.stdin.flush()
        answer = self._read_answer()
        self._stop()
        self.rates.append(answer["samples"] / answer["seconds"])

    def close(self) -> None:
        """End it."""
        if hasattr(self, "child"):
            self.peak_memory = _measure_peak_memory(self.child.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            for pipe in (self.child.stdin, self.child.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _stop(self) -> None:
        os.killpg(self.child.pid, signal.SIGSTOP)

    def _read_answer(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            self.child.wait()
            raise ContenderError(f"{self.name}: {read_last_line(self.log)}")
        self.answer = self.answer | json.loads(line)
        return self.answer


def read_last_line(log: Path) -> str:
    """The last line of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else "ended without a word"


def _measure_peak_memory(pid: int) -> int:
    """Bytes at most of a process and of those it started, each counted alone."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
                total += next(
                    (int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), 0
                )
    return total
