"""Training from a Python program, with its own network, data and loss, in its own process.

    result = runtime.train(network, train_data, validation_data, loss=my_loss, name="wear", epochs=10)

Hardware, plan, loop, report and run folder are those of `drivetrain train`. Settings that must be made before a process
starts (OpenMP runtime, allocator) stay as they are, which the plan shows.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from runtime.data import notes
from runtime.data.custom import load as custom
from runtime.data.custom.user_loss import CustomTerms
from runtime.data.dataset import Dataset
from runtime.data.load import check_loss
from runtime.errors import CheckpointError, DrivetrainError, Problem, SpecError, Stopped
from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job.embedded import EmbeddedData, EmbeddedJob, EmbeddedModel
from runtime.job.model import Freeze
from runtime.models import buffers, dry_run, fast_dropout, inspection, lr_groups, strided_convolution
from runtime.models.build import Model
from runtime.plan import effective_plan, show_plan
from runtime.plan import plan as plans
from runtime.supervisor import embedded_call, host_process, run_folder, run_lifecycle
from runtime.system.console import say
from runtime.system.files import read_json
from runtime.system.signals import Interrupted, Signals, stopping
from runtime.training import effective_settings
from runtime.training import run as runs
from runtime.training.phase_timer import PhaseTimer
from runtime.training.train import train as train_run
from runtime.tuning import tuner
from runtime.tuning.memory.micro_batch import MicroBatchSearch

Setting = bool | int | float | str


@dataclass(frozen=True)
class Result:
    """A finished training."""

    folder: Path
    """The run folder: spec, hardware, plan, metrics, checkpoints, report."""
    metric: str
    """The metric that selected the best weights."""
    best: float | None
    """Its best value; None if no evaluation gave a number, in which case the weights are those of the last step."""
    metrics: Mapping[str, float]
    """All metrics of that evaluation."""
    model: nn.Module
    """The network that was passed in, in evaluation mode, with the weights of that evaluation."""
    stopped: str
    """Why the training ended."""


def train(
    model: nn.Module,
    train_data: Any,
    validation_data: Any,
    *,
    loss: Callable[..., Any] | str | Mapping[str, Any] | None = None,
    name: str = "library",
    runs: Path | str = "runs",
    targets: str = "auto",
    names: Sequence[str] | None = None,
    optimize: Mapping[str, Setting] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    new: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Train a network, or resume the unfinished run of this name.

    Args:
        model: called with the inputs of a batch, one argument each; returns (N, outputs).
        train_data: a torch Dataset of (inputs, target), a TensorDataset, or a tuple of arrays, the targets last.
        validation_data: the same.
        loss: a callable of (outputs, targets) that returns one term per sample, (N,), or their mean; or a loss of the
            spec by name or as a mapping; chosen by the targets if None.
        name: of the run folders.
        runs: parent of the run folders.
        targets: kind of the targets: classes, labels, numbers, other; auto inspects them.
        names: of the classes, labels or numbers.
        optimize: optimizations by name, as in the spec.
        checkpoint: `every`, `keep` and `best`, as in the spec.
        limits: `gpus` and `gpu_memory`, as in the spec.
        new: start a new run, even if there is an unfinished one.
        quiet: print nothing, and suppress other output meanwhile; everything is in the run folder.
        settings: any key of the spec's `train:` part: epochs, batch_size, optimizer, schedule, max_time, ...

    Raises:
        SpecError: if a setting is wrong, or network, data and loss do not fit together.
        DataError: if the data cannot be used.
        Stopped: on Ctrl-C or SIGTERM, after a checkpoint; the same call resumes the run.
        DrivetrainError: for any other failure.
    """
    caller = sys._getframe(1)
    data = {"targets": targets} | ({} if names is None else {"names": list(names)})
    how = settings | ({} if loss is None else {"loss": embedded_call.loss_of(loss)})
    written = {
        "name": name,
        "task": "python",
        "data": data,
        "train": how,
        "optimize": dict(optimize or {}),
        "checkpoint": dict(checkpoint or {}),
        "limits": dict(limits or {}),
    }
    source = caller.f_code.co_filename
    job = embedded_call.spec_of(written, f"{Path(source).name}:{caller.f_lineno}:1")
    with _silent() if quiet else contextlib.nullcontext():
        return _listening(job, model, (train_data, validation_data), loss, Path(runs), new, source)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _listening(
    job: EmbeddedJob, model: nn.Module, data: tuple[object, object], loss: object, runs: Path, new: bool, source: str
) -> Result:
    """Check the arguments and train with signal handlers installed; afterwards the process is as before."""
    with host_process.as_found(), host_process.listening() as signals:
        try:
            with stopping():
                job, dataset = _tried(job, model, data, loss)
                network = Model(model, "python", {}, Freeze())
                return _trained(job, network, dataset, signals, runs, new, source)
        except Stopped as stop:
            raise Stopped(stop.given, stop.possible, "call runtime.train again with the same name to resume") from None
        finally:
            if isinstance(model, nn.Module):  # otherwise the error was reported already
                fast_dropout.as_before(model)
                strided_convolution.as_before(model)


