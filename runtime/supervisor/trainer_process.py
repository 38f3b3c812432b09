"""The trainer: the supervisor's child that imports torch, assembles the run and trains it.

python -m runtime.supervisor.trainer_process RUN SPEC [--set key=value ...] [--batch-size N] [--trace] [--measured]
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from runtime.distributed import world
from runtime.errors import DrivetrainError, Replanned
from runtime.job import Job
from runtime.job_spec import spec_source
from runtime.job_spec.spec_source import SpecSource
from runtime.plan import plan as plans
from runtime.supervisor import preemption
from runtime.system import interpreter
from runtime.system.console import guard_output, lost_output, say_error
from runtime.system.signals import Signals, ending, stopping
from runtime.system.slow_start import told_if_slow
from runtime.tracking.event_log import EventLog
from runtime.training.phase_timer import PhaseTimer, since_start
from runtime.tuning import kernel_crash, process_settings


def main() -> int:
    """Train; returns the exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("run", type=Path)
    spec_source.add_options(arguments)
    arguments.add_argument("--trace", action="store_true")
    arguments.add_argument("--measured", action="store_true")
    given = arguments.parse_args()
    guard_output()
    kernel_crash.listen(given.run)
    try:
        with stopping(), ending():
            signals, source = Signals(scheduled=_is_scheduled()), SpecSource.from_arguments(given)
            return train(
                given.run,
                source.load(),
                signals,
                source,
                trace=given.trace,
                settled=given.measured,
            )
    except Replanned:
        return Replanned.exit_code
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    finally:
        if lost := lost_output():
            EventLog(given.run).keep("output", lost)


def _is_scheduled() -> bool:
    """Whether a scheduler repeats SIGTERM: to every process of a step of Slurm, and through the supervisor."""
    return world.NODES in os.environ or "SLURM_STEP_ID" in os.environ


def train(
    folder: Path,
    job: Job,
    signals: Signals,
    source: SpecSource,
    *,
    trace: bool = False,
    settled: bool = False,
) -> int:
    """Assemble and train one run; returns 0, or raises the error that ended it."""
    clock = PhaseTimer()
    leads = os.environ.get(world.RANK, "0") == "0"
    told = told_if_slow("importing torch") if leads else contextlib.nullcontext()
    with clock.phase("import"), told, interpreter.importing():
        from runtime.models.networks.user_network import guarded
        from runtime.system import torch_errors
        from runtime.system.console import say
        from runtime.training import handshake
        from runtime.training.train import train as train_run
        from runtime.tuning import prepare
    clock.phases["import"] = since_start()
    before = plans.load(folder / "plan.json")
    try:
        with guarded(job), preemption.watched(job.checkpoint.notice if leads else None, folder):
            handshake.introduce(folder, job, say)
            _check_process_settings(folder, before)
            run = prepare.assemble_run(folder, job, signals, clock, source, settled=settled)
            train_run(run, trace=trace)
    except RuntimeError as error:
        raise torch_errors.translate(error) from None
    return 0


def _check_process_settings(folder: Path, before: plans.Plan) -> None:
    """Start again if the leader's plan has other settings than this process was started under.

    Raises:
        Replanned: if it has.
    """
    now = plans.load(folder / "plan.json")
    if any(now.value(name) != before.value(name) for name in process_settings.names()):
        raise Replanned("the leader's plan needs a new process")


if __name__ == "__main__":
    interpreter.leave(main())
