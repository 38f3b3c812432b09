"""Runs a training inside a Python program: checks, plan, training, report; the process stays as it was."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runtime.data import notes
from runtime.data.custom import data_sources
from runtime.data.custom import load as custom
from runtime.data.custom.arrays import described
from runtime.data.custom.data_sources import DataSource
from runtime.data.custom.user_loss import CustomTerms
from runtime.data.dataset import Dataset
from runtime.data.load import check_loss
from runtime.errors import CheckpointError, DataError, DrivetrainError, Problem, SpecError, Stopped, UserCodeError
from runtime.hardware import calibration_file
from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware
from runtime.job.embedded import EmbeddedJob, EmbeddedModel
from runtime.job.model import Freeze
from runtime.models import buffers, dry_run, fast_dropout, inspection, lr_groups, strided_convolution
from runtime.models.build import Model
from runtime.plan import effective_plan, show_plan
from runtime.plan import plan as plans
from runtime.plan.effective_plan import PlanRequest
from runtime.supervisor import (
    embedded_call,
    embedded_parts,
    embedded_record,
    extended_run,
    host_process,
    run_folder,
    run_lifecycle,
)
from runtime.supervisor.extended_run import ExtendRequest
from runtime.system.console import say
from runtime.system.run_files import RunFiles
from runtime.system.signals import Interrupted, Signals, stopping
from runtime.tracking import tracker_child
from runtime.tracking.event_log import EventLog
from runtime.training import effective_settings
from runtime.training.callbacks import TrainingInfo
from runtime.training.phase_timer import PhaseTimer
from runtime.training.run import Run, assemble
from runtime.training.train import train as train_run
from runtime.training.user_parts import UserParts
from runtime.tuning import tuner
from runtime.tuning.memory.micro_batch import MicroBatchSearch


@dataclass(frozen=True)
class Call:
    """The arguments of a call, checked as far as possible without reading the data."""

    job: EmbeddedJob
    model: Any
    sources: tuple[DataSource, DataSource]
    loss: object
    parts: UserParts
    runs: Path
    program: str
    """The file that calls."""
    weight_of: Callable[[Any], Any] | None = None
    """What the samples of some targets count in the loss."""
    new: bool = False
    epoch_steps: int | None = None
    extend: ExtendRequest | None = None
    evaluated: tuple[str, ...] = ()
    """Layers that the program has put into evaluation mode, within a network in training mode."""
    consequences: tuple[tuple[str, str], ...] = ()
    """What the training does with the modes of the program: kind and text of events."""


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    folder: Path
    best: Mapping[str, Any]
    """`best` of its result.json."""
    reason: str


def run(call: Call) -> Trained:
    """Train with signal handlers installed; afterwards the process is as before.

    Raises:
        DrivetrainError: as `runtime.train`.
    """
    with host_process.as_found(), host_process.listening() as signals, contextlib.ExitStack() as afterwards:
        try:
            with stopping():
                job, dataset = _tried(call)
                return _trained(replace(call, job=job), dataset, signals, afterwards)
        except Stopped as stop:
            raise Stopped(stop.given, stop.possible, "call runtime.train again with the same name to resume") from None
        finally:
            if isinstance(call.model, nn.Module):  # otherwise the error was reported already
                fast_dropout.as_before(call.model)
                strided_convolution.as_before(call.model)


def _tried(call: Call) -> tuple[EmbeddedJob, Dataset]:
    """Check the data with network and loss; returns it with a spec that states what they are."""
    job, model = call.job, call.model

    def refuse(given: str, possible: str, action: str) -> SpecError:
        return SpecError([Problem(job.document.place(()), "", given, possible, action)])

    _check_model(model, refuse)
    terms = CustomTerms(call.loss, "loss", refuse, call.weight_of) if job.has_own_loss() else None
    if call.weight_of is not None and not (terms and callable(call.weight_of)):
        raise refuse(
            f"weight_of is {described(call.weight_of)}, and loss {'your own' if terms else 'built in'}",
            "a function of the targets, beside a loss of your own that returns one number",
            "leave it out: built-in losses can be split",
        )
    dataset = _opened_data(call, terms)
    check_loss(job, dataset)
    buffers.unshare(model)
    dry_run.check(model, dataset, "the model", refuse)
    lr_groups.groups(job, model, Model(model, "python", {}, Freeze()).trained())
    if call.parts.optimizer and (lost := embedded_parts.left_out(call.parts.optimizer.optimizer, model)):
        dataset.notes.append(
            f"{len(lost)} trainable parameters are not in the optimizer and stay: {', '.join(lost[:3])}"
        )
    for note in dataset.notes:
        say(notes.line(note))
    if terms and (told := terms.note()):
        say(notes.line(told, "loss"))
    data = job.data.model_copy(
        update={
            "train": len(dataset.train),
            "validation": len(dataset.validation),
            "order": call.sources[0].order,
            "drop_last": dataset.drop_last,
            "inputs": tuple(tuple(x["shape"]) for x in dataset.preprocessing["inputs"]),
        }
    )
    network = EmbeddedModel(kind=type(model).__name__, parameters=sum(p.numel() for p in model.parameters()))
    return job.model_copy(update={"data": data, "model": network}), dataset


def _check_model(model: Any, refuse: Callable[[str, str, str], SpecError]) -> None:
    if not isinstance(model, nn.Module):
        raise refuse(f"model is {type(model).__name__}", "a torch.nn.Module", "give an instance of your network")
    if copies := dry_run.wrapper(model):
        raise refuse(
            f"model is a {copies}",
            "the network itself, in one process on one GPU",
            "give model.module; `drivetrain train` with limits: {gpus: all} starts a process for each GPU",
        )
    empty = next((name for name, p in model.named_parameters() if p.device.type == "meta"), None)
    if empty:
        raise refuse(
            f"{empty} of the model is on the meta device and has no values",
            "a network whose parameters have values, on any device",
            "build it on the CPU, or load its weights first; the runtime moves it",
        )
    model.to("cpu")  # the first look at data and network is there; the plan may move it


def _opened_data(call: Call, terms: CustomTerms | None) -> Dataset:
    job, (train, held) = call.job, call.sources
    seed = job.train.seed
    opened = (
        data_sources.training(train, seed, job.train.batch, call.epoch_steps),
        data_sources.validation(held, seed),
    )
    collates = (train.collate, held.collate)
    names = ("train_data", "validation_data")
    dataset = custom.dataset(job, opened, names, job.data.targets, job.data.names, terms, collates=collates)
    dataset.order, dataset.drop_last = data_sources.order(train, seed), train.drop_last
    dataset.notes += data_sources.notes(train, held, dataset.order)
    if train.drop_last and len(dataset.train) < job.train.batch:
        raise DataError(
            f"train_data: has {len(dataset.train):,} samples, and drop_last leaves out batches below {job.train.batch}",
            "one whole batch or more",
            "lower batch_size, or drop_last=False",
        )
    return dataset


def _objects(call: Call) -> dict[str, str]:
    """What a resumed run must be started with again."""
    sources = zip(("train_data", "validation_data"), call.sources, strict=True)
    # The values of arrays are in the record of the data.
    data = {
        name: source.data for name, source in sources if hasattr(source.data, "__dict__") and not _is_array(source.data)
    }
    data |= {f"{source.name}.collate_fn": source.collate for source in call.sources}
    data |= {f"{source.name}.sampler": source.sampler for source in call.sources}
    return embedded_record.rows(call.model, call.loss, data, call.parts)


def _is_array(data: object) -> bool:
    return isinstance(data, Tensor | TensorDataset)


def _trained(call: Call, dataset: Dataset, signals: Signals, afterwards: contextlib.ExitStack) -> Trained:
    """Train in the job's run folder, with the records that a supervisor keeps."""
    machine = host_process.machine(detect(call.runs), call.job)
    objects = _objects(call)
    place = _opened(call)
    lifecycle, code, tracker = run_lifecycle.RunLifecycle(place, call.program), 0, None
    try:
        changed = embedded_record.check(place.path, objects, extends=bool(place.extends))
        afterwards.callback(lambda: embedded_record.note_changes(place.path, _objects(call)) if code else None)
        lifecycle.begin(machine)
        for kind, text in (*call.consequences, *(("resume", line) for line in changed)):
            EventLog(place.path).add(kind, text)
        tracker = tracker_child.beside(place.path, call.job.track)
        reason = train_run(_assembled(call, machine, place, dataset, signals))
    except (Stopped, Interrupted):
        code = Stopped.exit_code
        raise
    except BaseException as error:
        code = error.exit_code if isinstance(error, DrivetrainError) else 1
        raise
    finally:
        lifecycle.end(code)
        refused = extended_run.is_refused(place, code)
        if tracker and refused:
            tracker.cancel()
        if refused:
            extended_run.discard(place)
        os.close(place.lock)
        if code in run_lifecycle.STATUS:
            lifecycle.report(output=subprocess.DEVNULL)
        if tracker and not refused:
            tracker.finish(stopped=code == Stopped.exit_code)
    return _finished(call, place.path, reason)


