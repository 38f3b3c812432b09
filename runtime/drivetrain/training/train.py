"""Trains an assembled run from its first step or last checkpoint to its end, and writes all its records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from drivetrain.data.dataset import Batch
from drivetrain.data.loader.batches import fetch
from drivetrain.errors import NumericsError, PeerError, Stopped, UserCodeError
from drivetrain.job.values import parse_duration
from drivetrain.models import operations
from drivetrain.system.console import Detail, say
from drivetrain.system.files import write_json
from drivetrain.system.run_files import RESULT_FILE
from drivetrain.system.run_records import RunState
from drivetrain.system.signals import raise_stopped
from drivetrain.tasks import modality_of
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.tracking.monitor import Monitor
from drivetrain.training import (
    batch_inputs,
    effective_settings,
    final_model,
    forecast,
    loop,
    profiling,
    recorded_inputs,
    solved_heads,
    trained_layers,
)
from drivetrain.training.checkpoints import rank_checkpoints, resume, run_state
from drivetrain.training.evaluation import worst_mistakes
from drivetrain.training.final_model import FinalWeights, save_model
from drivetrain.training.nonfinite import NotFinite
from drivetrain.training.profiling import Profiler
from drivetrain.training.progress import Progress, measure_since_last_call
from drivetrain.training.run import Run
from drivetrain.training.saver import NonSavingRank, Saver


def train(run: Run, *, trace: bool = False) -> str:
    """Train an assembled run to its end, and write its model and records; returns the reason for the end.

    Raises:
        Stopped: on a signal, after a checkpoint if there is progress.
    """
    folder = run.folder
    try:
        saver = _prepare_run(run)
    except BaseException:
        # TensorBoard's thread would abort the process if it were still inside torch while the interpreter shuts down.
        if run.metrics:
            run.metrics.close()
        raise
    assert run.metrics is not None
    progress = Progress(run.total_steps)
    profiler = Profiler(run) if trace and run.ranks.is_rank0 else None
    every = parse_duration(run.job.monitor.every)
    speed = measure_since_last_call(run)
    with Monitor(run.folder, every, run.hardware.gpus, progress=speed) as monitor:
        try:
            reason = _train_and_disconnect(run, saver, progress, profiler)
            # Only rank 0 writes the model. From here on, a signal stops the run after another save.
            if not run.ranks.is_rank0:
                return reason
            best, test_results = _write_model(run, saver)
        finally:
            if profiler:
                profiler.close()
            progress.close()
            run.metrics.close()
    result = _build_result(run, best, reason, monitor.peak)
    if progress.forecast:
        result["forecast"] = forecast.compare_forecast(progress.forecast, result)
    write_json(folder / RESULT_FILE, result | ({"test": test_results} if test_results else {}))
    say(f"done: {reason}; {best.describe()}; model in {folder}/model")
    return reason


def _write_model(run: Run, saver: Saver) -> tuple[FinalWeights, dict[str, Any]]:
    """Save, and write the best weights and their records; returns the weights and the results on the test data."""
    try:
        with raise_stopped():
            saver.save_final()
            best = final_model.choose_weights(run)
            save_model(run, best)
            for line in final_model.describe_calibration(best):
                say(Detail(line))
            final_model.record_thresholds(run, best)
            effective_settings.record_changes(run, say)
            return best, final_model.test_model(run)
    except Stopped as stop:
        raise _save_after_stop(run, saver, stop) from None


def _train_and_disconnect(run: Run, saver: Saver, progress: Progress, profiler: Profiler | None) -> str:
    """Train until the end, and return the reason for it. All processes stay connected until rank 0 has saved.

    Raises:
        Stopped: on a signal or when `max_time` is used up, after a checkpoint if there is progress.
    """
    try:
        with raise_stopped():
            reason = loop.fit(run, saver, progress, profiler)
            if run.ranks.is_rank0:
                recorded_inputs.report_changes(run)
    except Stopped as stop:
        stop_with_advice = _save_after_stop(run, saver, stop)
        run.ranks.barrier()
        run.ranks.leave()
        raise stop_with_advice from None
    except UserCodeError as error:
        raise UserCodeError(
            error.given, f"saved as {saver.save_final()}", f"{error.action}; the same call resumes there"
        ) from (error.__cause__)
    # A process may still be reading the last exchange; from here on none needs another.
    with contextlib.suppress(PeerError):
        run.ranks.barrier()
    run.ranks.leave()
    return reason


def _prepare_run(run: Run) -> Saver:
    """Restore the last checkpoint, if there is one, and open the records; returns the saver."""
    loaded, damaged = rank_checkpoints.load_latest(run)
    for line in damaged:
        say(line)
    if run.ranks.is_rank0:
        recorded_inputs.record_inputs(run, say, resumes=loaded is not None)
    recorded_inputs.check_data_of_nodes(run)
    if loaded:
        run_state.restore(run, loaded)
        say(f"resumed from {loaded.path.name}, epoch {run.counters.epoch + 1}")
    solved_heads.announce_solving(run)
    _warn_of_sizes(run)
    on_gpu = run.device.type == "cuda"
    say(resume.describe_promise(deterministic=run.job.train.is_deterministic(on_gpu=on_gpu), on_gpu=on_gpu))
    run.metrics = MetricsLog(
        run.folder,
        after=run.counters.step,
        epoch=run_state.count_evaluated_epochs(run),
        report=lambda text: run.events.add("tensorboard", text, run.counters.step),
    )
    if run.ranks.is_rank0:
        show_first_batch(run)
    saver = Saver(run) if run.ranks.is_rank0 else NonSavingRank(run)
    run.begin_time()
    if not loaded:
        # This detects a full or read-only disk now, not after an epoch, and provides a checkpoint to roll back to.
        try:
            saver.save_final()
        except NotFinite as problem:
            raise NumericsError(
                f"the network's weights before the first step are {problem}",
                "finite numbers in every parameter",
                "initialize these parameters in the network, or check the file from which they were loaded",
            ) from None
    saver.warn_if_disk_small()
    profiling.split_step_time(run)
    return saver


def _warn_of_sizes(run: Run) -> None:
    """Print a line if the batch is larger than the data, or if `train.steps` exceeds the steps of the epochs."""
    samples = run.batches.samples
    if run.job.train.batch > samples and not run.only_solves_heads:
        say(
            f"train.batch_size: {run.job.train.batch:,} is more than the {samples:,} training samples; each epoch has one step"
        )
    if run.total_steps < (run.job.train.steps or 0) and not run.only_solves_heads:
        say(
            f"train.steps: {run.job.train.steps:,} is more than the {run.total_steps:,} steps of train.epochs: "
            f"{run.job.train.epochs:,}; the run ends after {run.total_steps:,} steps; raise train.epochs to train longer"
        )


def _save_after_stop(run: Run, saver: Saver, stop: Stopped) -> Stopped:
    """Save if a step was trained; returns the error with the path of the checkpoint and how to resume."""
    action = "run the same command"
    if run.time_left() <= 0 and run.counters.samples == run.earlier_samples:
        action = "raise train.max_time (it passed before this attempt finished a step), and run the command"
    if run.counters.step == 0:
        return Stopped(f"{stop.given} before the first step finished", "", f"{action} again")
    try:
        saved = f"saved as {saver.save_final()}"
    except NotFinite as problem:
        saved = f"not saved: {problem}; the last checkpoint is kept"
    return Stopped(f"{stop.given} after step {run.counters.step}", saved, f"{action} again to resume from there")


def _build_result(run: Run, best: FinalWeights, reason: str, peak_bytes: int) -> dict[str, object]:
    phase_seconds = run.clock.phases
    training_seconds = max(1e-9, sum(phase_seconds.get(name, 0.0) for name in (*profiling.STEP_PHASES, "input")))
    return {
        "steps": run.counters.step,
        "epochs": run.counters.epoch,
        "seconds": run.counters.seconds + run.clock.seconds,
        "samples_per_second": (run.counters.samples - run.earlier_samples) / training_seconds,
        "best": {
            "metric": best.metric,
            "value": best.value,
            "step": best.step,
            "epoch": best.epoch,
            "metrics": best.metrics,
        },
        "last": run.last_metrics,
        "confusion": best.confusion,
        "mistakes": worst_mistakes.describe_mistakes(run, best.confusion),
        "peak_memory": peak_bytes,
        "memory_limit": run.hardware.memory.limit,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "trainable": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        "stopped_because": reason,
        "attempt": RunState.read(run.folder).attempts,
        "solved": run.counters.solved,
        **({"within_seconds": run.time_target.read_clock()} if run.time_target else {}),
        "phases": {name: round(value, 4) for name, value in phase_seconds.items()},
        "data": [*run.dataset.notes, *trained_layers.describe_unfreezing(run), *trained_layers.describe_rates(run)],
        "model": operations.describe_flop(run.built_model),
        "facts": run.dataset.facts,  # for the advice in the report
    }


SHOWN_IMAGES = 16
"""Number of images of the first batch that are shown."""


def show_first_batch(run: Run) -> None:
    """Show the first batch of images in TensorBoard, without changing the run's random numbers."""
    assert run.metrics is not None
    if run.counters.step or not modality_of(run.job).has_pictures:
        return
    try:
        run.metrics.board.put(run.counters.step, {"batch/as the network sees it": _draw_first_batch(run)})
    except Exception as error:
        # The training will report an unreadable sample. Here only the picture is missing.
        run.events.add("tensorboard", f"the first batch could not be drawn: {error}", run.counters.step)


