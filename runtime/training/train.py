"""Trains an assembled run from its first step or last checkpoint to its end, with all of its records."""

from __future__ import annotations

from runtime.errors import NumericsError, Stopped, UserCodeError
from runtime.job.values import duration_seconds
from runtime.models import operations
from runtime.system.console import say
from runtime.system.files import write_json
from runtime.system.signals import stopping
from runtime.tracking.metrics_log import MetricsLog
from runtime.tracking.monitor import Monitor
from runtime.training import (
    effective_settings,
    loop,
    other_nodes,
    recorded_inputs,
    tensorboard_overview,
    trained_layers,
)
from runtime.training.checkpoints import final_weights, resume, resumed_checkpoint, run_state
from runtime.training.checkpoints.final_weights import FinalWeights
from runtime.training.evaluation import tested_model, worst_mistakes
from runtime.training.nonfinite import NotFinite
from runtime.training.profiling import efficiency, step_phases
from runtime.training.profiling.profiler import Profiler
from runtime.training.progress import Progress, since_last_sample
from runtime.training.rank_sampler import RankSampler
from runtime.training.run import Run
from runtime.training.save_model import save_model
from runtime.training.saver import NonSavingRank, Saver
from runtime.training.saver_together import SaverTogether


def train(run: Run, *, trace: bool = False) -> str:
    """Train an assembled run to its end, and write its records; returns why it ended.

    Raises:
        Stopped: on a signal, after a checkpoint if there is progress.
    """
    folder = run.folder
    try:
        saver = _begun(run)
    except BaseException:
        # TensorBoard's thread would abort the process if it were still inside torch while the interpreter shuts down.
        if run.metrics:
            run.metrics.close()
        raise
    assert run.metrics is not None
    progress = Progress(run.total_steps, run.counters.step)
    profiler = _profiler(run) if trace and run.ranks.is_rank0 else None
    with _monitor(run, run.metrics) as monitor:
        try:
            reason = _fitted(run, saver, progress, profiler)
            if not run.ranks.is_rank0:
                return reason
            try:
                with stopping():
                    saver.final()
                    best = final_weights.weights(run)
                    save_model(run, best)
                    worst_mistakes.write(run, best.confusion)
                    effective_settings.record_changes(run, say)
                    tested = tested_model.result(run)
            except Stopped as stop:
                raise _stopped(run, saver, stop) from None
        finally:
            if profiler:
                profiler.close()
            progress.close()
            run.metrics.close()
    watching = {"monitor": monitor.spent, "live view": progress.spent}
    write_json(
        folder / "result.json",
        _result(run, best, reason, monitor.peak, watching) | ({"test": tested} if tested else {}),
    )
    say(f"done: {reason}; {best.words()}; model in {folder}/model")
    return reason


def _profiler(run: Run) -> Profiler:
    def tell(text: str) -> None:
        run.events.add("trace", text, run.counters.step)

    return Profiler(run.folder, run.device.type, run.total_steps - run.counters.step, tell)


def _monitor(run: Run, metrics: MetricsLog) -> Monitor:
    return Monitor(
        run.folder,
        duration_seconds(run.job.monitor.every),
        run.hardware.gpus,
        progress=since_last_sample(run),
        show=lambda values: metrics.board.put(run.counters.step, values),
        sampled=RankSampler(run).sampled if run.ranks.count > 1 else None,
    )


def _fitted(run: Run, saver: Saver, progress: Progress, profiler: Profiler | None) -> str:
    """Train until the end; returns why it ended. Several processes stay connected until rank 0 has saved.

    Raises:
        Stopped: on a signal or when `max_time` is spent, after a checkpoint if there is progress.
    """
    try:
        with stopping():
            reason = loop.fit(run, saver, progress, profiler)
    except Stopped as stop:
        ended = _stopped(run, saver, stop)
        run.ranks.barrier()
        run.ranks.leave()
        raise ended from None
    except UserCodeError as error:
        raise UserCodeError(
            error.given, f"saved as {saver.final()}", f"{error.action}; the same call resumes there"
        ) from (error.__cause__)
    saver.end_together()
    run.ranks.leave()
    return reason


