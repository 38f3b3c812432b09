"""`drivetrain.train`: trains inside a Python program with the program's network, data and loss.

    result = drivetrain.train(network, train_data, validation_data, loss=my_loss, name="wear", epochs=10)

Hardware detection, plan, training loop, report and run folder are the same as on the command line. Settings that take
effect only when a process starts (OpenMP runtime, allocator) are not changed; the plan says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from drivetrain.data.custom import data_sources
from drivetrain.library import call_settings, components, embedded_run
from drivetrain.library.components import Refusal
from drivetrain.library.embedded_run import Result, TrainCall
from drivetrain.system.console import guard_block
from drivetrain.training.user_parts import Callback, Callbacks


def train(
    model: nn.Module,
    train_data: Any,
    validation_data: Any = None,
    *,
    loss: Callable[..., Any] | str | Mapping[str, Any] | None = None,
    weight_of: Callable[[Any], Any] | None = None,
    optimizer: Mapping[str, Any] | str | Optimizer | Callable[[list[nn.Parameter]], Optimizer] | None = None,
    schedule: Mapping[str, Any] | str | LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
    schedule_every: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    on_step: Callback | None = None,
    on_epoch: Callback | None = None,
    on_end: Callback | None = None,
    name: str = "library",
    runs: Path | str = "runs",
    targets: str = "auto",
    names: Sequence[str] | None = None,
    gpus: str | Sequence[int] | None = None,
    optimize: Mapping[str, bool | int | float | str] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    monitor: Mapping[str, Any] | None = None,
    extend: Path | str | Result | None = None,
    new: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Train a network, or resume the unfinished run of this name.

    Args:
        model: network that is called with the inputs of a batch, one argument each, and returns (N, outputs).
        train_data: a torch Dataset of (inputs, target), a TensorDataset, a tuple of arrays with the targets last, an
            IterableDataset, or a DataLoader of one of these.
        validation_data: data of the same kinds; required, because it chooses the best weights.
        loss: a callable of (outputs, targets) that returns one term per sample, (N,), or their mean; or a loss of the
            spec, by name or as a mapping. None chooses a loss that fits the targets.
        weight_of: a function of the targets of some samples that returns the divisor of their summed terms in `loss`,
            or one weight per sample. Without it, trial calls determine whether `loss` is a mean or a sum; if it is
            neither, a batch is not split.
        optimizer: an optimizer of the spec, by name or as a mapping; an optimizer for the model's parameters; or a
            function that gets the list of trainable parameters and returns an optimizer.
        schedule: a schedule of the spec, by name or as a mapping; a torch scheduler for `optimizer`; or a function
            that gets the optimizer and returns a scheduler. None is one-cycle, or constant rates if `optimizer` is an
            object or a function.
        schedule_every: interval of the steps of a torch scheduler: `step` or `epoch`.
        metrics: metric objects by name, such as metrics of torchmetrics; every evaluation records them as
            `validation/NAME`.
        on_step: function that is called with a `TrainingInfo` after every optimizer step.
        on_epoch: function that is called with a `TrainingInfo` after every evaluation.
        on_end: function that is called with a `TrainingInfo` after the run has finished.
        name: name of the run; its folders are NAME-001, NAME-002, ...
        runs: parent of the run folders.
        targets: kind of the targets: classes, labels, numbers or other; `auto` inspects them.
        names: names of the classes, labels or numbers.
        gpus: `limits.gpus` of the spec: `auto`, `none` or a list of one number.
        optimize: optimizations by name, as in the spec.
        checkpoint: `every`, `keep` and `best`, as in the spec.
        limits: `gpus` and `gpu_memory`, as in the spec.
        monitor: `every`, as in the spec.
        extend: a finished run to continue, as its folder or its Result.
        new: whether to start a new run even if there is an unfinished run.
        quiet: whether to print nothing, also not the output of other code; the run folder has all messages.
        settings: any key of the spec's `train:` part: epochs, batch_size, epoch_steps, clip_norm, max_time, ...; and
            `lr` and `weight_decay` of the optimizer.

    Raises:
        SpecError: if a setting is invalid, or network, data and loss do not fit together.
        DataError: if the data cannot be used.
        UserCodeError: if a callback or a metric raises; there is a checkpoint, and the same call resumes.
        Stopped: on Ctrl-C or SIGTERM, after a checkpoint; the same call resumes the run.
        DrivetrainError: for any other failure.
    """
    caller = sys._getframe(1)
    # Errors point to the caller's line, as errors in a spec point to a line of the YAML file.
    call_site = call_settings.locate(caller)
    refuse = components.make_refusal(call_site)
    components.check_module(model, refuse)
    _check_validation(validation_data, refuse)
    optimizer, settings = call_settings.expand_shorthands(optimizer, settings, refuse)
    callbacks = Callbacks(on_step, on_epoch, on_end)
    with guard_block(), _silent() if quiet else contextlib.nullcontext():
        sources = (
            data_sources.unwrap_source(train_data, "train_data"),
            data_sources.unwrap_source(validation_data, "validation_data"),
        )
        user_parts, described, scores = components.collect_parts(
            model, optimizer, schedule, schedule_every, metrics, callbacks, refuse
        )
        spec_keys = {
            "name": name,
            "task": "python",
            "data": {"targets": targets} | ({} if names is None else {"names": list(names)}),
            "train": call_settings.build_train_settings(settings, described, loss, sources[0], refuse),
            "optimize": dict(optimize or {}),
            "checkpoint": dict(checkpoint or {}),
            "limits": call_settings.build_limits(limits or {}, gpus, refuse),
            "monitor": dict(monitor or {}),
            "own_metrics": scores,
        }
        job = call_settings.build_job(spec_keys, call_site)
        components.check_metric_directions(user_parts.metrics.metrics, job, refuse)
        is_unclipped = bool(user_parts.optimizer) and "clip_norm" not in settings
        finished = extend.folder if isinstance(extend, Result) else extend
        return embedded_run.run(
            TrainCall(
                job=job,
                model=model,
                sources=sources,
                loss=loss,
                weight_of=weight_of,
                parts=user_parts,
                runs=Path(runs),
                program=caller.f_code.co_filename,
                new=new,
                extend=None if finished is None else Path(finished),
                layers_in_eval_mode=call_settings.list_layers_in_eval_mode(model),
                mode_events=tuple(call_settings.list_mode_events(model, unclipped=is_unclipped)),
            )
        )


def _check_validation(validation_data: object, refuse: Refusal) -> None:
    """Refuse a call without validation data; raises SpecError."""
    if validation_data is None:
        raise refuse(
            "validation_data",
            "is missing",
            "samples that are not trained on, which choose the best weights",
            "split the data: train_data, validation_data = torch.utils.data.random_split(data, [0.85, 0.15])",
        )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard the output of this block."""
    with open(os.devnull, "w", encoding="utf-8") as null_device, contextlib.redirect_stdout(null_device):
        yield