def _draw_first_batch(run: Run) -> Callable[[], Image.Image]:
    data = run.readable
    batch = next(iter(fetch(data.train, run.batches.order(0)[:1]))).to(run.device)
    with torch.no_grad():
        ready = Batch(batch.ids, data.prepare(batch.inputs, batch.ids, 0), batch.targets)
        images = batch_inputs.mix_samples(run, ready).inputs[0][:SHOWN_IMAGES].float().cpu()
    scale = run.dataset.preprocessing
    return partial(tile, images, scale.get("mean"), scale.get("std"))


MIN_SIDE_PIXELS = 96
"""Minimum side in pixels; smaller images are enlarged to it."""


def tile(images: Tensor, mean: object = None, std: object = None) -> Image.Image:
    """Arrange images (N, channels, height, width) in a grid of four columns, and undo their normalization."""
    if mean and std:
        images = images * torch.tensor(std).view(1, -1, 1, 1) + torch.tensor(mean).view(1, -1, 1, 1)
    else:
        images = (images - images.min()) / (images.max() - images.min()).clamp_min(1e-9)
    top = 1.0 if images.max() <= 2 else 255.0
    pixels = (images / top).clamp(0, 1).mul(255).to(torch.uint8)[:, :3]
    pixels = pixels.expand(-1, 3, -1, -1) if pixels.shape[1] != 3 else pixels
    side = max(MIN_SIDE_PIXELS, *pixels.shape[2:])
    columns = min(4, len(pixels))
    sheet = Image.new("RGB", (columns * (side + 4), -(-len(pixels) // columns) * (side + 4)), "white")
    for number, image in enumerate(pixels):
        tile = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        tile.thumbnail((side, side))
        if max(tile.size) < side:
            tile = tile.resize((side, side), Image.Resampling.NEAREST)
        sheet.paste(tile, (number % columns * (side + 4) + 2, number // columns * (side + 4) + 2))
    return sheet
