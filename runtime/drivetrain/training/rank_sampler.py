"""Measures what this process does among those of a run; rank 0 keeps the measurements of all.

They travel once a second with the signs of life, so no step waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drivetrain.distributed.store import find_node_name
from drivetrain.tracking import rank_record
from drivetrain.tracking.rank_record import RankRecord
from drivetrain.training import profiling

if TYPE_CHECKING:
    from drivetrain.distributed.heartbeat import Heartbeat
    from drivetrain.tracking.monitor import Sample
    from drivetrain.training.run import Run


class RankSampler:
    """The measurements of one process, from now on.

    Args:
        run: of this process.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.memory_bytes = self.peak_bytes = 0
        # Each thread has a number of its own, and signs of life come from another one than the training.
        self.threads = torch.get_num_threads()
        self.heartbeat: Heartbeat | None = run.ranks.heartbeat
        if self.heartbeat:
            self.heartbeat.phase = lambda: run.clock.current_phase
            self.heartbeat.record = lambda: rank_record.record_to_text(self.measure())

    def measure(self) -> RankRecord:
        """The record of this process: its samples, seconds and memory so far."""
        run, phase_seconds = self.run, self.run.clock.phases
        waited = self.heartbeat.waited if self.heartbeat else {}
        waiting_for_others = sum(waited.get(name, 0.0) for name in profiling.STEP_PHASES)
        gpu = run.device.type == "cuda"
        return RankRecord(
            rank=run.ranks.number,
            node=find_node_name(),
            chip=torch.cuda.get_device_name(run.device) if gpu else run.hardware.cpu.model,
            threads=self.threads,
            samples=run.local_samples,
            computing=round(
                max(0.0, sum(phase_seconds.get(name, 0.0) for name in profiling.STEP_PHASES) - waiting_for_others), 3
            ),
            data=round(phase_seconds.get("input", 0.0), 3),
            others=round(waiting_for_others, 3),
            memory=self.memory_bytes,
            peak_memory=self.peak_bytes,
            gpu_memory=torch.cuda.max_memory_allocated(run.device) if gpu else 0,
        )

    def take_sample(self, sample: Sample) -> None:
        """Take the memory from a sample of the monitor; in rank 0, write the records of all processes."""
        self.memory_bytes = int(sample["rss"] or 0)
        self.peak_bytes = max(self.peak_bytes, self.memory_bytes)
        if self.heartbeat and self.run.ranks.is_rank0:
            other_records = map(rank_record.record_from_text, dict(self.heartbeat.records).values())
            records = [self.measure(), *(record for record in other_records if record)]
            rank_record.write_records(self.run.folder, sorted(records, key=lambda record: record.rank))
