"""The supervisor: a light parent without torch that checks, decides, starts the trainer and passes its end on.

Threads, OpenMP runtime and allocator are fixed when a process starts, so the plan comes first and the trainer is a
child that starts under it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runtime import cgroup, signals, spec
from runtime import folder as folders
from runtime import plan as plans
from runtime.detect import detect
from runtime.errors import DeviceError, OutOfMemory
from runtime.events import Events
from runtime.files import write_json
from runtime.hardware import Hardware, size
from runtime.job import Job
from runtime.table import console, render

STATUS = {0: "done", 75: "stopped"}


@dataclass(frozen=True)
class Request:
    """What `drivetrain train` was asked."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    plain: bool = False
    plan: Path | None = None
    new: bool = False


def train(request: Request) -> int:
    """Train or resume; returns the exit code.

    Raises:
        DrivetrainError: for everything that is wrong before the trainer starts.
    """
    signals.stop_early()
    job = spec.load(request.spec, request.assignments)
    machine = detect(request.runs)
    if machine.torch is None:
        raise DeviceError("no torch is installed here", "training needs torch", "run `make setup`, or use the image")
    replay = plans.replayed(plans.load(request.plan)) if request.plan else {}
    run = folders.open_run(request.runs, job, new=request.new)
    stored = plans.load(run.path / "plan.json") if run.resumes and (run.path / "plan.json").exists() else None
    if stored:
        # A resumed run keeps its plan: other threads or layouts would mean other bits.
        replay = plans.replayed(stored)
    plan = plans.resolve(job, machine, plain=request.plain, replay=replay)
    if stored:
        plan = plans.carried(plan, stored)
    console().print(render(plan, job, machine))
    return _run(request, job, machine, plan, run)


def _run(request: Request, job: Job, machine: Hardware, plan: plans.Plan, run: folders.RunFolder) -> int:
    state: dict[str, Any] = {
        "status": "running", "exit_code": None, "source": str(request.spec), "set": list(request.assignments),
        "started": run.state().get("started") or _now(), "ended": None, "attempts": run.state().get("attempts", 0) + 1,
    }  # fmt: skip
    write_json(run.path / "hardware.json", machine.to_json())
    write_json(run.path / "state.json", state)
    print(f"run {run.path} {'goes on' if run.resumes else 'starts'}", flush=True)
    code = _attempts(request, job, machine, plan, run)
    state |= {"status": STATUS.get(code, "failed"), "exit_code": code, "ended": _now()}
    write_json(run.path / "state.json", state)
    if (run.path / "metrics.jsonl").exists():
        _report(run.path)
    return code


def _attempts(request: Request, job: Job, machine: Hardware, plan: plans.Plan, run: folders.RunFolder) -> int:
    """Run the trainer; after a kill for memory again, from its last checkpoint, with half the micro-batch."""
    while True:
        write_json(run.path / "plan.json", plan.to_json())
        before = cgroup.oom_kills(Path("/"))
        code = _child(request, plan.environment(machine), run)
        after = cgroup.oom_kills(Path("/"))
        if code != 137 or before is None or after is None or after <= before:
            return code
        why = f"killed at the memory limit of {size(machine.memory.limit)} (peak {size(cgroup.peak(Path('/')))})"
        again = plans.smaller(plan, job.train.batch_size, why)
        if again is None:
            print(OutOfMemory(f"the trainer was {why} with one sample at a time", "a job that fits the limit",
                              "raise limits.memory, or take a smaller network or smaller samples"), file=sys.stderr)  # fmt: skip
            return OutOfMemory.exit_code
        Events(run.path).add("memory", f"the trainer was {why}; again from its last checkpoint with "
                             f"optimize.micro_batch {again.value('micro_batch')}, train.batch_size as it is")  # fmt: skip
        plan = again


def _child(request: Request, environment: dict[str, str], run: folders.RunFolder) -> int:
    """Start the trainer, forward signals to it, and wait."""
    command = [sys.executable, "-m", "runtime.trainer", str(run.path), str(request.spec)]
    for assignment in request.assignments:
        command += ["--set", assignment]
    code, forward = child(command, environment, [run.lock])
    if -code in forward.sent and len(forward.sent) == 1:
        # The signal came before the trainer could listen: nothing was begun, so nothing is lost.
        print(f"stopped by {forward.name} before the first step was done", file=sys.stderr)
        return 75
    return 128 - code if code < 0 else code


def child(
    command: Sequence[str], environment: dict[str, str], locks: Sequence[int] = ()
) -> tuple[int, signals.Forward]:  # fmt: skip
    """Run a child under a plan's environment; its return code (negative for a signal), and the signals it was sent."""
    ours = {"DRIVETRAIN_SUPERVISOR": str(os.getpid()), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    preload = ":".join(filter(None, (environment.get("LD_PRELOAD"), os.environ.get("LD_PRELOAD"))))
    preloads = {"LD_PRELOAD": preload} if preload else {}
    with signals.forwarding() as forward:
        # A group of its own, so that Ctrl-C reaches the child once, through us.
        started = subprocess.Popen(
            command, env={**os.environ, **environment, **preloads, **ours}, pass_fds=locks, process_group=0
        )
        forward.to(started)
        return started.wait(), forward


def _report(run: Path) -> None:
    """Write the report in a process of its own: its libraries are as heavy as the trainer's."""
    done = subprocess.run([sys.executable, "-m", "runtime.report", str(run)], check=False)
    print(
        f"report {run}/report.html" if done.returncode == 0 else "warning: the report could not be written", flush=True
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
