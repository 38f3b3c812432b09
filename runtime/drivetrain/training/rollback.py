"""Takes a run back to its last checkpoint, from which the same process continues with what has changed."""

from __future__ import annotations

from drivetrain.system.fault_points import fault_point
from drivetrain.training.checkpoints import rank_checkpoints, run_state
from drivetrain.training.nonfinite import Fp16Collapse, NotFinite, RollBack
from drivetrain.training.peers import find_smallest
from drivetrain.training.run import Run
from drivetrain.training.step_records import StepRecords


def roll_back(run: Run, records: StepRecords, problem: RollBack) -> None:
    """Restore the last checkpoint, and record why and what changes: batches are skipped, or fp32 replaces fp16.

    Raises:
        NumericsError: if this would be the second rollback because of numbers that are not finite.
    """
    # A signal in the middle of a rollback would leave weights and counters of two different steps.
    with run.signals.protect_section():
        kind, consequence = "memory", ""
        if isinstance(problem, NotFinite):
            run.numerics.roll_back(problem)
            skipped = ", ".join(f"epoch {e + 1} batch {b + 1}" for e, b in sorted(run.numerics.skipped_batches))
            kind, consequence = "numbers", f", skipping batches: {skipped or 'none'}"
        elif isinstance(problem, Fp16Collapse):
            kind, consequence = "precision", ", continuing in fp32 (train.fp16.fallback)"
        checkpoint_name = _restore_checkpoint(run, records)
        run.events.add(kind, f"{problem}; back to {checkpoint_name}{consequence}", run.counters.step)
        if isinstance(problem, Fp16Collapse):
            run.step.fall_back_to_fp32()


def _restore_checkpoint(run: Run, records: StepRecords) -> str:
    """Restore the last checkpoint, and drop all records after it; returns its name."""
    fault_point("roll back", run)
    records.drop()
    # The traceback of the problem keeps tensors alive.
    run.peers.reported = None
    # A save in the background may be writing the checkpoint to go back to.
    records.saver.wait()
    # One process may have halved its micro-batches before the problem; all continue with the smallest size.
    run.step.use_micro_batch(find_smallest(run.ranks, run.step.micro_batch))
    loaded, damaged = rank_checkpoints.load_latest(run.ranks, run.checkpoints, run.model)
    assert loaded is not None, "a checkpoint is written before the first step"
    for line in damaged:
        run.events.add("storage", line)
    # The clock of this attempt goes on, and its seconds in the checkpoint would count twice.
    earlier_seconds = run.counters.seconds
    run_state.restore(run, loaded)
    run.counters.seconds = earlier_seconds
    if run.time_target:
        run.time_target.restart()
    assert run.metrics is not None
    run.metrics.remove_rows_after(run.counters.step, run_state.count_evaluated_epochs(run))
    return loaded.path.name
