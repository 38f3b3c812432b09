"""The product's own processes with a witness and a fault in them.

    python -m tests.faults.driver train JOB ...    is `drivetrain train JOB ...`

LEDGER=FILE keeps which samples each step was given. FAULT=moment:number:action does something when a moment of
`drivetrain.system.fault_points` comes for the n-th time, in the process whose moment it is: `term` sends SIGTERM to the
supervisor, `kill` kills the trainer, `twice` sends two; `SIGUSR1@supervisor`, `@trainer` or `@both` sends that signal;
`slow` waits ten seconds; `ahead` and `behind` set the clock by a day, `device` loses the GPU. Nothing of this is part of
the product.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from drivetrain.system import fault_points

LAST_STEPS = "last steps"
"""The fault of a SIGTERM while the trainer's interpreter ends."""
COMPILING = "compile graph"
SUPERVISED = ("detect", "first attempt", "report")
"""Moments of the process that supervises; the others are the trainer's."""
TRAINED = (*(name for name in get_args(fault_points.Moment) if name not in SUPERVISED), COMPILING)
PAUSE = 0.5
"""Seconds that the call waits after a signal: that is when it meets the process."""
SLOW = 10.0
"""Seconds of a slow call."""


def main() -> int:
    if os.sep in sys.argv[1]:  # the supervisor calls its trainer with the run folder; a command is a word
        return trainer(sys.argv[1:])
    from drivetrain.cli import main
    from drivetrain.supervisor import child_runs, supervisor

    supervisor.TRAINER = child_runs.PROGRAM = "tests.faults.driver"
    fault_points.listener = Faults(os.environ.get("FAULT", ""), SUPERVISED)
    return main.main()


def trainer(arguments: list[str]) -> int:
    from drivetrain.supervisor import trainer_process
    from drivetrain.training.evaluation import metrics  # noqa: F401
    from drivetrain.tuning import tuner

    tuner.MIN_FULL_SECONDS, tuner.MIN_COMPILE_SECONDS = 2.0, 10**9
    sys.argv[:] = ["trainer", *arguments]
    fault = os.environ.get("FAULT", "")
    if fault == LAST_STEPS:
        sys.modules[fault] = KillAtExit(fault)
    if fault.startswith(COMPILING):
        from torch._inductor.graph import GraphLowering

        GraphLowering.codegen = announce_calls(GraphLowering.codegen)  # type: ignore[method-assign]
    ledger = os.environ.get("LEDGER")
    fault_points.listener = Faults(fault, TRAINED, Ledger(Path(ledger)) if ledger else None)
    return trainer_process.main()


class KillAtExit(types.ModuleType):
    """Goes when the interpreter takes itself apart, where Python no longer handles signals."""

    def __del__(self, kill: Any = os.kill, pid: int = os.getpid()) -> None:
        kill(pid, 15)


class Faults:
    """Acts when a moment comes for the n-th time; it listens to the moments of its process only."""

    def __init__(self, fault: str, moments: tuple[str, ...], ledger: Ledger | None = None) -> None:
        self.moment, self.number, self.action = ("", 0, "")
        self.ledger, self.count = ledger, 0
        if fault and fault != LAST_STEPS:
            self.moment, number, self.action = fault.split(":")
            self.number = int(number)
            assert self.moment in (*SUPERVISED, *TRAINED), f"there is no moment {self.moment!r}"
        self.listens = self.moment in moments

    def __call__(self, moment: str, *subjects: Any) -> None:
        if self.ledger and moment == "batch":
            self.ledger.note(*subjects)
        if self.listens and moment == self.moment:
            self.count += 1
            if self.count == self.number:
                act(self.action)


def announce_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch's that announces its calls as moments."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        assert fault_points.listener is not None
        fault_points.listener(COMPILING)
        return function(*arguments, **keywords)

    return call


def act(action: str) -> None:
    supervisor = os.getppid() if sys.argv[0] == "trainer" else os.getpid()
    print(f"fault: {action} at {time.time():.3f}", flush=True)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "slow":
        time.sleep(SLOW)
    if action == "device":
        raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later")
    if action in ("ahead", "behind"):
        plain, shift = time.time, 86400.0 if action == "ahead" else -86400.0
        time.time = lambda: plain() + shift
    for name, to in re.findall(r"(SIG\w+)@(\w+)", action):
        for receiver, pid in (("supervisor", supervisor), ("trainer", os.getpid())):
            if to in (receiver, "both"):
                os.kill(pid, signal.Signals[name])
    for _ in range({"term": 1, "twice": 2}.get(action, 0)):
        os.kill(supervisor, signal.SIGTERM)
        time.sleep(PAUSE)


class Ledger:
    """The file that says which samples each step was given, once it is clear that the inputs are theirs."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, run: Any, batch: Any) -> None:
        import torch

        if batch is None:
            return
        expected = run.dataset.train.gather(batch.ids)
        assert all(torch.equal(one, two) for one, two in zip(batch.inputs, expected, strict=True))
        row = {"epoch": run.counters.epoch, "batch": run.counters.batch, "ids": batch.ids.tolist()}
        os.write(self.handle, (json.dumps(row) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
