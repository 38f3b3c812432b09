"""Measures the time of a training by phase of a step and by process, and traces a few steps.

Nothing here changes the computation, so the run stays bit-identical.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from drivetrain.distributed import store as stores
from drivetrain.distributed.store import find_node_name
from drivetrain.tracking import rank_record
from drivetrain.tracking.monitor import Sample
from drivetrain.tracking.rank_record import RankRecord
from drivetrain.training.run import Run

TRACE_FILE = "trace.json.gz"
WARMUP_STEPS = 10
"""Number of steps before profiling: the first steps load kernels, fill caches and compile."""
PROFILED_STEPS = 5
"""Number of profiled steps."""


class Profiler:
    """Counts steps, and profiles some of them."""

    def __init__(self, run: Run) -> None:
        self.run, self.device = run, run.device.type
        self.steps_done = 0
        self.profile: Any = None
        # A short run is profiled from its second step on.
        self.warmup_steps = min(WARMUP_STEPS, max(1, run.total_steps - run.counters.step - PROFILED_STEPS))

    def step(self) -> None:
        """Count a step, and start or end profiling; must be called after every step."""
        self.steps_done += 1
        if self.steps_done == self.warmup_steps:
            from torch.profiler import ProfilerActivity, profile

            kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device == "cuda" else [])
            self.profile = profile(activities=kinds)
            self.profile.start()
        elif self.steps_done == self.warmup_steps + PROFILED_STEPS:
            self.close()

    def close(self) -> None:
        """Stop profiling if it is active, and write the trace; a failure is only recorded as an event."""
        if self.profile is None:
            return
        profile, self.profile = self.profile, None
        profile.stop()
        steps = self.steps_done - self.warmup_steps
        try:
            profile.export_chrome_trace(str(self.run.folder / TRACE_FILE))
            text = f"{steps} steps traced: {TRACE_FILE} opens in Perfetto (https://ui.perfetto.dev)"
        except OSError as error:
            text = f"the trace is incomplete: {error}"
        self.run.events.add("trace", text, self.run.counters.step)


STEP_PHASES = ("forward", "train", "optimizer", "compile")
"""Phases of a step. `train` includes everything else: backward, loss, preprocessing, records."""


def split_step_time(run: Run) -> None:
    """Let the timer of a run split the time of its steps into forward, backward, update and compilation."""
    # On a GPU calls return before the computation ends.
    if run.device.type != "cpu":
        return
    run.step.forward.phase = run.step.updater.phase = StepPhases(run).phase


class StepPhases:
    """Counts parts of a training step as separate phases; an evaluation stays one phase."""

    def __init__(self, run: Run) -> None:
        self.clock = run.clock
        self.compiles_next = run.plan.value("compile") is not False

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Return a context that times a part of a step by its name."""
        if self.clock.open_phases[-1:] != ["train"]:
            return contextlib.nullcontext()
        # The first forward pass counts as compilation.
        if self.compiles_next and name == "forward":
            self.compiles_next = False
            name = "compile"
        return self.clock.phase(name)


class RankSampler:
    """Measures one process from now on; rank 0 collects the measurements of all processes.

    They are sent through the store whenever the monitor takes a sample, so no step waits for them.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.memory_bytes = self.peak_bytes = 0
        # torch's thread count is a setting of each thread, and samples are taken outside the training thread.
        self.threads = torch.get_num_threads()
        run.ranks.waits.phase = lambda: run.clock.current_phase
        self.store = stores.connect_again() if run.ranks.count > 1 else None

    def measure(self) -> RankRecord:
        """Measure the record of this process: its samples, seconds and memory so far."""
        run, phase_seconds = self.run, self.run.clock.phases
        waiting_for_others = sum(run.ranks.waits.seconds.get(name, 0.0) for name in STEP_PHASES)
        gpu = run.device.type == "cuda"
        return RankRecord(
            rank=run.ranks.number,
            node=find_node_name(),
            chip=torch.cuda.get_device_name(run.device) if gpu else run.hardware.cpu.model,
            threads=self.threads,
            samples=run.local_samples,
            computing=round(
                max(0.0, sum(phase_seconds.get(name, 0.0) for name in STEP_PHASES) - waiting_for_others), 3
            ),
            data=round(phase_seconds.get("input", 0.0), 3),
            others=round(waiting_for_others, 3),
            memory=self.memory_bytes,
            peak_memory=self.peak_bytes,
            gpu_memory=torch.cuda.max_memory_allocated(run.device) if gpu else 0,
        )

    def send(self) -> None:
        """Send the record of this process to rank 0; do nothing in rank 0."""
        if self.store is not None and not self.run.ranks.is_rank0:
            # The process that runs the store may have ended.
            with contextlib.suppress(RuntimeError):
                self.store.set(f"record/{self.run.ranks.number}", rank_record.record_to_text(self.measure()))

    def take_sample(self, sample: Sample) -> None:
        """Read the memory from a sample of the monitor, and send the record; rank 0 writes the records of all ranks."""
        self.memory_bytes = int(sample["process_memory"] or 0)
        self.peak_bytes = max(self.peak_bytes, self.memory_bytes)
        self.send()
        ranks, store = self.run.ranks, self.store
        if store is None or not ranks.is_rank0:
            return
        # The process that runs the store may have ended.
        with contextlib.suppress(RuntimeError):
            keys = [f"record/{rank}" for rank in range(1, ranks.count)]
            texts = [store.get(key).decode() for key in keys if store.check([key])]
            records = [self.measure(), *filter(None, map(rank_record.record_from_text, texts))]
            rank_record.write_records(self.run.folder, sorted(records, key=lambda record: record.rank))
