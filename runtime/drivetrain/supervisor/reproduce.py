"""`drivetrain reproduce`: trains a finished run again from its own records, and compares the result bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError
from drivetrain.hardware.detect import detect
from drivetrain.job import Job, extension
from drivetrain.job.custom import list_user_functions
from drivetrain.job_spec.spec_source import SpecSource, fetch, load_stored_job
from drivetrain.models import code_consent
from drivetrain.plan import plan as plans
from drivetrain.pretrained.earlier_run import WEIGHTS
from drivetrain.supervisor import provenance, run_folder, same_conditions, supervisor
from drivetrain.supervisor.supervisor import TrainRequest
from drivetrain.system import run_files
from drivetrain.system.console import say
from drivetrain.system.files import hash_file
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import RunResult, RunState, read_mapping, read_objects
from drivetrain.system.version import VERSION
from drivetrain.tuning import run_length


@dataclass(frozen=True)
class ReproduceRequest:
    """The options of `drivetrain reproduce`."""

    run: Path
    runs: Path = Path("runs")
    run_code: bool = False
    """Whether the user code of a run that was not trained here may be run."""


def reproduce(request: ReproduceRequest) -> int:
    """Train again under the recorded spec and plan; returns 0 if the result has the same bits.

    Raises:
        CheckpointError: if the run cannot be trained again from its records, or the result differs.
        DrivetrainError: as `train`.
    """
    run = request.run
    _check_finished(run)
    job = load_stored_job(run, fetch)
    folder = job.folder
    # The folder that the run names may be anybody's: only the code that is in the run, after the same question as of
    # `evaluate`, runs from there.
    digests = (
        code_consent.read_allowed_digests(run / "model", consent=request.run_code)
        if any(list_user_functions(job))
        else None
    )
    if digests is not None:
        say(f"running the run's own code: {', '.join(digests)} in {folder}")
    if changed := same_conditions.find_changed_file(run, job):
        raise CheckpointError(
            f"{changed} is not the file that {run} was trained with",
            "the files with the digests in its data.json and code.json",
            "restore the file",
        )
    _check_length(run, job)
    unlike = list(_list_differences(run, request.runs))
    for line in unlike:
        say(f"warning: {line}")
    name = f"{job.name[:52]}-reproduced"
    code = supervisor.train(
        TrainRequest(
            SpecSource(
                run / run_files.JOB_FILE,
                (f"name={name}", "track=null", "checkpoint.copy_to=null"),
                run_length.read_measured(run, job),
                folder,
                digests,
            ),
            request.runs,
            plan=run / run_files.PLAN_FILE,
            baselines=False,
        )
    )
    if code:
        say("the same command resumes it")
        return code
    repetition = run_folder.list_numbered(request.runs, name)[-1]
    if difference := _find_first_difference(run, repetition):
        raise CheckpointError(
            f"{repetition} has not the same bits as {run}: {difference}",
            "the same bits on the same chip, with the same libraries, threads and files",
            f"drivetrain compare {run} {repetition}" + "".join(f"; {line}" for line in unlike),
        )
    say(f"reproduced: {repetition} has the weights and the metrics of {run}, bit for bit")
    return 0


def _check_finished(run: Path) -> None:
    if RunState.read(run).status != "done":
        raise CheckpointError(
            f"{run} is not a finished run (status: {RunState.read(run).status or 'not recorded'})",
            "a run that was trained to its end by `drivetrain train`",
            "train it to its end first",
        )
    if extended := extension.read_name(run):
        raise CheckpointError(
            f"{run} continues {extended}, and began with its weights",
            "a run that began with its first epoch",
            f"drivetrain reproduce {run.parent / extended}, then extend the result in the same way",
        )
    plans.read_plan(run)


def _list_differences(run: Path, runs: Path) -> Iterator[str]:
    """What is not as it was, and can change the last bits."""
    record = RunFiles(run).read_object(run_files.PROVENANCE_FILE)
    before = {"drivetrain": record.get("drivetrain", VERSION), "the image": read_mapping(record, "image").get("id")}
    before |= _describe_machine(RunFiles(run).read_object(run_files.HARDWARE_FILE))
    now = {"drivetrain": VERSION, "the image": (provenance.describe_image() or {}).get("id")}
    now |= _describe_machine(detect(runs).to_json())
    for subject, old in before.items():
        if old != now[subject]:
            yield f"{subject} was {old or 'none'} and is {now[subject] or 'none'}"


def _describe_machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    cpu = read_mapping(machine, "cpu")
    flags = cpu.get("flags")
    return {
        "torch": read_mapping(machine, "torch").get("version"),
        "the processor": cpu.get("model"),
        "the instruction set": " ".join(map(str, flags)) if isinstance(flags, list | tuple) else "",
        "the GPUs": ", ".join(str(gpu.get("name")) for gpu in read_objects(machine, "gpus")),
    }


def _check_length(run: Path, job: Job) -> None:
    """Refuse a run whose number of steps followed the clock; raises CheckpointError if it did."""
    # The number of steps says nothing: early stopping and solved heads end a run before its length, too.
    if job.train.within and RunResult.read(run).length_changed:
        raise CheckpointError(
            f"{run} was to end within {job.train.within}, and its steps became fewer or more while it trained (events.jsonl)",
            "a run whose length did not follow the clock",
            "train it with train.epochs and train.steps in place of train.within",
        )


def _find_first_difference(run: Path, repetition: Path) -> str:
    """The first row of the metrics that differs, or else the weights; empty if all is the same."""
    for old, new in zip_longest(
        *(RunFiles(folder).read_rows(run_files.METRICS_FILE) for folder in (run, repetition)), fillvalue={}
    ):
        if "batch" not in old:  # an older run has no digests of its batches
            new.pop("batch", None)
        if old != new and str(old) != str(new):  # NaN equals no NaN
            names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
            values = ", ".join(f"{name} {old.get(name)} and {new.get(name)}" for name in names[:3])
            return f"step {old.get('step', new.get('step'))}: {values}"
    weights = [folder / run_files.MODEL / WEIGHTS for folder in (run, repetition)]
    missing = next((path for path in weights if not path.is_file()), None)
    if missing:
        return f"{missing} is missing"
    return "" if hash_file(weights[0]) == hash_file(weights[1]) else "the metrics are equal, the weights are not"
