"""Compares OpenMP runtimes and allocators, which are fixed when a process starts: other processes run steps in turn
with this one.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.hardware.calibration import Probe
from runtime.hardware.facts import Hardware
from runtime.optimizations import Value, allocator, openmp_runtime
from runtime.system import child_process
from runtime.tuning.calibration import networks
from runtime.tuning.calibration.comparisons import Comparison
from runtime.tuning.calibration.process_start import command, defaults, environment
from runtime.tuning.calibration.timing import steps, timed

OFF: Mapping[str, Value] = {"openmp_runtime": openmp_runtime.OFF, "allocator": allocator.OFF}
WORKS = ("convolution narrow", "attention narrow", "linear narrow", "recurrent narrow")


@dataclass
class OtherProcesses:
    """Processes that each differ from this one in one setting; they wait until they are asked."""

    serving: dict[str, subprocess.Popen[str]]
    missing: list[str]

    def comparisons(self, hardware: Hardware) -> list[tuple[str, Comparison]]:
        """One comparison for each setting and kind of work."""
        value = defaults(hardware)
        return [
            (f"{name} {work}", functools.partial(self._compare, name, str(value[name]), work))
            for name in self.serving
            for work in WORKS
        ]

    def _compare(self, name: str, value: str, work: str, until: float) -> list[Probe]:
        network = networks.networks(torch.device("cpu"))[work]()
        try:
            own = steps(network.step, time.perf_counter)
            found = timed({value: own, "off": functools.partial(self._ask, name, work)}, until)
        except (OSError, ValueError) as error:  # it has died
            self.missing.append(f"{name}: the process without {value} ended: {error}")
            return []
        ratio = found.ratio(value, "off")
        if ratio is None:
            return []
        return [
            Probe(
                setting=name, value=value, against="off", work=network.work, size=network.size,
                ratio=ratio.ratio, low=ratio.low, high=ratio.high, pairs=ratio.pairs,
            )
        ]  # fmt: skip

    def _ask(self, name: str, work: str, count: int) -> float:
        """Seconds of some steps in the other process.

        Raises:
            OSError, ValueError: if it has ended.
        """
        serving = self.serving[name]
        assert serving.stdin is not None
        assert serving.stdout is not None
        serving.stdin.write(f"{count} {work}\n")
        serving.stdin.flush()
        return float(serving.stdout.readline())


@contextlib.contextmanager
def started(hardware: Hardware, folder: Path) -> Iterator[OtherProcesses]:
    """Start a process without each library that this one has preloaded; they end with the block."""
    usual, serving = defaults(hardware), dict[str, subprocess.Popen[str]]()
    wanted = [name for name in OFF if usual[name] != OFF[name]]
    missing = [f"{name}: only one is installed" for name in OFF if name not in wanted] if hardware.gpu is None else []
    with contextlib.ExitStack() as stack:
        for name in wanted:
            variables = environment(hardware, **{name: OFF[name]})
            # What this process has preloaded itself is not inherited.
            given = {**child_process.surroundings({}), "LD_PRELOAD": "", **variables}
            serving[name] = stack.enter_context(_process(command(folder, 0.0, "--serve"), given))
        yield OtherProcesses(serving, missing)


@contextlib.contextmanager
def _process(words: list[str], given: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words, env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()


def serve() -> None:
    """Run the steps that are requested on standard input, `COUNT WORK` a line, and print their seconds."""
    known: dict[str, Callable[[int], float]] = {}
    for line in sys.stdin:
        count, work = line.strip().split(" ", 1)
        if work not in known:
            known[work] = steps(networks.networks(torch.device("cpu"))[work]().step, time.perf_counter)
        print(known[work](int(count)), flush=True)
