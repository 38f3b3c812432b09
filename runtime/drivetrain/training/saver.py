"""Decides when a run saves checkpoints, writes them in the background if memory allows a copy, and handles a full disk.

A failed save during the run is recorded as an event and tried again. A failed save at the end of the run ends the run
with a StorageError, exit code 7.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from drivetrain.data.decoded_size import free_memory
from drivetrain.errors import StorageError
from drivetrain.job.values import parse_interval
from drivetrain.system.fault_points import fault_point
from drivetrain.system.named_folder import NamedFolder
from drivetrain.system.run_files import parse_suffix
from drivetrain.system.units import format_bytes
from drivetrain.training.checkpoints import checkpoint, run_state
from drivetrain.training.nonfinite import NotFinite, list_nonfinite
from drivetrain.training.run import Run

MAX_SAVE_SHARE = 0.02
"""Largest share of the training time for saving; if saves take longer, the interval gets longer."""
RETRY_SECONDS = 10.0
"""Seconds before a failed save is tried again."""
COPY_FACTOR = 1.5
"""Free memory that is required for a copy in memory, as a multiple of its size."""


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint to write."""

    name: str
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    state: Mapping[str, Any]
    best_step: int | None
    """Step of the best evaluation so far, whose weights must be kept; None before the first one."""
    frozen: frozenset[str]
    """Names of the parameters that are frozen now."""
    metrics_problem: str | None
    """Reason why metrics up to this step are not on disk; without them a run could not resume from the checkpoint."""


