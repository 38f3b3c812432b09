"""Runs a training inside a Python program: checks, plan, training, report; the process state is restored."""

from __future__ import annotations

import contextlib
import functools
import html
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import safetensors.torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drivetrain.data.custom import custom_data as custom
from drivetrain.data.custom import iterables
from drivetrain.data.custom.broadcasts import SAME_SHAPE
from drivetrain.data.custom.data_sources import DataSource
from drivetrain.data.custom.map_dataset import describe
from drivetrain.data.custom.user_loss import CustomTerms
from drivetrain.data.dataset import Dataset, Targets
from drivetrain.data.load_data import check_loss
from drivetrain.data.notes import format_note
from drivetrain.errors import CheckpointError, DataError, DrivetrainError, SpecError, Stopped, UserCodeError
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.job.embedded import EmbeddedJob, EmbeddedModel
from drivetrain.job.model import Freeze
from drivetrain.library import call_settings, components, host_process, object_record
from drivetrain.library.components import Refusal
from drivetrain.models import buffers, dry_run, fast_dropout, inspection, lr_groups, strided_convolution
from drivetrain.models.build import BuiltModel
from drivetrain.models.frozen_split import keeping_modes
from drivetrain.plan import effective_plan, plan_table
from drivetrain.plan import plan as plans
from drivetrain.plan.effective_plan import PlanRequest
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import Plan
from drivetrain.pretrained.earlier_run import WEIGHTS
from drivetrain.supervisor import extended_run, run_lifecycle
from drivetrain.supervisor.run_folder import RunFolder, find_continued, keep_defaults
from drivetrain.supervisor.run_lifecycle import RunLifecycle
from drivetrain.system.console import say
from drivetrain.system.run_files import MODEL, PLAN_FILE, REPORT_PAGE, RESULT_FILE, RunFiles
from drivetrain.system.signals import Interrupted, Signals, raise_stopped
from drivetrain.tracking.event_log import EventLog
from drivetrain.training.assemble import Assembly
from drivetrain.training.phase_timer import PhaseTimer
from drivetrain.training.run import Run
from drivetrain.training.train import train as train_run
from drivetrain.training.user_parts import TrainingInfo, UserParts
from drivetrain.tuning import assembly

REPORT_FRAME = '<iframe srcdoc="{page}" width="100%" height="600" style="border: 0"></iframe>'


@dataclass(frozen=True)
class Result:
    """The result of a finished training. A notebook displays its report."""

    folder: Path
    """Run folder: spec, hardware, plan, metrics, checkpoints, report."""
    metric: str
    """Metric that selected the best weights."""
    best: float | None
    """Best value of the metric; None if no evaluation gave a number: the weights are then from the last step."""
    metrics: Mapping[str, float]
    """All metrics of the best evaluation."""
    model: nn.Module = field(repr=False)
    """The network of the call, with the weights of the best evaluation and the original modes of its layers."""
    stopped: str
    """Reason why the training ended."""

    @property
    def report(self) -> Path:
        """Path of the report, a self-contained HTML file."""
        return self.folder / REPORT_PAGE

    def _repr_html_(self) -> str:
        """Return the report in an HTML frame, for a notebook."""
        try:
            page = self.report.read_text(encoding="utf-8")
        except OSError as error:
            page = f"no report: {error}"
        return REPORT_FRAME.format(page=html.escape(page))


@dataclass(frozen=True)
class TrainCall:
    """The arguments of a call, checked as far as possible without reading the data."""

    job: EmbeddedJob
    model: nn.Module
    sources: tuple[DataSource, DataSource]
    loss: object
    parts: UserParts
    runs: Path
    program: str
    """Path of the calling Python file."""
    weight_of: Callable[[Any], Any] | None = None
    """Function from targets to the divisor of their samples' loss."""
    new: bool = False
    """Whether a new run begins even if a run of this name is unfinished."""
    extend: Path | None = None
    """Finished run that this run continues."""
    layers_in_eval_mode: tuple[str, ...] = ()
    """Layers that the program has put into evaluation mode, within a network in training mode."""
    mode_events: tuple[tuple[str, str], ...] = ()
    """Kind and text of events about the treatment of the program's objects and modes."""


def run(call: TrainCall) -> Result:
    """Train with signal handlers installed, and restore the process and the modes of the layers afterwards.

    Raises:
        DrivetrainError: as in `drivetrain.train`.
    """
    with (
        host_process.restore_state(),
        host_process.install_handlers() as signals,
        keeping_modes(call.model),
        contextlib.ExitStack() as afterwards,
    ):
        try:
            with raise_stopped():
                job, dataset = _check_call(call)
                return _train(replace(call, job=job), dataset, signals, afterwards)
        except Stopped as stop:
            raise Stopped(
                stop.given, stop.possible, "call drivetrain.train again with the same name to resume"
            ) from None
        finally:
            fast_dropout.restore_layers(call.model)
            strided_convolution.restore_layers(call.model)


