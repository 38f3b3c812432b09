"""Decides when to save, writes in the background if memory allows a copy, and handles a full disk.

A failed save during the run is recorded as an event and tried again. A failed save at the end of the run ends it with a
StorageError, exit 7.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from drivetrain.distributed.sharded_tensor import is_sharded, local_state
from drivetrain.errors import StorageError
from drivetrain.hardware import cgroup
from drivetrain.job.train import Adam, Optimizer, Sgd
from drivetrain.job.values import parse_interval
from drivetrain.system.fault_points import fault_point
from drivetrain.system.named_folder import NamedFolder
from drivetrain.system.units import format_bytes
from drivetrain.training import agreement
from drivetrain.training.checkpoints import checkpoint, rank_checkpoints, run_state
from drivetrain.training.nonfinite import Fp16Collapse, NotFinite, not_finite
from drivetrain.training.run import Run

MAX_TIME_SHARE = 0.02
"""Largest share of the training time for saving; beyond it the interval is stretched."""
RETRY_AFTER = 10.0
"""Seconds before a failed save is tried again."""
COPY_HEADROOM = 1.5
"""Free memory that a copy requires, as a multiple of its size."""


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that is yet to be written."""

    name: str
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    state: Mapping[str, Any]
    best: int | None
    """Step of the best evaluation so far, whose weights must be kept."""
    frozen: frozenset[str]
    """Parameters that do not train now."""
    trouble: str | None
    """Why metrics up to this step are not on disk; a checkpoint without them could not be resumed from."""


