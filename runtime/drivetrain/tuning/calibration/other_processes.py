"""Compares OpenMP runtimes and allocators, which are fixed when a process starts: other processes run steps in turn
with this one.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from drivetrain.hardware.calibration import Probe
from drivetrain.hardware.facts import Hardware
from drivetrain.optimizations import Value, allocator, openmp_runtime
from drivetrain.system import child_process
from drivetrain.system.child_process import ChildEnded, Worker
from drivetrain.tuning.calibration import comparisons
from drivetrain.tuning.calibration.calibrate import default_settings, probe_command, probe_environment
from drivetrain.tuning.calibration.comparisons import Comparison
from drivetrain.tuning.calibration.timing import make_timer, time_variants

OFF: Mapping[str, Value] = {"openmp_runtime": openmp_runtime.OFF, "allocator": allocator.OFF}
COMPARED_NETWORKS = ("convolution narrow", "attention narrow", "linear narrow", "recurrent narrow")


@dataclass
class OtherProcesses:
    """Processes that each differ from this one in one setting; they wait until they are asked."""

    processes: dict[str, Worker]
    missing: list[str]

    def list_comparisons(self, hardware: Hardware) -> list[tuple[str, Comparison]]:
        """One comparison for each setting and kind of work."""
        value = default_settings(hardware)
        return [
            (f"{name} {work}", functools.partial(self._compare, name, str(value[name]), work))
            for name in self.processes
            for work in COMPARED_NETWORKS
        ]

    def _compare(self, name: str, value: str, work: str, until: float) -> list[Probe]:
        network = comparisons.list_networks(torch.device("cpu"))[work]()
        try:
            timer = make_timer(network.step, time.perf_counter)
            timings = time_variants({value: timer, "off": functools.partial(self._request_steps, name, work)}, until)
        except ChildEnded as error:
            self.missing.append(f"{name}: the process without {value} ended: {error}")
            return []
        return comparisons.make_simple_probes(timings, name, network.work, network.size, [value], "off")

    def _request_steps(self, name: str, work: str, count: int) -> float:
        """Seconds of some steps in the other process; raises ChildEnded if it has ended."""
        return float(self.processes[name].ask([work, count]))


@contextlib.contextmanager
def start_processes(hardware: Hardware, folder: Path) -> Iterator[OtherProcesses]:
    """Start a process without each library that this one has preloaded; they end with the block."""
    defaults, processes = default_settings(hardware), dict[str, Worker]()
    preloaded = [name for name in OFF if defaults[name] != OFF[name]]
    single = [name for name in OFF if name not in preloaded] if hardware.gpu is None else []
    with contextlib.ExitStack() as stack:
        for name in preloaded:
            variables = probe_environment(hardware, **{name: OFF[name]})
            # What this process has preloaded itself is not inherited.
            child_environment = {**child_process.build_environment({}), "LD_PRELOAD": "", **variables}
            command = probe_command(folder, 0.0, "--serve")
            processes[name] = Worker(command, child_environment, folder / f"{name}.log")
            stack.callback(processes[name].close)
        yield OtherProcesses(processes, [f"{name}: only one is installed" for name in single])


def serve() -> None:
    """Run the steps that are requested, and answer with their seconds."""
    answer = child_process.open_answers()
    steps_of: dict[str, Callable[[int], float]] = {}
    for work, count in child_process.read_requests():
        if work not in steps_of:
            steps_of[work] = make_timer(comparisons.list_networks(torch.device("cpu"))[work]().step, time.perf_counter)
        answer(steps_of[work](count))
