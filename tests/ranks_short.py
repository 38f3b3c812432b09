"""`drivetrain train` whose second process has memory for five samples at a time: python -m tests.ranks_short train JOB ..."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

MOST = 5


def main() -> int:
    if sys.argv[1] == "train":
        from drivetrain.cli import main
        from drivetrain.supervisor import supervisor

        supervisor.TRAINER = "tests.ranks_short"
        return main.main()
    from drivetrain.supervisor import trainer_process
    from drivetrain.training import run

    train_mode = run.Run.train_mode

    def limit_memory(training_run: run.Run) -> None:
        train_mode(training_run)
        training_run.model.register_forward_pre_hook(hook)

    def hook(module: torch.nn.Module, inputs: Any) -> None:
        if module.training and len(inputs[0]) > MOST and os.environ["DRIVETRAIN_RANK"] == "1":
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: tried 1 bytes"
            )

    run.Run.train_mode = limit_memory  # type: ignore[method-assign, assignment]
    sys.argv[0] = "trainer"
    return trainer_process.main()


if __name__ == "__main__":
    sys.exit(main())
