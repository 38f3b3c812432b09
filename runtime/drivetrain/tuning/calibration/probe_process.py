"""The process of `calibrate`: python -m drivetrain.tuning.calibration.probe_process FOLDER SECONDS [--first WORK] [--serve]

FOLDER holds hardware.json; calibration.json is written to it after every comparison, so that the parent can end this
process at any time. With --serve, the process runs steps that another one requests: it was started under another OpenMP
runtime or allocator.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from drivetrain.hardware import calibration_file
from drivetrain.hardware import facts as hardware
from drivetrain.hardware.calibration import Calibration, Probe
from drivetrain.hardware.cgroup import ProcessCgroup
from drivetrain.hardware.facts import Hardware
from drivetrain.optimizations import Value, allocator, cpu_threads, openmp_runtime
from drivetrain.plan import evidence
from drivetrain.system import child_process, cpu_starvation
from drivetrain.system.child_process import ChildEnded, Worker
from drivetrain.system.files import read_json, write_json
from drivetrain.training.phase_timer import process_seconds
from drivetrain.tuning.calibration import comparisons
from drivetrain.tuning.calibration.calibrate import default_settings, probe_command, probe_environment
from drivetrain.tuning.calibration.comparisons import Comparison, list_comparisons, list_thread_comparisons
from drivetrain.tuning.paired_timing import make_timer, time_variants

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
            without = self.processes[name]
            timings = time_variants({value: timer, "off": lambda count: float(without.ask([work, count]))}, until)
        except ChildEnded as error:
            self.missing.append(f"{name}: the process without {value} ended: {error}")
            return []
        return comparisons.make_simple_probes(timings, name, network.work, network.size, [value], "off")


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


def main() -> int:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--first", default="", help="the kind of work that is compared first")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    machine = hardware.from_json(read_json(options.folder / "hardware.json"))
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    if options.serve:
        torch.set_num_threads(cpu_threads.threads_of(machine))
        serve()
        return 0
    start_seconds = process_seconds()
    with start_processes(machine, options.folder) as others:
        session = Session(
            machine,
            start_seconds,
            lambda result: write_json(options.folder / "calibration.json", asdict(result)),
        )
        session.run(options.seconds - start_seconds, others, options.first)
    return 0


@dataclass
class Session:
    """One calibration while it is made.

    Args:
        spent: seconds that the process has taken before.
        keep: is handed the calibration so far after every comparison.
    """

    machine: Hardware
    seconds_before: float
    store: Callable[[Calibration], None]
    calibration: Calibration = field(init=False)
    start: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.waited_before = _WaitCounters.now()
        self.calibration = Calibration(
            key=calibration_file.compute_key(self.machine),
            date=evidence.format_date(),
            seconds=0.0,
            waited=0.0,
            probes=(),
        )

    def run(self, seconds: float, other_libraries: OtherProcesses, first: str = "") -> Calibration:
        """Make all comparisons for which there is time.

        Args:
            seconds: the time limit.
            other_libraries: processes under another OpenMP runtime or allocator.
            first: the kind of work that is compared first, in case the time does not suffice.
        """
        machine, deadline = self.machine, self.start + seconds
        on_gpu = machine.gpu is not None
        device = torch.device("cuda" if on_gpu else "cpu")
        torch.set_num_threads(1)
        quiet_machine_comparisons = [] if on_gpu else list(list_thread_comparisons(machine))
        quiet_machine_comparisons += other_libraries.list_comparisons(machine)
        share = seconds * (0.7 if quiet_machine_comparisons else 1.0)
        ordered = sorted(list_comparisons(machine, device), key=lambda row: not row[0].startswith(first))
        self._make_all(ordered, self.start + share, measure_waits=True)
        self._update(missing=(*self.calibration.missing, *other_libraries.missing))
        if quiet_machine_comparisons and self.calibration.is_busy:
            busy = f"threads, OpenMP runtimes and allocators: {self.calibration.disturbance}"
            self._update(missing=(*self.calibration.missing, busy))
        else:
            self._make_all(quiet_machine_comparisons, deadline, measure_waits=False)
        return self.calibration

    def _make_all(self, comparisons: Sequence[tuple[str, Comparison]], deadline: float, *, measure_waits: bool) -> None:
        """Make some comparisons, with equal shares of the time; those on one thread measure how long it waits."""
        for number, (name, compare) in enumerate(comparisons):
            now = time.monotonic()
            probes = compare(now + (deadline - now) / (len(comparisons) - number)) if now < deadline else []
            reason = "too slow to compare within the time" if now < deadline else "no time left"
            not_measured = () if probes else (f"{name}: {reason}",)
            changes = {
                "probes": (*self.calibration.probes, *probes),
                "missing": (*self.calibration.missing, *not_measured),
            }
            # After each one: at its time limit this process is killed, and what is stored by then stays.
            self._update(**changes, **(self.waited_before.compute_shares() if measure_waits else {}))

    def _update(self, **changes: object) -> None:
        seconds_spent = round(self.seconds_before + time.monotonic() - self.start, 1)
        self.calibration = replace(self.calibration, seconds=seconds_spent, **changes)  # type: ignore[arg-type]
        self.store(self.calibration)


@dataclass(frozen=True)
class _WaitCounters:
    """The counters of waiting for a CPU at one moment, in seconds."""

    waited: float
    throttled: float
    at: float

    @classmethod
    def now(cls) -> _WaitCounters:
        """The counters now."""
        waited = (cpu_starvation.read_waited_seconds() or 0.0) + (cpu_starvation.read_stolen_seconds() or 0.0)
        return cls(waited, ProcessCgroup().read_throttled_seconds() or 0.0, time.monotonic())

    def compute_shares(self) -> dict[str, float]:
        """`waited` and `throttled`: shares of the time since then that this process, on one thread, had no CPU."""
        now = _WaitCounters.now()
        span = max(1e-9, now.at - self.at)
        waited = min(1.0, max(0.0, (now.waited - self.waited) / span))
        # The kernel adds up the throttled time of every CPU.
        throttled = min(waited, max(0.0, (now.throttled - self.throttled) / span))
        return {"waited": round(waited, 3), "throttled": round(throttled, 3)}


if __name__ == "__main__":
    raise SystemExit(main())
