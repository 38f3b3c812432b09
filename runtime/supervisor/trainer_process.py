"""The trainer: the supervisor's child that imports torch, assembles the run and drives the loop.

python -m runtime.supervisor.trainer_process RUN SPEC [--set key=value ...] [--trace] [--measured]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from runtime.distributed import local_processes
from runtime.errors import DrivetrainError, Replanned, Stopped
from runtime.hardware import device_check
from runtime.hardware import facts as hardware
from runtime.job import Job
from runtime.job.values import duration_seconds
from runtime.job_spec import load as job_spec
from runtime.plan import final_plan
from runtime.plan import plan as plans
from runtime.supervisor import preemption
from runtime.system import timeout
from runtime.system.files import read_json, write_json
from runtime.system.signals import Signals, ending, stopping
from runtime.training.phase_timer import PhaseTimer, since_start
from runtime.tuning import kernel_crash, process_settings


def main() -> int:
    """Train; returns the exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("run", type=Path)
    arguments.add_argument("spec", type=Path)
    arguments.add_argument("--set", action="append", default=[])
    arguments.add_argument("--trace", action="store_true")
    arguments.add_argument("--measured", action="store_true")
    given = arguments.parse_args()
    kernel_crash.listen(given.run)
    try:
        with stopping(), ending():
            signals, source = Signals(), process_settings.SpecSource(given.spec, given.set)
            return train(
                given.run,
                job_spec.load(given.spec, given.set),
                signals,
                source,
                trace=given.trace,
                settled=given.measured,
            )
    except Replanned:
        return Replanned.exit_code
    except DrivetrainError as error:
        print("\n".join(error.lines()) if error.given else error, file=sys.stderr, flush=True)
        return error.exit_code


def train(
    folder: Path,
    job: Job,
    signals: Signals,
    source: process_settings.SpecSource,
    *,
    trace: bool = False,
    settled: bool = False,
) -> int:
    """Assemble and train one run; returns 0, or raises what ended it."""
    clock = PhaseTimer()
    with clock.phase("import"):
        from runtime.models import saved_model  # noqa: F401
        from runtime.models.networks.user_network import guarded
        from runtime.system import gpu_errors
        from runtime.tracking import monitor  # noqa: F401
        from runtime.training import loop  # noqa: F401
    clock.phases["import"] = since_start()
    leads = os.environ.get(local_processes.NUMBER, "0") == "0"
    try:
        with guarded(job), preemption.watched(job.checkpoint.notice if leads else None, folder):
            conduct(assembled(folder, job, signals, clock, source, settled=settled), trace=trace)
    except RuntimeError as error:
        raise gpu_errors.meaning(error) from None
    return 0


def conduct(run: Any, *, trace: bool = False) -> str:
    """Train an assembled run from its last checkpoint to its end, and write its records; returns why it ended.

    Raises:
        Stopped: on a signal, after a checkpoint if there is progress.
    """
    from runtime.models import saved_model
    from runtime.tracking.monitor import Monitor
    from runtime.training import effective_settings
    from runtime.training.checkpoints import final_weights
    from runtime.training.evaluation import worst_mistakes
    from runtime.training.progress import Progress, say

    folder = run.folder
    try:
        saver = _begun(run, trace=trace)
    except BaseException:
        # The thread that draws for TensorBoard, inside of torch when Python takes itself apart, would abort the process.
        if run.metrics:
            run.metrics.close()
        raise
    progress = Progress(run.total_steps, run.counters.step)
    with Monitor(folder, run, duration_seconds(run.job.monitor.every)) as monitor:
        try:
            reason = _fitted(run, saver, progress)
            if not run.ranks.leads:
                return reason
            try:
                with stopping():
                    saver.final()
                    best = final_weights.weights(run)
                    saved_model.write(run, best)
                    worst_mistakes.write(run, best.confusion)
                    effective_settings.record_changes(run, say)
            except Stopped as stop:
                raise _stopped(run, saver, stop) from None
        finally:
            if run.tracer:
                run.tracer.close()
            progress.close()
            run.metrics.close()
    watching = {"monitor": monitor.spent, "live view": progress.spent}
    write_json(folder / "result.json", _result(run, best, reason, monitor.peak, watching))
    say(f"done: {reason}; {best.words()}; model in {folder}/model")
    return reason