def _begun(run: Run) -> Saver:
    """Restore the last checkpoint, if there is one, and open the records; returns the saver."""
    loaded, passed = resumed_checkpoint.latest(run.ranks, run.checkpoints, run.model)
    for line in passed:
        say(line)
    if run.ranks.is_rank0:
        recorded_inputs.begin(run, say, resumes=loaded is not None)
    other_nodes.check_data(run)
    if loaded:
        run_state.restore(run, loaded)
        say(f"resumed from {loaded.path.name}, epoch {run.counters.epoch + 1}")
    samples = run.batches.samples
    if run.job.train.batch > samples:
        say(
            f"train.batch_size: {run.job.train.batch:,} is more than the {samples:,} training samples: one step per epoch"
        )
    if run.total_steps < (run.job.train.steps or 0):
        say(
            f"train.steps: {run.job.train.steps:,} is more than the {run.total_steps:,} steps of train.epochs: "
            f"{run.job.train.epochs:,}; the run ends after {run.total_steps:,}, more epochs make it longer"
        )
    on_gpu = run.device.type == "cuda"
    say(resume.promise(deterministic=run.job.train.is_deterministic(on_gpu=on_gpu), on_gpu=on_gpu))
    run.metrics = MetricsLog(
        run.folder,
        after=run.counters.step,
        epoch=run_state.evaluated_epochs(run),
        tell=lambda text: run.events.add("tensorboard", text, run.counters.step),
    )
    if run.ranks.is_rank0:
        tensorboard_overview.show_overview(run)
    if run.ranks.heartbeat:
        run.ranks.heartbeat.status = lambda: f"step {run.counters.step + 1}, {run.clock.now}"
    saver = _saver(run)
    if not loaded:
        # A full or read-only disk is found now, not after an epoch; and there is always a checkpoint to roll back to.
        try:
            saver.final()
        except NotFinite as why:
            raise NumericsError(
                f"the network's weights before the first step are {why}",
                "finite numbers in every parameter",
                "initialize these parameters in the network, or look at the file that they were loaded from",
            ) from None
    saver.foresee()
    step_phases.install(run)
    return saver


def _saver(run: Run) -> Saver:
    """What saves: all processes together if they hold parts of the weights, else rank 0."""
    if run.is_divided:
        return SaverTogether(run)
    return Saver(run) if run.ranks.is_rank0 else NonSavingRank(run)


def _stopped(run: Run, saver: Saver, stop: Stopped) -> Stopped:
    """Save if there is progress; returns the error with advice on how to resume."""
    again = "run the same command"
    if run.time_left() <= 0 and run.counters.samples == run.samples_before:
        again = "raise train.max_time (it passed before this attempt finished a step), and run the command"
    if run.counters.step == 0:
        return Stopped(f"{stop.given} before the first step finished", "", f"{again} again")
    try:
        saved = f"saved as {saver.final()}"
    except NotFinite as why:
        saved = f"not saved: {why}; the last checkpoint is kept"
    return Stopped(f"{stop.given} after step {run.counters.step}", saved, f"{again} again to resume from there")


def _result(run: Run, best: FinalWeights, reason: str, peak: int, watching: dict[str, float]) -> dict[str, object]:
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
        "shards": run.readable.fetched.record() if run.readable.fetched else None,
        "efficiency": efficiency.measured(run),
        "data": [*run.dataset.notes, *trained_layers.unfrozen(run), *trained_layers.rates(run)],
        "model": operations.note(run.network),
        "facts": _facts(run),
    }


def _facts(run: Run) -> dict[str, dict[str, object]]:
    """Properties of data and network by key, which the report's advice reads."""
    stem = operations.stem_costs(run.network)
    return run.dataset.facts | ({"stem": stem} if stem else {})
