"""The double of an engine for several nodes, as far as a training sees it: it starts one command a node, and again.

The nodes are commands on this machine, each with one process and files of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.paths import ROOT


class Nodes:
    """A job on several nodes.

    Args:
        job: the job file; what lies beside it is copied to every node.
        folder: gets a folder for each node.
        count: the number of nodes.
        options: of `drivetrain train`.
    """

    def __init__(self, job: Path, folder: Path, count: int, options: Sequence[str]) -> None:
        self.homes = [folder / f"node{number}" for number in range(count)]
        self.options, self.job = options, job.name
        self.running: list[subprocess.Popen[bytes]] = []
        self.port = 0
        for home in self.homes:
            home.mkdir(parents=True)
            for file in job.parent.glob("*.*"):
                shutil.copy(file, home)

    @property
    def run(self) -> Path:
        """The run folder, which is the leader's."""
        return next((self.homes[0] / "runs").glob("*-001"))

    def start(self, environ: Mapping[int, Mapping[str, str]] | None = None) -> None:
        """Start the command on all nodes; some get more environment variables, by their number."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.running = [self.start_node(number, (environ or {}).get(number, {})) for number in range(len(self.homes))]

    def start_node(self, number: int, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the command on one node."""
        home, count = self.homes[number], str(len(self.homes))
        command = [sys.executable, "-m", "tests.faults.driver", "train", str(home / self.job), *self.options]
        ranks = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        variables = {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), **environ}
        with (home / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--runs", str(home / "runs")],
                cwd=ROOT,
                env={**os.environ, "LEDGER": str(home / "ledger.jsonl"), **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def restart(self) -> None:
        """Start every node again that was killed or has lost another one."""
        for number, node in enumerate(self.running):
            if (code := node.poll()) not in (None, 0):
                assert code in (8, -signal.SIGKILL), (code, self.log(number))
                self.running[number] = self.start_node(number, {})

    def kill(self, number: int) -> None:
        """Lose a node: all of its processes are gone at once."""
        node = self.running[number]
        if node.poll() is None:
            every = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
            for process in every:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue

    def signal(self, number: int) -> None:
        """Send a signal to the command of each node."""
        for node in self.running:
            if node.poll() is None:
                node.send_signal(number)

    def codes(self, seconds: float) -> list[int]:
        """The exit codes of all nodes."""
        end = time.monotonic() + seconds
        return [node.wait(max(0.1, end - time.monotonic())) for node in self.running]

    def end(self) -> None:
        """Leave nothing behind."""
        for number in range(len(self.running)):
            self.kill(number)
        for node in self.running:
            node.wait()

    def log(self, number: int = 0) -> str:
        """What a node printed in all attempts."""
        return (self.homes[number] / "log").read_text()

    def ledger(self, number: int = 0) -> Iterator[dict[str, Any]]:
        """The steps that a node began in all attempts, with the samples."""
        path = self.homes[number] / "ledger.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            yield json.loads(line)