def _opened(call: Call) -> run_folder.RunFolder:
    try:
        if call.extend:
            return extended_run.open_extended(
                call.runs, call.job, call.extend, PlanRequest(plain=False, plan=None), new=call.new
            )
        return run_folder.open_run(call.runs, call.job, new=call.new)
    except CheckpointError as error:
        raise CheckpointError(error.given, error.possible, embedded_call.in_python(error.action)) from None
    except SpecError as error:
        raise embedded_call.of_call(error) from None


def _assembled(call: Call, machine: Hardware, place: run_folder.RunFolder, dataset: Dataset, signals: Signals) -> Run:
    """Assemble the run under a plan that this process can execute."""
    # Frozen layers stay in the mode that a loop of the program would train them in.
    job, parts, network = call.job, call.parts, Model(call.model, "python", {}, Freeze(train_mode=True))
    facts, clock = inspection.inspect_workload(dataset, network.module), PhaseTimer()
    before = place.path / "plan.json"
    stored = effective_plan.plan_of(place.path) if place.resumes and before.exists() else None
    machine = machine if stored else calibration_file.attached(machine)
    plan = plans.resolve(job, machine, facts, replay=stored.values() if stored else {})
    plan = host_process.as_started(plans.carried(plan, stored) if stored else plan, machine)
    if stored is None:
        found = MicroBatchSearch(
            job, machine, plan, dataset, network, facts, place.path, signals, say, parts
        ).measured()
        if found:
            plan = host_process.as_started(plans.resolve(job, machine, facts, measured=found), machine)
        found |= tuner.measured(job, machine, plan, dataset, network, place.path, signals, say, parts=parts)
        if found:
            plan = host_process.as_started(plans.resolve(job, machine, facts, measured=found), machine)
    show_plan.show(plan, job, machine, before, stored)
    made = assemble(job, machine, plan, place.path, dataset, network, signals, clock, parts=parts)
    made.frozen = [made.model.get_submodule(name) for name in call.evaluated]
    effective_settings.record(made, say)
    return made


def _finished(call: Call, folder: Path, reason: str) -> Trained:
    """Load the best weights into the network, and call `on_end`."""
    done = RunFiles(folder).read_json("result.json")
    call.model.load_state_dict(safetensors.torch.load_file(folder / "model" / "model.safetensors"))
    call.model.eval()
    best, train = done["best"], call.job.train
    info = TrainingInfo(
        folder,
        done["steps"],
        done["steps"],
        done["epochs"],
        train.epochs,
        metrics=MappingProxyType(best["metrics"]),
        reason=reason,
    )
    try:
        call.parts.callbacks.call("on_end", info)
    except UserCodeError as error:
        raise UserCodeError(error.given, f"the run is finished, in {folder}", error.action) from error.__cause__
    return Trained(folder, best, reason)