def _tried(
    job: EmbeddedJob, model: nn.Module, parts: tuple[object, object], loss: object
) -> tuple[EmbeddedJob, Dataset]:
    """Check the data with network and loss; returns it with a spec that states what they are."""

    def refuse(given: str, possible: str, action: str) -> SpecError:
        return SpecError([Problem(job.document.place(()), "", given, possible, action)])

    if not isinstance(model, nn.Module):
        raise refuse(f"model is {type(model).__name__}", "a torch.nn.Module", "give an instance of your network")
    if copies := dry_run.wrapper(model):
        raise refuse(
            f"model is a {copies}",
            "the network itself, in one process on one GPU",
            "give model.module; `drivetrain train` with limits: {gpus: all} starts a process for each GPU",
        )
    terms = CustomTerms(loss, "loss", refuse) if job.has_own_loss() else None
    dataset = custom.dataset(job, parts, ("train_data", "validation_data"), job.data.targets, job.data.names, terms)
    check_loss(job, dataset)
    buffers.unshare(model)
    dry_run.check(model, dataset, "the model", refuse)
    lr_groups.groups(job, model, Model(model, "python", {}, Freeze()).trained())
    for note in dataset.notes:
        say(notes.line(note))
    data = EmbeddedData(
        targets=job.data.targets,
        names=job.data.names,
        train=len(dataset.train),
        validation=len(dataset.validation),
        inputs=tuple(tuple(x["shape"]) for x in dataset.preprocessing["inputs"]),
    )
    network = EmbeddedModel(kind=type(model).__name__, parameters=sum(p.numel() for p in model.parameters()))
    return job.model_copy(update={"data": data, "model": network}), dataset


def _trained(
    job: Job, network: Model, dataset: Dataset, signals: Signals, runs: Path, new: bool, source: str
) -> Result:
    """Train in the job's run folder, with the records that a supervisor keeps."""
    machine = host_process.machine(detect(runs), job)
    place = _opened(runs, job, new)
    lifecycle, code = run_lifecycle.RunLifecycle(place, source), 0
    try:
        lifecycle.begin(machine)
        reason = train_run(_assembled(job, machine, place, dataset, network, signals))
    except (Stopped, Interrupted):
        code = Stopped.exit_code
        raise
    except BaseException as error:
        code = error.exit_code if isinstance(error, DrivetrainError) else 1
        raise
    finally:
        lifecycle.end(code)
        os.close(place.lock)
        if code in run_lifecycle.STATUS:
            lifecycle.report(output=subprocess.DEVNULL)
    return _result(place.path, network.module, reason)


def _opened(runs: Path, job: Job, new: bool) -> run_folder.RunFolder:
    try:
        return run_folder.open_run(runs, job, new=new)
    except CheckpointError as error:
        raise CheckpointError(error.given, error.possible, error.action.replace("--new", "new=True")) from None


def _assembled(
    job: Job, machine: Hardware, place: run_folder.RunFolder, dataset: Dataset, network: Model, signals: Signals
) -> runs.Run:
    """Assemble the run under a plan that this process can execute."""
    facts, clock = inspection.inspect_workload(dataset, network.module), PhaseTimer()
    before = place.path / "plan.json"
    stored = effective_plan.plan_of(place.path) if place.resumes and before.exists() else None
    plan = plans.resolve(job, machine, facts, replay=stored.values() if stored else {})
    plan = host_process.as_started(plans.carried(plan, stored) if stored else plan, machine)
    if stored is None:
        found = MicroBatchSearch(job, machine, plan, dataset, network, facts, place.path, signals, say).measured()
        if found:
            plan = host_process.as_started(plans.resolve(job, machine, facts, measured=found), machine)
        found |= tuner.measured(job, machine, plan, dataset, network, place.path, signals, say)
        if found:
            plan = host_process.as_started(plans.resolve(job, machine, facts, measured=found), machine)
    show_plan.show(plan, job, machine, before, stored)
    run = runs.assemble(job, machine, plan, place.path, dataset, network, signals, clock)
    effective_settings.record(run, say)
    return run


def _result(folder: Path, model: nn.Module, reason: str) -> Result:
    best = read_json(folder / "result.json")["best"]
    model.load_state_dict(safetensors.torch.load_file(folder / "model" / "model.safetensors"))
    return Result(folder, best["metric"], best["value"], best["metrics"], model.eval(), reason)