def _check_call(call: TrainCall) -> tuple[EmbeddedJob, Dataset]:
    """Open the data and check it with network and loss; returns the job with facts about both, and the data."""
    continued = find_continued(call.runs, call.job.name, call.extend, new=call.new)
    if continued:
        call = replace(call, job=cast(EmbeddedJob, keep_defaults(continued, call.job)))
    job, model = call.job, call.model
    refuse_argument = components.make_refusal(job.document.place(()))
    refuse = functools.partial(refuse_argument, "")
    _check_model(model, refuse)
    terms = _make_terms(call, refuse)
    dataset = _open_data(call, terms)
    check_loss(job, dataset)
    buffers.unshare(model)
    dry_run.check_network(model, dataset, "the model", refuse, functools.partial(_check_metrics, call, dataset))
    # This raises if a pattern matches no parameter; the result is not needed yet.
    lr_groups.make_groups(job, model, BuiltModel(model, "python", {}, Freeze()).list_trained())
    _check_schedule(call, dataset, refuse_argument)
    _report_notes(call, dataset, terms)
    return job.model_copy(update=_describe_inputs(call, dataset)), dataset


def _make_terms(call: TrainCall, refuse: Callable[[str, str, str], SpecError]) -> CustomTerms | None:
    """Wrap the loss of the program; None for a built-in loss. Raises SpecError if `weight_of` cannot be used with it."""
    terms = CustomTerms(call.loss, "loss", refuse, call.weight_of) if call.job.has_own_loss() else None
    if call.weight_of is not None and not (terms and callable(call.weight_of)):
        raise refuse(
            f"weight_of is {describe(call.weight_of)}, and loss {'your own' if terms else 'built in'}",
            "a function of the targets, beside a loss of your own that returns one number",
            "leave it out: built-in losses can be split",
        )
    return terms


