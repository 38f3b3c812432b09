"""The product's own processes with a witness and a fault in them.

    python -m tests.faults.driver train JOB ...    is `drivetrain train JOB ...`

LEDGER=FILE keeps which samples each step was given. FAULT=module:name:number:action does something at the n-th call
of a function, in the process that has the module: `term` sends SIGTERM to the supervisor, `kill` kills the trainer,
`twice` sends two; `SIGUSR1@supervisor`, `@trainer` or
`@both` sends that signal; `slow` waits ten seconds; `ahead` and `behind` set the clock by a day, `device` loses the GPU. STALE=SECONDS is how
long a writer of a remote copy may be silent. Nothing of this is part of the
product.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAUSE = 0.5
"""Seconds that the call waits after a signal: that is when it meets the process."""
SLOW = 10.0
"""Seconds of a slow call."""


def main() -> int:
    if sys.argv[1] == "trainer":
        return trainer(sys.argv[2:])
    from runtime.cli import main
    from runtime.supervisor import supervisor

    plain = supervisor._command

    def command(*given: Any) -> list[str]:
        words = plain(*given)
        assert words[1:3] == ["-m", "runtime.supervisor.trainer_process"]
        return [words[0], "-m", "tests.faults.driver", "trainer", *words[3:]]

    supervisor._command = command
    if stale := os.environ.get("STALE"):
        from runtime.supervisor.remote_copy import writer_lock

        writer_lock.STALE = float(stale)
    install("runtime.supervisor.supervisor")
    return main.main()


def trainer(arguments: list[str]) -> int:
    from runtime.supervisor import preemption, trainer_process
    from runtime.training import loop
    from runtime.training.evaluation import metrics  # noqa: F401
    from runtime.tuning import tuner

    preemption.EVERY = 0.05
    tuner.FULL, tuner.COMPILING = 2.0, 10**9
    sys.argv[:] = ["trainer", *arguments]
    if path := os.environ.get("LEDGER"):
        loop._advance = witnessed(loop._advance, Path(path))
    install("")
    return trainer_process.main()


def install(only: str) -> None:
    """Hook the fault in if it is one for this process."""
    text = os.environ.get("FAULT", "")
    if text == "last steps" and not only:
        sys.modules["last steps"] = Last("last steps")
        return
    if (
        not text
        or text == "last steps"
        or text.startswith("runtime.supervisor.supervisor:") != (only == "runtime.supervisor.supervisor")
    ):
        return
    module, name, number, action = text.split(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, faulty(getattr(owner, last), int(number), action))


class Last(types.ModuleType):
    """Goes when the interpreter takes itself apart, where Python no longer handles signals."""

    def __del__(self, kill: Any = os.kill, own: int = os.getpid()) -> None:
        kill(own, 15)


def faulty(plain: Callable[..., Any], number: int, action: str) -> Callable[..., Any]:
    calls = [0]

    def wrapped(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            act(action)
        return plain(*given, **named)

    return wrapped


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


def witnessed(plain: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """`loop._advance` that first notes the samples it is given, having looked whether the inputs are really theirs."""
    import torch

    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def advance(run: Any, batch: Any, *given: Any) -> Any:
        if batch is not None:
            theirs = run.dataset.train.gather(batch.ids)
            assert all(torch.equal(one, two) for one, two in zip(batch.inputs, theirs, strict=True))
            row = {"epoch": run.counters.epoch, "batch": run.counters.batch, "ids": batch.ids.tolist()}
            os.write(handle, (json.dumps(row) + "\n").encode())
        return plain(run, batch, *given)

    return advance


if __name__ == "__main__":
    sys.exit(main())