class Saver:
    """Writes the checkpoints of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.folder = NamedFolder(run.folder)
        self.kind, self.every = parse_interval(run.job.checkpoint.every)
        self.thread: threading.Thread | None = None
        self.failed: StorageError | None = None
        self.unsaved_best: PendingCheckpoint | None = None
        self.cost = 0.0
        self.last = time.monotonic()
        self.infinite = set(not_finite(run.model.named_buffers(remove_duplicate=False)))
        """Buffers that the network built so, such as a mask of minus infinity; all others must stay finite."""

    def due(self, *, epoch_ended: bool = False) -> bool:
        """Whether a checkpoint is due now."""
        if self.failed is not None:
            return time.monotonic() - self.last >= RETRY_AFTER
        if self.kind == "epoch":
            return epoch_ended
        if self.kind == "steps":
            return not epoch_ended and self.run.counters.step % int(self.every) == 0
        return time.monotonic() - self.last >= max(self.every, self.cost / MAX_TIME_SHARE)

    def check(self) -> None:
        """Check all weights and buffers.

        Raises:
            NotFinite: if one of them is not finite.
        """
        state = local_state(self.run.model)
        wrong = not_finite((name, value) for name, value in state.items() if name not in self.infinite)
        if wrong:
            raise NotFinite(f"not finite: {', '.join(wrong[:5])}")

    def periodic(self) -> None:
        """Save during the run; in the background if memory allows a copy.

        Raises:
            NotFinite: if a weight is not finite; nothing is written then.
        """
        with self.run.clock.phase("checkpoint"), self.run.signals.held():
            start = time.monotonic()
            self.wait()
            snapshot = self._step_snapshot()
            if self.kind == "seconds" and self._has_room(snapshot):
                self._start(_copy(snapshot))
            else:
                self._try(snapshot)
            self.cost, self.last = time.monotonic() - start, time.monotonic()

    def save_together(self, flush: Callable[[], None]) -> None:
        """Save after all processes have agreed to continue, if they have to save together; nothing here.

        Args:
            flush: records the steps so far.
        """

    def end_together(self) -> None:
        """Save at the end of the training while all processes are there, if they have to; nothing here."""

    def best(self, notes: Mapping[str, object]) -> None:
        """Save the weights of the best evaluation so far."""
        with self.run.clock.phase("checkpoint"), self.run.signals.held():
            self.wait()
            self.unsaved_best = None
            self._try(self._snapshot(f"best-{self.run.counters.step}", notes))

    def final(self) -> Path:
        """Save now, in the foreground.

        Raises:
            StorageError: if that is not possible.
            NotFinite: if a weight is not finite.
        """
        fault_point("last checkpoint")
        with self.run.clock.phase("checkpoint"), self.run.signals.held():
            self.wait()
            snapshot = self._step_snapshot()
            if self.unsaved_best is not None:
                self._write(self.unsaved_best)
            return self._write(snapshot)

    def foresee(self) -> None:
        """Report early if the disk has no space for all that the run will save; only an event, since space may be
        freed.
        """
        run, keep = self.run, self.run.job.checkpoint.keep
        weights = _bytes(run.model.state_dict()) + (_bytes(run.ema.average) if run.ema else 0)
        checkpoint_size = weights + moments(run.job.train.optimizer) * sum(
            p.numel() * p.element_size() for p in run.step.parameters
        )
        # While a checkpoint is written, the last ones still exist; the best one and model/ contain weights only.
        need = (keep + 1) * checkpoint_size + 2 * weights
        written_size = sum(path.stat().st_size for path in run.checkpoints.glob("*/*.*"))
        free = shutil.disk_usage(run.folder).free
        if need > written_size + free:
            run.events.add(
                "storage",
                f"{run.folder} has {format_bytes(written_size + free)} of space, and the run needs {format_bytes(need)}: "
                f"{keep + 1} checkpoints of {format_bytes(checkpoint_size)}, the best one and the model; free disk space, or set "
                "checkpoint.keep: 1. A failed save is retried; if the last one fails, the exit code is 7",
                run.counters.step,
            )

    def _step_snapshot(self) -> PendingCheckpoint:
        run = self.run
        return self._snapshot(f"step-{run.counters.step}", {}, run_state.optimizer_tensors(run.model, run.optimizer))

    def _snapshot(
        self, name: str, notes: Mapping[str, object], optimizer: Mapping[str, torch.Tensor] | None = None
    ) -> PendingCheckpoint:
        run = self.run
        tensors: dict[str, Mapping[str, torch.Tensor]] = {"model": run.model.state_dict()}
        if run.ema:
            tensors["ema"] = run.ema.average
        if optimizer is not None:
            tensors["optimizer"] = optimizer
        self._check_before_saving()
        if run.metrics:
            run.metrics.flush(sync=True)
        best = run.watch.best.step if run.watch.best.best is not None else None
        frozen = frozenset(name for name, value in run.model.named_parameters() if not value.requires_grad)
        state = {**run_state.collect_state(run), **notes}
        return PendingCheckpoint(name, tensors, state, best, frozen, run.metrics.trouble if run.metrics else None)

    def _check_before_saving(self) -> None:
        self.check()

    def _has_room(self, snapshot: PendingCheckpoint) -> bool:
        copy = sum(_bytes(group) for group in snapshot.tensors.values())
        room = cgroup.read_limits(Path("/")).room
        free = psutil.virtual_memory().available
        return copy * COPY_HEADROOM < min(free, room if room is not None else free)

    def _start(self, snapshot: PendingCheckpoint) -> None:
        self.thread = threading.Thread(target=self._try, args=(snapshot,), name="checkpoint")
        self.thread.start()

    def wait(self) -> None:
        """Wait until the save in the background is done."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def _try(self, snapshot: PendingCheckpoint) -> None:
        """Write a checkpoint; on failure, record it and keep the weights of a best evaluation for another try."""
        try:
            if self.unsaved_best is not None:
                self._write(self.unsaved_best)
                self.unsaved_best = None
            self._write(snapshot)
        except StorageError as error:
            if self.failed is None:
                self.run.events.add(
                    "storage", f"checkpoint not saved, training continues: {error.given}", self.run.counters.step
                )
            self.failed = error
            if snapshot.name.startswith("best-"):
                self.unsaved_best = _copy(snapshot)
            return
        if self.failed is not None:
            self.run.events.add("storage", f"checkpoints are saved again: {snapshot.name}", self.run.counters.step)
        self.failed = None

    def _write(self, snapshot: PendingCheckpoint) -> Path:
        if snapshot.trouble:
            raise StorageError(
                f"{self.run.folder / 'metrics.jsonl'}: {snapshot.trouble}",
                "a folder with free space",
                "free disk space, or choose another folder with --runs DIR",
            )
        path = self._put(snapshot)
        if self.run.ranks.is_rank0 and snapshot.name.startswith("step-"):
            checkpoint.prune(self.run.checkpoints, self.run.job.checkpoint.keep, snapshot.best, checkpoint.number(path))
        return path

    def _put(self, snapshot: PendingCheckpoint) -> Path:
        if other := self.folder.restore():
            self.run.events.add("storage", NamedFolder.WORDS.format(other, self.folder.path), self.run.counters.step)
        folder = self.run.checkpoints
        return checkpoint.save(folder, snapshot.name, snapshot.tensors, snapshot.state, snapshot.frozen)


