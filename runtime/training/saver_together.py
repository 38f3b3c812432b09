"""The saver of a run whose weights are divided: all processes save together, in the foreground.

Rank 0 decides when. The others learn of it where all have agreed to train another step, since a process that has met a
problem in its own step would not come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from runtime.distributed.sharded_tensor import is_sharded
from runtime.training import agreement
from runtime.training.checkpoints import save_together
from runtime.training.nonfinite import Fp16Collapse, NotFinite
from runtime.training.run import Run
from runtime.training.saver import PendingCheckpoint, Saver


class SaverTogether(Saver):
    """Writes the checkpoints of a run with divided weights, one in each process."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._ended: Path | None = None
        """The checkpoint at the end of the training, after which the processes part."""

    def due(self, *, epoch_ended: bool = False) -> bool:
        """After an epoch, if rank 0 says so; within one, `save_together` asks."""
        return epoch_ended and self._agreed(epoch_ended=True)

    def _agreed(self, *, epoch_ended: bool) -> bool:
        return bool(self.run.ranks.from_rank0([float(super().due(epoch_ended=epoch_ended))])[0])

    def save_together(self, flush: Callable[[], None]) -> None:
        """Save if rank 0 says that it is time."""
        if not self.run.counters.batch or not self._agreed(epoch_ended=False):
            return
        trouble: BaseException | None = None
        try:
            flush()
        except (NotFinite, Fp16Collapse) as why:
            trouble = why
        agreement.settle(self.run.ranks, trouble)
        self.periodic()

    def end_together(self) -> None:
        """Save while all processes are there; `final` returns that checkpoint afterwards."""
        self._ended = self.final()

    def final(self) -> Path:
        """Save now."""
        return self._ended or super().final()

    def _check_before_saving(self) -> None:
        """Check this process's parts of the weights, and let all processes know."""
        trouble: BaseException | None = None
        try:
            self.check()
        except NotFinite as why:
            trouble = why
        agreement.settle(self.run.ranks, trouble)

    def _has_room(self, snapshot: PendingCheckpoint) -> bool:
        """No: nothing is written in the background, while the network exchanges its weights."""
        return False

    def _write(self, snapshot: PendingCheckpoint) -> Path:
        # Only rank 0 writes the metrics that a checkpoint needs.
        trouble = self.run.ranks.text_from(0, snapshot.trouble or "").strip()
        return super()._write(replace(snapshot, trouble=trouble or None))

    def _put(self, snapshot: PendingCheckpoint) -> Path:
        run, like = self.run, self.run.model.state_dict()
        tensors = {group: _divided(held, like) for group, held in snapshot.tensors.items()}
        return save_together.save(run.ranks, run.checkpoints, snapshot.name, tensors, snapshot.state)


def _divided(held: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parts of this process, such as those of the averaged weights, as parts of the whole tensors."""
    made: dict[str, Tensor] = {}
    for name, value in held.items():
        owner = like.get(name)
        if owner is not None and is_sharded(owner) and not is_sharded(value):
            whole = torch.empty_like(owner, dtype=value.dtype)
            whole.to_local().copy_(value)  # type: ignore[attr-defined]
            value = whole
        made[name] = value
    return made