def _check_schedule(call: TrainCall, dataset: Dataset, refuse: Refusal) -> None:
    """Refuse a scheduler of the program that ends before the training."""
    train = call.job.train
    per_epoch = iterables.batches_of(dataset, train.batch, train.seed).per_epoch
    steps = min(per_epoch * train.epochs, train.steps or per_epoch * train.epochs)
    components.check_schedule_length(call.parts, steps, -(-steps // per_epoch), refuse)


def _report_notes(call: TrainCall, dataset: Dataset, terms: CustomTerms | None) -> None:
    """Print notes about the data, the optimizer and the loss; the report shows the data's notes, too."""
    optimizer = call.parts.optimizer
    unoptimized = components.list_unoptimized(optimizer.optimizer, call.model) if optimizer else []
    if unoptimized:
        dataset.notes.append(
            f"{len(unoptimized)} trainable parameters are not in the optimizer and stay: {', '.join(unoptimized[:3])}"
        )
    for note in dataset.notes:
        say(format_note(note))
    for loss_note in terms.notes() if terms else ():
        say(format_note(loss_note, "loss"))


def _describe_inputs(call: TrainCall, dataset: Dataset) -> dict[str, object]:
    """Describe data and network for the stored spec, as its keys `data` and `model`."""
    facts = {
        "train": len(dataset.train),
        "validation": len(dataset.validation),
        "order": call.sources[0].order,
        "drop_last": dataset.drop_last,
        "inputs": tuple(tuple(field["shape"]) for field in dataset.preprocessing["inputs"]),
    }
    parameters = sum(parameter.numel() for parameter in call.model.parameters())
    network = EmbeddedModel(kind=type(call.model).__name__, parameters=parameters)
    return {"data": call.job.data.model_copy(update=facts), "model": network}


def _check_metrics(call: TrainCall, dataset: Dataset, outputs: Any, targets: Targets) -> None:
    """Refuse a metric that combines every sample with every other by mistake."""
    broadcast = call.parts.metrics.find_broadcast(outputs, targets, dataset.heads)
    if broadcast:
        refuse = components.make_refusal(call.job.document.place(()))
        raise refuse("metrics", f"update() of {broadcast[0]} {broadcast[1]}", *SAME_SHAPE)


def _check_model(model: nn.Module, refuse: Callable[[str, str, str], SpecError]) -> None:
    wrapper_name = dry_run.find_wrapper(model)
    if wrapper_name:
        raise refuse(
            f"model is a {wrapper_name}",
            "the network itself, in one process on one GPU",
            "give model.module; `drivetrain train` with limits: {gpus: all} starts a process for each GPU",
        )
    valueless_name = next((name for name, p in model.named_parameters() if p.device.type == "meta"), None)
    if valueless_name:
        raise refuse(
            f"{valueless_name} of the model is on the meta device and has no values",
            "a network whose parameters have values, on any device",
            "build it on the CPU, or load its weights first; the runtime moves it",
        )
    model.to("cpu")  # data and network are examined there first; the plan may move it


def _open_data(call: TrainCall, terms: CustomTerms | None) -> Dataset:
    job = call.job
    dataset = custom.build_dataset(job, call.sources, terms)
    if dataset.drop_last and len(dataset.train) < job.train.batch:
        raise DataError(
            f"train_data: has {len(dataset.train):,} samples, and drop_last leaves out batches below {job.train.batch}",
            "one whole batch or more",
            "lower batch_size, or drop_last=False",
        )
    return dataset


def _describe_objects(call: TrainCall) -> dict[str, str]:
    """Describe by name the objects that a resumed run must get again."""
    sources = zip(("train_data", "validation_data"), call.sources, strict=True)
    # Arrays are skipped, because the record of the data already contains their values.
    data = {
        name: source.data
        for name, source in sources
        if hasattr(source.data, "__dict__") and not isinstance(source.data, Tensor | TensorDataset)
    }
    data |= {f"{source.name}.collate_fn": source.collate for source in call.sources}
    data |= {f"{source.name}.sampler": source.sampler for source in call.sources}
    return object_record.collect_rows(call.model, call.loss, data, call.parts)


def _train(call: TrainCall, dataset: Dataset, signals: Signals, afterwards: contextlib.ExitStack) -> Result:
    """Train in the job's run folder, with the records of a supervisor.

    Args:
        call: call with the completed job.
        signals: installed handlers.
        afterwards: stack whose callbacks run after all changes to the network are undone.
    """
    machine = host_process.select_gpu(detect(call.runs), call.job)
    objects = _describe_objects(call)
    folder = _open_folder(call)
    lifecycle = RunLifecycle(folder, call.program)
    code = 0
    try:
        changed = object_record.check(folder.path, objects, extends=bool(folder.extends))
        # After `run` has undone its own changes to the network, the remaining differences come from the training, and
        # the next call must not be refused because of them. A finished run is not resumed.
        afterwards.callback(lambda: object_record.note_changes(folder.path, _describe_objects(call)) if code else None)
        lifecycle.begin(machine, call.job.track)
        for kind, text in (*call.mode_events, *(("resume", line) for line in changed)):
            EventLog(folder.path).add(kind, text)
        reason = train_run(_assemble(call, machine, folder, dataset, signals))
    except (Stopped, Interrupted):
        code = Stopped.exit_code
        raise
    except BaseException as error:
        code = error.exit_code if isinstance(error, DrivetrainError) else 1
        raise
    finally:
        lifecycle.end(code)
        os.close(folder.lock)
        # Only a finished or stopped run gets a report; a failed run has a message instead.
        if code in run_lifecycle.STATUS:
            lifecycle.report(output=subprocess.DEVNULL)
        lifecycle.finish_tracking()
    return _finish(call, folder.path, reason)


def _open_folder(call: TrainCall) -> RunFolder:
    try:
        return extended_run.open_run(call.runs, call.job, call.extend, PlanRequest(False, None), new=call.new)
    except CheckpointError as error:
        raise CheckpointError(error.given, error.possible, call_settings.translate_advice(error.action)) from None
    except SpecError as error:
        raise call_settings.as_call_error(error) from None


def _assemble(call: TrainCall, machine: Hardware, folder: RunFolder, dataset: Dataset, signals: Signals) -> Run:
    """Assemble the run with a plan that this process can execute."""
    job, timer = call.job, PhaseTimer()  # train.max_time includes the measurements
    # A user's own loop would leave frozen layers in training mode; so does this run.
    built_model = BuiltModel(call.model, "python", {}, Freeze(train_mode=True))
    facts = inspection.inspect_workload(dataset, built_model.module)
    plan_path = folder.path / PLAN_FILE
    stored = effective_plan.load_plan(folder.path) if folder.resumes and plan_path.exists() else None

    def decide(measured: Mapping[str, Measurement]) -> Plan:
        plan = plans.resolve(job, machine, facts, replay=stored.values() if stored else {}, measured=measured)
        return host_process.keep_process_settings(plans.keep_reasons(plan, stored) if stored else plan, machine)

    inputs = Assembly(job, machine, decide({}), folder.path, dataset, built_model, signals, facts, say, call.parts)
    if stored is None:
        inputs = assembly.measure_plan(inputs, decide)
    plan_table.show(inputs.plan, job, machine, plan_path, stored)
    run = assembly.apply_plan(inputs, timer)
    run.kept_in_eval_mode = [run.model.get_submodule(name) for name in call.layers_in_eval_mode]
    return run


def _finish(call: TrainCall, folder: Path, reason: str) -> Result:
    """Load the best weights into the network, and call `on_end`."""
    result = RunFiles(folder).read_object(RESULT_FILE)
    call.model.load_state_dict(safetensors.torch.load_file(folder / MODEL / WEIGHTS))
    call.model.eval()
    best: Mapping[str, Any] = result["best"]
    info = TrainingInfo(
        folder,
        step=result["steps"],
        steps=result["steps"],
        epoch=result["epochs"],
        epochs=call.job.train.epochs,
        metrics=MappingProxyType(best["metrics"]),
        reason=reason,
    )
    try:
        call.parts.callbacks.call("on_end", info)
    except UserCodeError as error:
        raise UserCodeError(error.given, f"the run is finished, in {folder}", error.action) from error.__cause__
    return Result(folder, best["metric"], best["value"], best["metrics"], call.model, reason)
