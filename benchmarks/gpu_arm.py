"""One arm of `gpu.py`, in a process of its own: the tutorial loop, or a plan, on one row.

    python benchmarks/gpu_arm.py FOLDER JOB {tutorial,plan} SECONDS

The last line is JSON. The tutorial loop is the one of every introduction: torch's DataLoader, samples prepared one by
one, fp32, the plain optimizer, `loss.item()` in every step. Network, first weights, data and order of batches are the
same as the plan's.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.utils.data import DataLoader

from runtime.data.load import load
from runtime.data.loader.batches import Batches
from runtime.errors import SpecError
from runtime.hardware import gpu_selection
from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware
from runtime.job_spec import load as job_spec
from runtime.models import inspection
from runtime.models.build import build
from runtime.plan import plan
from runtime.system.signals import Signals
from runtime.tracking.gpu_sensors import Sensors
from runtime.training import losses, optimizer, run
from runtime.training.phase_timer import PhaseTimer
from runtime.training.step_result import StepResult

WARM, SHOWN = 8, 60
"""Fewest steps before the clock starts, and steps whose loss is kept."""
Steps = Iterator[tuple[float | StepResult, int]]
"""Loss, or the result that has it, and samples of each step."""


def main() -> int:
    """Measure one arm."""
    folder, path, arm, seconds = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    job = job_spec.load(path)
    machine = gpu_selection.select_gpus(detect(folder), job.limits.gpus)
    torch.manual_seed(0)
    dataset = load(job)
    network = build(job, dataset)
    device = torch.device("cuda:0" if machine.gpu else "cpu")
    found: dict[str, Any] = {"torch": torch.__version__}
    if arm == "tutorial":
        steps: Steps = tutorial(job, dataset, network, device)
    else:
        try:
            made = plan.resolve(job, machine, inspection.inspect_workload(dataset, network.module))
        except SpecError as error:
            print(json.dumps({"impossible": error.problems[0].possible}))
            return 0
        whole = run.assemble(job, machine, made, folder, dataset, network, Signals(), PhaseTimer())
        found["plan"] = {row.name: row.value for row in made.decisions}
        steps = planned(whole)
    epoch = -(-len(dataset.train) // job.train.batch)
    print(json.dumps(found | measured(steps, machine, device, seconds, max(WARM, epoch + 4))))
    return 0


def tutorial(job: Any, dataset: Any, network: Any, device: torch.device) -> Steps:
    """The loop of every introduction."""
    model = network.module.to(device).train()
    made = optimizer.build(job.train.optimizer, model)
    goal = losses.objective(job.train.loss, dataset.heads, dataset.train.targets, job.train.class_weights)
    order = Batches(dataset.train, job.train.batch, job.train.seed)
    epoch = 0
    while True:
        for inputs, targets in DataLoader(Samples(dataset), batch_sampler=[ids.tolist() for ids in order.order(epoch)]):
            inputs, targets = [x.to(device) for x in inputs], {name: y.to(device) for name, y in targets.items()}
            made.zero_grad()
            loss = goal(model(*inputs), targets, goal.denominators(targets))
            loss.backward()  # type: ignore[no-untyped-call]
            made.step()
            yield loss.item(), len(inputs[0])
        epoch += 1


class Samples(torch.utils.data.Dataset[Any]):
    """One sample at a time, prepared on the host."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, number: int) -> Any:
        ids = torch.tensor([number]).numpy()
        split, inputs = self.dataset.train, self.dataset.prepare(self.dataset.train.gather(ids), ids, None)
        return [x[0] for x in inputs], {name: y[number] for name, y in split.targets.items()}


def planned(whole: run.Run) -> Steps:
    """The steps of a run, as the runtime's own loop does them."""
    whole.train_mode()
    before: StepResult | None = None
    while True:
        for batch in whole.batches.epoch(whole.counters.epoch):
            whole.set_rate()
            result = whole.step(whole.mixed(whole.prepared(batch, whole.counters.epoch)), whole.step_seed())
            whole.counters.step += 1
            if before:
                before.read()
            before = result
            yield result, len(batch)
        whole.counters.epoch += 1


def measured(steps: Steps, machine: Hardware, device: torch.device, seconds: float, warm: int) -> dict[str, Any]:
    """Speed, memory, utilization and the first losses; the clock starts after `warm` steps, an epoch and more, since
    its smaller last batch is new to the compiler and to cuDNN.
    """
    cuda = device.type == "cuda"
    start = time.perf_counter()
    shown = [next(steps)[0]]
    first = time.perf_counter() - start
    shown += [next(steps)[0] for _ in range(warm - 1)]
    waits = synchronized(lambda: shown.append(next(steps)[0])) if cuda else None
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    times, samples = [], 0
    with Busy(machine) as busy:
        begin = before = time.perf_counter()
        while before - begin < seconds or len(shown) < min(SHOWN, warm + 12):
            loss, count = next(steps)
            shown.append(loss)
            now = time.perf_counter()
            times.append(now - before)
            before, samples = now, samples + count
    return {
        "samples_per_second": samples / (before - begin),
        "steps": len(times),
        "median_step": statistics.median(times),
        "first_step": first,
        "losses": [x if isinstance(x, float) else x.loss for x in shown[:SHOWN]],
        "waits_per_step": waits,
        "busy": busy.mean(),
        "peak": torch.cuda.max_memory_allocated(device) if cuda else None,
        "reserved": torch.cuda.max_memory_reserved(device) if cuda else None,
    }


def synchronized(step: Callable[[], None], count: int = 3) -> float:
    """How often the host waits for the GPU in a step, as torch itself counts it."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(count):
            step()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught) / count


class Busy:
    """The utilization of the GPU, ten times a second."""

    def __init__(self, machine: Hardware) -> None:
        self.sensors, self.seen, self.stop = Sensors(machine.gpus), list[float](), threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Busy:
        self.thread.start()
        return self

    def __exit__(self, *given: object) -> None:
        self.stop.set()
        self.thread.join()
        self.sensors.close()

    def _work(self) -> None:
        while not self.stop.wait(0.1):
            percent = self.sensors.read().get("gpu_percent")
            if isinstance(percent, int | float):
                self.seen.append(float(percent))

    def mean(self) -> float | None:
        """Per cent; None without a GPU."""
        return statistics.mean(self.seen) if self.seen else None


if __name__ == "__main__":
    sys.exit(main())