def _fitted(run: Any, saver: Any, progress: Any) -> str:
    """Why the training ended; several processes stay together until the leader has saved, and part then.

    Raises:
        Stopped: on a signal or when `max_time` is spent, after a checkpoint if there is progress.
    """
    from runtime.training import loop

    try:
        with stopping():
            reason: str = loop.fit(run, saver, progress)
    except Stopped as stop:
        ended = _stopped(run, saver, stop)
        run.ranks.barrier()
        run.ranks.leave()
        raise ended from None
    run.ranks.leave()
    return reason


def _begun(run: Any, *, trace: bool) -> Any:
    """The run at its last checkpoint or at its first step, its records open; returns who saves."""
    from runtime.tracking import tensorboard_images
    from runtime.tracking.metrics_log import MetricsLog
    from runtime.training import agreement, recorded_inputs
    from runtime.training.checkpoints import resume
    from runtime.training.profiling import step_phases
    from runtime.training.profiling.profiler import Profiler
    from runtime.training.progress import say
    from runtime.training.saver import NonSavingRank, Saver

    loaded, passed = agreement.latest(run.ranks, run.checkpoints)
    for line in passed:
        say(line)
    if run.ranks.leads:
        recorded_inputs.begin(run, say, resumes=loaded is not None)
    if loaded:
        run.restore(loaded)
        say(f"resumed from {loaded.path.name}, epoch {run.counters.epoch + 1}")
    say(resume.PROMISE)
    run.metrics = MetricsLog(
        run.folder,
        after=run.counters.step,
        epoch=run.counters.epoch,
        tell=lambda text: run.events.add("tensorboard", text, run.counters.step),
    )
    if run.ranks.leads:
        tensorboard_images.begin(run)
    saver = Saver(run) if run.ranks.leads else NonSavingRank(run)
    if not loaded:
        # A full or read-only disk shows now and not after an epoch; and there is always something to go back to.
        saver.final()
    saver.foresee()
    run.tracer = Profiler(run) if trace and run.ranks.leads else None
    step_phases.install(run)
    return saver


def assembled(
    folder: Path,
    job: Job,
    signals: Signals,
    clock: PhaseTimer,
    source: process_settings.SpecSource | None = None,
    *,
    settled: bool = False,
) -> Any:
    """The Run of a folder that holds hardware.json and plan.json: data loaded, plan settled, applied and recorded.

    With a source, children may measure threads, OpenMP runtime and allocator; `settled`, everything is measured already.

    Raises:
        Replanned: if another process is needed, for the plan that the folder now holds.
    """
    from runtime.training import effective_settings
    from runtime.training import run as runs
    from runtime.training.checkpoints import checkpoint
    from runtime.training.progress import say
    from runtime.tuning import tuner

    fitting = prepared(folder, job, signals, clock)
    machine, dataset, network, plan = fitting.hardware, fitting.dataset, fitting.network, fitting.plan
    stored = plans.load(folder / "plan.json")
    if local_processes.wanted(job, machine) > 1:
        say("tune: off, since several processes train together; nor is micro_batch searched")
    elif not settled and not checkpoint.steps(folder / "checkpoints"):
        with clock.phase("tune"):
            fits = fitting.measured()
            if fits:
                plan = final_plan.settle(job, machine, stored, fitting.facts, say, fits)
            found = tuner.measured(job, machine, plan, dataset, network, folder, signals, say, source)
        if found:
            plan = final_plan.settle(job, machine, stored, fitting.facts, say, found | fits)
        other = any(plan.value(name) != stored.value(name) for name in process_settings.names())
        if source and (other or timeout.broken_off()):
            write_json(folder / "plan.json", plan.to_json())
            raise Replanned("what was measured needs another process, or has left this one in disorder")
    run = runs.assemble(job, machine, plan, folder, dataset, network, signals, clock)
    if run.ranks.count > 1:
        alone = ", each normalizes its own part of a batch" * fitting.facts.has("BatchNorm")
        say(f"processes: {run.ranks.count} train together, each on its part of every batch{alone}")
    effective_settings.record(run, say)
    return run


