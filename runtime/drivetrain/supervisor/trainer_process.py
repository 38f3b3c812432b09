"""The trainer: the supervisor's child that imports torch, assembles the run and trains it.

python -m drivetrain.supervisor.trainer_process RUN SPEC [--set key=value ...] [--source JSON] [--trace] [--measured]
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from drivetrain import optimizations
from drivetrain.distributed import world
from drivetrain.errors import DrivetrainError, Replanned
from drivetrain.job import Job
from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan as plans
from drivetrain.supervisor import trainer_error
from drivetrain.system import interpreter
from drivetrain.system.console import describe_lost_output, guard_output, report_if_slow, say_error
from drivetrain.system.signals import Signals, ignore_signals_after, raise_stopped
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.phase_timer import PhaseTimer, process_seconds
from drivetrain.tuning import process_death


def main() -> int:
    """Train a run; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    spec_source.add_options(parser)
    parser.add_argument("--trace", action="store_true")
    # Set if this process replaces one that has already measured, so that nothing is measured again.
    parser.add_argument("--measured", action="store_true")
    options = parser.parse_args()
    guard_output()
    process_death.log_crashes(options.run)
    try:
        with raise_stopped(), ignore_signals_after():
            # A scheduler's SIGTERM arrives twice, from the scheduler and from the supervisor, but is one request.
            signals = Signals(scheduled=world.NODES in os.environ or "SLURM_STEP_ID" in os.environ)
            job = SpecSource.from_arguments(options).load()
            return train(options.run, job, signals, trace=options.trace, is_measured=options.measured)
    except Replanned:
        return Replanned.exit_code
    except DrivetrainError as error:
        say_error(error)
        trainer_error.store_error(error)
        return error.exit_code
    finally:
        lost_text = describe_lost_output()
        if lost_text:
            EventLog(options.run).store("output", lost_text)


def train(
    folder: Path,
    job: Job,
    signals: Signals,
    *,
    trace: bool = False,
    is_measured: bool = False,
) -> int:
    """Assemble and train a run; returns 0, or raises the error that ended it."""
    clock = PhaseTimer()
    is_leader = os.environ.get(world.RANK, "0") == "0"
    slow_note = report_if_slow("importing torch") if is_leader else contextlib.nullcontext()
    with clock.phase("import"), slow_note, interpreter.freeze_imports():
        from drivetrain.baselines import run_comparison
        from drivetrain.models.networks.user_network import blame_job_code
        from drivetrain.system import torch_errors
        from drivetrain.system.console import say
        from drivetrain.training import handshake
        from drivetrain.training.train import train as train_run
        from drivetrain.tuning import assembly
    clock.phases["import"] = process_seconds()  # includes the start of the interpreter
    plan_at_start = plans.read_plan(folder)
    try:
        with blame_job_code(job):
            # All processes except the leader get the leader's plan here.
            handshake.introduce(folder, job, say)
            leader_plan = plans.read_plan(folder)
            for name in optimizations.list_process_settings():
                if leader_plan.value(name) != plan_at_start.value(name):
                    raise Replanned("the leader's plan needs a new process")
            run = assembly.assemble_run(folder, job, signals, clock, is_measured=is_measured)
            train_run(run, trace=trace)
            if run.ranks.is_rank0:
                run_comparison.compare_run(run)
    except RuntimeError as error:
        raise torch_errors.translate_error(error) from None
    return 0


if __name__ == "__main__":
    interpreter.exit_process(main())
