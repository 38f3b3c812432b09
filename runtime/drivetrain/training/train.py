"""Trains an assembled run from its first step or last checkpoint to its end, with all of its records."""

from __future__ import annotations

from drivetrain.errors import NumericsError, Stopped, UserCodeError
from drivetrain.job.values import parse_duration
from drivetrain.models import operations
from drivetrain.system.console import say
from drivetrain.system.files import write_json
from drivetrain.system.signals import stopping
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.tracking.monitor import Monitor
from drivetrain.training import (
    effective_settings,
    final_model,
    loop,
    profiling,
    recorded_inputs,
    solved_heads,
    tensorboard_overview,
    trained_layers,
)
from drivetrain.training.checkpoints import rank_checkpoints, resume, run_state
from drivetrain.training.evaluation import worst_mistakes
from drivetrain.training.final_model import FinalWeights, save_model
from drivetrain.training.nonfinite import NotFinite
from drivetrain.training.profiling import Profiler
from drivetrain.training.progress import Progress, since_last_sample
from drivetrain.training.rank_sampler import RankSampler
from drivetrain.training.run import Run
from drivetrain.training.saver import NonSavingRank, Saver, SaverTogether


def train(run: Run, *, trace: bool = False) -> str:
    """Train an assembled run to its end, and write its records; returns why it ended.

    Raises:
        Stopped: on a signal, after a checkpoint if there is progress.
    """
    folder = run.folder
    try:
        saver = _begin(run)
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
            reason = _fit(run, saver, progress, profiler)
            # Rank 0 alone writes the model; a signal meanwhile stops the run after another save.
            if not run.ranks.is_rank0:
                return reason
            try:
                with stopping():
                    saver.final()
                    best = final_model.choose_weights(run)
                    save_model(run, best)
                    for line in final_model.describe_calibration(best):
                        say(line)
                    worst_mistakes.write(run, best.confusion)
                    effective_settings.record_changes(run, say)
                    tested = final_model.test_model(run)
            except Stopped as stop:
                raise _save_stopped(run, saver, stop) from None
        finally:
            if profiler:
                profiler.close()
            progress.close()
            run.metrics.close()
    # What watching the run has cost, which the report shows.
    watching = {"monitor": monitor.spent, "live view": progress.spent}
    write_json(
        folder / "result.json",
        _result(run, best, reason, monitor.peak, watching) | ({"test": tested} if tested else {}),
    )
    say(f"done: {reason}; {best.words()}; model in {folder}/model")
    return reason


def _profiler(run: Run) -> Profiler:
    def report(text: str) -> None:
        run.events.add("trace", text, run.counters.step)

    return Profiler(run.folder, run.device.type, run.total_steps - run.counters.step, report)


def _monitor(run: Run, metrics: MetricsLog) -> Monitor:
    return Monitor(
        run.folder,
        parse_duration(run.job.monitor.every),
        run.hardware.gpus,
        progress=since_last_sample(run),
        show=lambda values: metrics.board.put(run.counters.step, values),
        sampled=RankSampler(run).sampled if run.ranks.count > 1 else None,
    )


def _fit(run: Run, saver: Saver, progress: Progress, profiler: Profiler | None) -> str:
    """Train until the end; returns why it ended. Several processes stay connected until rank 0 has saved.

    Raises:
        Stopped: on a signal or when `max_time` is spent, after a checkpoint if there is progress.
    """
    try:
        with stopping():
            reason = loop.fit(run, saver, progress, profiler)
    except Stopped as stop:
        ended = _save_stopped(run, saver, stop)
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


def _begin(run: Run) -> Saver:
    """Restore the last checkpoint, if there is one, and open the records; returns the saver."""
    loaded, passed = rank_checkpoints.latest(run.ranks, run.checkpoints, run.model)
    for line in passed:
        say(line)
    if run.ranks.is_rank0:
        recorded_inputs.begin(run, say, resumes=loaded is not None)
    recorded_inputs.check_data(run)
    if loaded:
        run_state.restore(run, loaded)
        say(f"resumed from {loaded.path.name}, epoch {run.counters.epoch + 1}")
    solved_heads.announce(run)
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
        epoch=run_state.count_evaluated_epochs(run),
        report=lambda text: run.events.add("tensorboard", text, run.counters.step),
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
        except NotFinite as problem:
            raise NumericsError(
                f"the network's weights before the first step are {problem}",
                "finite numbers in every parameter",
                "initialize these parameters in the network, or look at the file that they were loaded from",
            ) from None
    saver.foresee()
    profiling.split_step_time(run)
    return saver


def _saver(run: Run) -> Saver:
    """What saves: all processes together if they hold parts of the weights, else rank 0."""
    if run.is_divided:
        return SaverTogether(run)
    return Saver(run) if run.ranks.is_rank0 else NonSavingRank(run)


def _save_stopped(run: Run, saver: Saver, stop: Stopped) -> Stopped:
    """Save if there is progress; returns the error with advice on how to resume."""
    command_text = "run the same command"
    if run.time_left() <= 0 and run.counters.samples == run.samples_before:
        command_text = "raise train.max_time (it passed before this attempt finished a step), and run the command"
    if run.counters.step == 0:
        return Stopped(f"{stop.given} before the first step finished", "", f"{command_text} again")
    try:
        saved = f"saved as {saver.final()}"
    except NotFinite as problem:
        saved = f"not saved: {problem}; the last checkpoint is kept"
    return Stopped(f"{stop.given} after step {run.counters.step}", saved, f"{command_text} again to resume from there")


def _result(run: Run, best: FinalWeights, reason: str, peak: int, watching: dict[str, float]) -> dict[str, object]:
    phase_seconds = run.clock.phases
    seconds = run.counters.seconds + run.clock.seconds
    training = max(1e-9, sum(phase_seconds.get(name, 0.0) for name in (*profiling.STEP_PHASES, "input")))
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
        "phases": {name: round(value, 4) for name, value in phase_seconds.items()},
        "watching": {name: round(value, 4) for name, value in watching.items()},
        "shards": run.readable.fetched.record() if run.readable.fetched else None,
        "efficiency": profiling.measure_flops(run),
        "data": [*run.dataset.notes, *trained_layers.unfrozen(run), *trained_layers.rates(run)],
        "model": operations.note(run.network),
        "facts": _facts(run),
    }


def _facts(run: Run) -> dict[str, dict[str, object]]:
    """Properties of data and network by key, which the report's advice reads."""
    stem = operations.stem_costs(run.network)
    return run.dataset.facts | ({"stem": stem} if stem else {})