def prepared(folder: Path, job: Job, signals: Signals, clock: PhaseTimer) -> Any:
    """Data, network and plan of such a folder before anything is measured, as the Fitting that could begin to."""
    from runtime.data.custom import user_code
    from runtime.models import operations
    from runtime.models.build import build
    from runtime.optimizations import gradient_checkpointing
    from runtime.training import recorded_inputs
    from runtime.training import run as runs
    from runtime.training.progress import say
    from runtime.tuning.memory import activation_bytes
    from runtime.tuning.memory.micro_batch import MicroBatchSearch

    machine = hardware.from_json(read_json(folder / "hardware.json"))
    device_check.check(machine)
    with clock.phase("data"):
        dataset = recorded_inputs.read(job, folder)
    for note in dataset.notes:
        say(f"data: {note}")
    network = build(job, dataset)
    if told := operations.note(network):
        say(f"model: {told}")
    if network.code is not None:
        user_code.remember(folder, network.code)
    facts = runs.workload(dataset, network.module)
    if gradient_checkpointing.doubtful(job, machine, facts):
        facts = activation_bytes.counted(facts, network.module, dataset)
    plan = final_plan.settle(job, machine, plans.load(folder / "plan.json"), facts, say)
    return MicroBatchSearch(job, machine, plan, dataset, network, facts, folder, signals, say)


def _stopped(run: Any, saver: Any, stop: Stopped) -> Stopped:
    """Save if there is progress, and say how to go on."""
    from runtime.training.nonfinite import NotFinite

    again = "run the same command"
    if run.time_left() <= 0 and run.counters.samples == run.samples_before:
        again = "raise train.max_time, which ended before this attempt had done a step, and run the command"
    if run.counters.step == 0:
        return Stopped(f"{stop.given} before the first step was done", "", f"{again} again")
    try:
        saved = f"saved as {saver.final()}"
    except NotFinite as why:
        saved = f"not saved, {why}; the last checkpoint stays"
    return Stopped(f"{stop.given} after step {run.counters.step}", saved, f"{again} to go on from there")


def _result(run: Any, best: Any, reason: str, peak: int, watching: dict[str, float]) -> dict[str, Any]:
    from runtime.models import operations
    from runtime.training.profiling import efficiency, step_phases

    spent = run.clock.phases
    seconds = run.counters.seconds + run.clock.seconds
    training = max(1e-9, sum(spent.get(name, 0.0) for name in (*step_phases.PARTS, "input")))
    return {
        "steps": run.counters.step,
        "epochs": run.counters.epoch,
        "seconds": seconds,
        "samples_per_second": (run.counters.samples - run.samples_before) / training,
        "best": {
            "metric": best.metric,
            "value": best.value,
            "step": best.step,
            "epoch": best.epoch,
            "metrics": best.metrics,
        },
        "last": run.last,
        "confusion": best.confusion,
        "peak_memory": peak,
        "memory_limit": run.hardware.memory.limit,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "trainable": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        "stopped_because": reason,
        "phases": {name: round(value, 4) for name, value in spent.items()},
        "watching": {name: round(value, 4) for name, value in watching.items()},
        "efficiency": efficiency.measured(run),
        "data": list(run.dataset.notes),
        "model": operations.note(run.network),
    }


if __name__ == "__main__":
    sys.exit(main())