def moments(spec: Optimizer) -> int:
    """Values that the optimizer stores for each weight."""
    if isinstance(spec, Sgd):
        return int(spec.momentum > 0)
    return 3 if isinstance(spec, Adam) and spec.amsgrad else 2


def _bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _copy(snapshot: PendingCheckpoint) -> PendingCheckpoint:
    """The checkpoint with copies of the tensors, so that training can continue."""
    tensors = {
        group: {name: value.detach().to("cpu", copy=True) for name, value in values.items()}
        for group, values in snapshot.tensors.items()
    }
    return replace(snapshot, tensors=tensors)


class NonSavingRank(Saver):
    """The saver of all processes but rank 0, which saves for all."""

    def due(self, *, epoch_ended: bool = False) -> bool:
        """Never."""
        return False

    def foresee(self) -> None:
        """Nothing to write."""

    def best(self, notes: Mapping[str, object]) -> None:
        """Nothing to write."""

    def final(self) -> Path:
        """Nothing to write."""
        return self.run.checkpoints


class SaverTogether(Saver):
    """The saver of a run with divided weights, one in each process: all save together, in the foreground.

    Rank 0 decides when. The others learn of it where all have agreed to train another step, since a process that has
    met a problem in its own step would not come.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._ended: Path | None = None
        """The checkpoint at the end of the training, after which the processes part."""

    def due(self, *, epoch_ended: bool = False) -> bool:
        """After an epoch, if rank 0 says so; within one, `save_together` asks."""
        return epoch_ended and self._agree_to_save(epoch_ended=True)

    def _agree_to_save(self, *, epoch_ended: bool) -> bool:
        return bool(self.run.ranks.from_rank0([float(super().due(epoch_ended=epoch_ended))])[0])

    def save_together(self, flush: Callable[[], None]) -> None:
        """Save if rank 0 says that it is time."""
        if not self.run.counters.batch or not self._agree_to_save(epoch_ended=False):
            return
        problem: BaseException | None = None
        try:
            flush()
        except (NotFinite, Fp16Collapse) as error:
            problem = error
        agreement.settle(self.run.ranks, problem)
        self.periodic()

    def end_together(self) -> None:
        """Save while all processes are there; `final` returns that checkpoint afterwards."""
        self._ended = self.final()

    def final(self) -> Path:
        """Save now."""
        return self._ended or super().final()

    def _check_before_saving(self) -> None:
        """Check this process's parts of the weights, and let all processes know."""
        problem: BaseException | None = None
        try:
            self.check()
        except NotFinite as error:
            problem = error
        agreement.settle(self.run.ranks, problem)

    def _has_room(self, snapshot: PendingCheckpoint) -> bool:
        """No: nothing is written in the background, while the network exchanges its weights."""
        return False

    def _write(self, snapshot: PendingCheckpoint) -> Path:
        # Only rank 0 writes the metrics that a checkpoint needs.
        metrics_problem = self.run.ranks.text_from(0, snapshot.trouble or "").strip()
        return super()._write(replace(snapshot, trouble=metrics_problem or None))

    def _put(self, snapshot: PendingCheckpoint) -> Path:
        run, like = self.run, self.run.model.state_dict()
        tensors = {group: _divide(parts, like) for group, parts in snapshot.tensors.items()}
        return rank_checkpoints.save(run.ranks, run.checkpoints, snapshot.name, tensors, snapshot.state)


def _divide(parts: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parts of this process, such as those of the averaged weights, as parts of the whole tensors."""
    divided: dict[str, Tensor] = {}
    for name, value in parts.items():
        owner = like.get(name)
        if owner is not None and is_sharded(owner) and not is_sharded(value):
            owner_like = torch.empty_like(owner, dtype=value.dtype)
            owner_like.to_local().copy_(value)  # type: ignore[attr-defined]
            value = owner_like
        divided[name] = value
    return divided
