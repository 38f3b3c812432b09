"""One process of a run that is killed with all others and resumed: python -m tests.ranks_resumed FOLDER STEPS KILL WAY.

It writes all weights after the last step into FOLDER/<rank>.npy. KILL is the step before which it dies; 0 for
none. WAY is `buckets`, or `ddp` for torch's DistributedDataParallel with its defaults.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.distributed import gradient_exchange
from drivetrain.distributed.gradient_exchange import GradientExchange
from drivetrain.distributed.ranks import ALONE, Ranks
from drivetrain.job.model import Freeze
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.models import inspection
from drivetrain.models.build import Model
from drivetrain.plan import plan
from drivetrain.system import interpreter
from drivetrain.training import run, train
from drivetrain.training.phase_timer import PhaseTimer
from tests import tiny

JOB = """
name: t
task: image-classification
data: {{train: none.npz}}
train: {{epochs: 9, steps: {steps}, batch_size: 12}}
checkpoint: {{every: 4 steps}}
"""
KILOBYTES = 8


class DefaultBuckets(GradientExchange):
    """The exchange that DistributedDataParallel does in its backward pass; the loss alone is summed here."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ALONE)
        self.all = ranks

    def finish(self, loss: Tensor | None, notes: Sequence[float] = ()) -> tuple[Tensor | None, list[list[float]]]:
        assert loss is not None
        return self.all.all_reduce_sum([loss])[0], [list(notes)]


def by_ddp(model: nn.Module) -> nn.Module:
    """The network with torch's own exchange, which sums as ours does."""
    with warnings.catch_warnings(action="ignore"):
        ddp_model = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=KILOBYTES / 1024)

    # Without annotations, which torch would compare as strings.
    ddp_model.register_comm_hook(None, lambda state, bucket: _sum_gradients(bucket.buffer()))
    return ddp_model


def _sum_gradients(flat: Tensor) -> torch.futures.Future[Tensor]:
    sent = torch.distributed.all_reduce(flat, async_op=True)
    assert sent is not None
    return sent.get_future().then(lambda done: done.value()[0])


def main() -> None:
    vars(gradient_exchange)["BUCKET_BYTES"] = KILOBYTES * 1024
    folder, steps, kill, way = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rank = os.environ["DRIVETRAIN_RANK"]
    rank_folder = folder if rank == "0" else folder / "ranks" / rank
    rank_folder.mkdir(parents=True, exist_ok=True)
    job, machine, data = job_spec.check(parse(JOB.format(steps=steps), "t.yaml")), tiny.machine(), tiny.dataset()
    torch.manual_seed(0)
    layers = [part for _ in range(5) for part in (nn.Linear(64, 64), nn.Tanh())]
    network = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 3))
    plain_plan = plan.resolve(job, machine, inspection.inspect_workload(data, network), plain=True)
    training_run = run.assemble(
        job,
        machine,
        plain_plan,
        rank_folder,
        data,
        Model(network, "none", {}, Freeze()),
        tiny.QuietSignals(),
        PhaseTimer(),
    )
    if way == "ddp":
        training_run.configure_step(forward=by_ddp(training_run.model), exchange=DefaultBuckets(training_run.ranks))

    def die(module: nn.Module, inputs: Any) -> None:
        if kill and module.training and training_run.counters.step + 1 == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    training_run.model.register_forward_pre_hook(die)
    train.train(training_run)
    np.save(
        folder / f"{rank}.npy",
        torch.cat([value.flatten() for value in training_run.model.state_dict().values()]).numpy(),
    )


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