class Saver:
    """Writes the checkpoints of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.folder = NamedFolder(run.folder)
        self.kind, self.interval = parse_interval(run.job.checkpoint.every)
        self.background_save: threading.Thread | None = None
        self.last_error: StorageError | None = None
        self.unsaved_best: PendingCheckpoint | None = None
        self.save_seconds = 0.0
        self.saved_at = time.monotonic()
        self.infinite_buffers = set(list_nonfinite(run.model.named_buffers(remove_duplicate=False)))
        """Names of buffers that are infinite from the start, such as a mask; all others must stay finite."""

    def is_due(self, *, epoch_ended: bool = False) -> bool:
        """Return whether a checkpoint is due now."""
        if self.last_error is not None:
            return time.monotonic() - self.saved_at >= RETRY_SECONDS
        if self.kind == "epoch":
            return epoch_ended
        if self.kind == "steps":
            return not epoch_ended and self.run.counters.step % int(self.interval) == 0
        return time.monotonic() - self.saved_at >= max(self.interval, self.save_seconds / MAX_SAVE_SHARE)

    def check_finite(self) -> None:
        """Check all weights and buffers.

        Raises:
            NotFinite: if one of them is not finite.
        """
        state = self.run.model.state_dict()
        nonfinite = list_nonfinite((name, value) for name, value in state.items() if name not in self.infinite_buffers)
        if nonfinite:
            raise NotFinite(f"not finite: {', '.join(nonfinite[:5])}")

    def save_periodically(self) -> None:
        """Save during the run, in the background if memory allows a copy.

        Raises:
            NotFinite: if a weight is not finite; nothing is written.
        """
        with self.run.clock.phase("checkpoint"), self.run.signals.protect_section():
            start = time.monotonic()
            self.wait()
            snapshot = self._take_step_snapshot()
            if self.kind == "seconds" and self._has_memory_for_copy(snapshot):
                copied = (_copy_to_cpu(snapshot),)
                self.background_save = threading.Thread(target=self._try_to_write, args=copied, name="checkpoint")
                self.background_save.start()
            else:
                self._try_to_write(snapshot)
            self.save_seconds, self.saved_at = time.monotonic() - start, time.monotonic()

    def save_best(self, notes: Mapping[str, object]) -> None:
        """Save the weights of the best evaluation so far; `notes` are added to the state."""
        with self.run.clock.phase("checkpoint"), self.run.signals.protect_section():
            self.wait()
            self.unsaved_best = None
            self._try_to_write(self._take_snapshot(f"best-{self.run.counters.step}", notes))

    def save_final(self) -> Path:
        """Save now, in the foreground.

        Raises:
            StorageError: if the checkpoint cannot be written.
            NotFinite: if a weight is not finite.
        """
        fault_point("last checkpoint")
        with self.run.clock.phase("checkpoint"), self.run.signals.protect_section():
            self.wait()
            snapshot = self._take_step_snapshot()
            if self.unsaved_best is not None:
                self._write_and_prune(self.unsaved_best)
            return self._write_and_prune(snapshot)

    def warn_if_disk_small(self) -> None:
        """Record an event if the disk has too little space for everything that the run will save; it may be freed in time."""
        run, keep = self.run, self.run.job.checkpoint.keep
        weight_bytes = _count_bytes(run.model.state_dict()) + (_count_bytes(run.ema.average) if run.ema else 0)
        checkpoint_bytes = weight_bytes + run.job.train.optimizer.moments * sum(
            p.nbytes for p in run.step.updater.parameters
        )
        # While a checkpoint is written, the last `keep` still exist; the best one and model/ contain weights only.
        needed_bytes = (keep + 1) * checkpoint_bytes + 2 * weight_bytes
        written_bytes = sum(path.stat().st_size for path in run.checkpoints.glob("*/*.*"))
        free_bytes = shutil.disk_usage(run.folder).free
        if needed_bytes > written_bytes + free_bytes:
            run.events.add(
                "storage",
                f"{run.folder} has {format_bytes(written_bytes + free_bytes)} of space, and the run needs {format_bytes(needed_bytes)}: "
                f"{keep + 1} checkpoints of {format_bytes(checkpoint_bytes)}, the best one and the model; free disk space, or set "
                "checkpoint.keep: 1. A failed save is retried; if the last one fails, the exit code is 7",
                run.counters.step,
            )

    def _take_step_snapshot(self) -> PendingCheckpoint:
        run = self.run
        optimizer = run_state.collect_optimizer_tensors(run.model, run.optimizer)
        return self._take_snapshot(f"step-{run.counters.step}", {}, optimizer)

    def _take_snapshot(
        self, name: str, notes: Mapping[str, object], optimizer: Mapping[str, torch.Tensor] | None = None
    ) -> PendingCheckpoint:
        run = self.run
        tensors: dict[str, Mapping[str, torch.Tensor]] = {"model": run.model.state_dict()}
        if run.ema:
            tensors["ema"] = run.ema.average
        if optimizer is not None:
            tensors["optimizer"] = optimizer
        self.check_finite()
        if run.metrics:
            run.metrics.flush(sync=True)
        best_step = run.best_metric.best.step if run.best_metric.best.best is not None else None
        frozen_names = frozenset(name for name, value in run.model.named_parameters() if not value.requires_grad)
        state = {**run_state.collect_state(run), **notes}
        metrics_problem = run.metrics.problem if run.metrics else None
        return PendingCheckpoint(name, tensors, state, best_step, frozen_names, metrics_problem)

    def _has_memory_for_copy(self, snapshot: PendingCheckpoint) -> bool:
        copy_bytes = sum(_count_bytes(group) for group in snapshot.tensors.values())
        return copy_bytes * COPY_FACTOR < free_memory()

    def wait(self) -> None:
        """Wait until the save in the background is done."""
        if self.background_save is not None:
            self.background_save.join()
            self.background_save = None

    def _try_to_write(self, snapshot: PendingCheckpoint) -> None:
        """Write a checkpoint; if that fails, record an event, and keep a copy of the best weights for another try."""
        try:
            if self.unsaved_best is not None:
                self._write_and_prune(self.unsaved_best)
                self.unsaved_best = None
            self._write_and_prune(snapshot)
        except StorageError as error:
            if self.last_error is None:
                self.run.events.add(
                    "storage", f"checkpoint not saved, training continues: {error.given}", self.run.counters.step
                )
            self.last_error = error
            if snapshot.name.startswith("best-"):
                self.unsaved_best = _copy_to_cpu(snapshot)
            return
        if self.last_error is not None:
            self.run.events.add("storage", f"checkpoints are saved again: {snapshot.name}", self.run.counters.step)
        self.last_error = None

    def _write_and_prune(self, snapshot: PendingCheckpoint) -> Path:
        if snapshot.metrics_problem:
            raise StorageError(
                f"{self.run.folder / 'metrics.jsonl'}: {snapshot.metrics_problem}",
                "a folder with free space",
                "free disk space, or choose another folder with --runs DIR",
            )
        path = self._write_folder(snapshot)
        if self.run.ranks.is_rank0 and snapshot.name.startswith("step-"):
            keep, newest = self.run.job.checkpoint.keep, parse_suffix(path)
            checkpoint.prune(self.run.checkpoints, keep, snapshot.best_step, newest)
        return path

    def _write_folder(self, snapshot: PendingCheckpoint) -> Path:
        self._restore_folder_name()
        folder = self.run.checkpoints
        while True:
            try:
                return checkpoint.save(folder, snapshot.name, snapshot.tensors, snapshot.state, snapshot.frozen)
            except StorageError:
                # The folder can also be renamed while the checkpoint is written.
                if not self._restore_folder_name():
                    raise

    def _restore_folder_name(self) -> str:
        """Restore the name of the run folder; returns the name that somebody gave it, empty if it has not changed."""
        new_name = self.folder.restore()
        if new_name:
            message = NamedFolder.MESSAGE.format(new_name, self.folder.path)
            self.run.events.add("storage", message, self.run.counters.step)
        return new_name


def _count_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(t.nbytes for t in tensors.values())


def _copy_to_cpu(snapshot: PendingCheckpoint) -> PendingCheckpoint:
    """Return the checkpoint with copies of the tensors, so that training can continue while they are written."""
    tensors = {}
    for group, values in snapshot.tensors.items():
        tensors[group] = {name: value.detach().to("cpu", copy=True) for name, value in values.items()}
    return replace(snapshot, tensors=tensors)


class NonSavingRank(Saver):
    """Saver of all processes except rank 0, which saves for all."""

    def is_due(self, *, epoch_ended: bool = False) -> bool:
        """Return False, because rank 0 saves."""
        return False

    def warn_if_disk_small(self) -> None:
        """Write nothing."""

    def save_best(self, notes: Mapping[str, object]) -> None:
        """Write nothing."""

    def save_final(self) -> Path:
        """Return the folder without writing anything."""
        return self.run.checkpoints
