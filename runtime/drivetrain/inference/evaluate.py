"""`drivetrain evaluate`: metrics and confusion matrix of a trained model, on its validation data or on new data."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.data.notes import format_note
from drivetrain.errors import DataError, SpecError
from drivetrain.hardware import device_check
from drivetrain.inference import evaluation_folder, thread_limits
from drivetrain.job.formatting import format_metric
from drivetrain.job.job import SCALED_RMSE
from drivetrain.report.confusion import HEADER, Confusion, LabelTable, read_confusions, read_label_tables
from drivetrain.system.console import open_console, say, say_aside, say_json
from drivetrain.system.files import hash_file
from drivetrain.system.run_files import EXPLANATION_FILE, INPUTS_FILE, MISSING, RunFiles
from drivetrain.system.run_records import read_mapping
from drivetrain.tasks import find_stored_modality
from drivetrain.tracking.live import time_left

if TYPE_CHECKING:
    import torch

    from drivetrain.data.dataset import Dataset
    from drivetrain.inference.validation_samples import ValidationSamples
    from drivetrain.job import Job
    from drivetrain.models.saved_model import SavedModel
    from drivetrain.training.evaluation.metrics import MetricAccumulator
COMPARED_FILES = 10
"""Files of a folder whose hashes are compared with those of the run's data."""


@dataclass(frozen=True)
class EvaluateRequest:
    """The options of `drivetrain evaluate`."""

    run: Path
    data: Path | None = None
    """New labelled data; the validation data of the run if None."""
    output: Path | None = None
    """Folder for metrics and confusion matrix; evaluation/ in the run, or evaluation-DATA/, if None."""
    run_code: bool = False
    """Whether the code of a model folder outside of its run may be run."""
    csv: Mapping[str, str] = field(default_factory=dict)
    """How CSV files are written, with the keys of `data.csv`."""
    as_json: bool = False
    """Whether to print JSON instead of tables."""
    explain: bool = False
    """Whether to add an explanation of the model to the report of the run."""


def evaluate(request: EvaluateRequest) -> int:
    """Evaluate, print and write; returns 0.

    Raises:
        CheckpointError: if there is no trained model.
        DataError: if the data cannot be used, or has changed since training.
        SpecError: if the model cannot be explained.
        StorageError: if the output cannot be written.
    """
    # With a large model or data set, importing torch and reading take minutes.
    say_aside(f"evaluate: loading model and {'data' if request.data else 'validation data'}")
    machine = thread_limits.limit_threads()
    import torch

    from drivetrain.models import saved_model

    trained = saved_model.load(request.run, consent=request.run_code)
    if request.explain:
        _check_explainable(trained, request.data)
    device = torch.device(device_check.select_usable_device(machine, say_aside))
    if request.data is None:
        samples = _load_samples(request, trained, device)
        accumulator, validation = samples.make_accumulator(), samples.data.validation
        _add_batches(accumulator, samples.compute_outputs(validation), validation.targets)
        source, prefix = "validation data of the run", "validation/"
    else:
        source, prefix, accumulator = str(request.data), "", _evaluate_new(request, request.data, trained, device)
        key = find_known_data(request.run, request.data)
        if key:
            say_aside(f"evaluate: {source} is the {key} of this run, so the scores say little about new samples")
    metrics, matrices = accumulator.metrics(prefix), read_confusions(accumulator.confusion())
    tables = read_label_tables(accumulator.confusion())
    if not request.as_json:
        _show(source, metrics, matrices, tables, [name for name, head in trained.heads.items() if head.thresholds])
    folder = request.output or evaluation_folder.choose_folder(request.run, request.data)
    summary: dict[str, object] = {
        "data": source,
        "model": str(trained.folder),
        "trained": trained.trained,
        "metrics": metrics,
    }
    evaluation_folder.write(folder, summary, matrices, tables)
    if request.explain:
        _explain(request.run, samples, accumulator.list_mistakes())
    if request.as_json:
        say_json({"exit_code": 0, **summary, "folder": str(folder)})
    else:
        say(f"written to {folder}")
    return 0


def _check_explainable(trained: SavedModel, data: Path | None) -> None:
    """Check that a model can be explained: tables and series by the importance of each column, pictures by heat maps."""
    if data is not None:
        raise SpecError("--explain with --data", "the validation data of the run", "leave one out")
    explained = find_stored_modality(trained.preprocessing).explained
    if not all(head.kind in explained for head in trained.heads.values()):
        raise SpecError(
            f"--explain: {trained.folder} is a model for {trained.task}{' of labels' if explained else ''}",
            "tables and series, of which each column is permuted; pictures of one class each, which get heat maps",
            "evaluate without --explain; the report lists its worst mistakes",
        )


def _explain(run: Path, samples: ValidationSamples, mistakes: list[int]) -> None:
    """Store an explanation in the run folder, and write its report again; `mistakes` are ids of the worst mistakes."""
    from drivetrain.report import write as reports

    content = find_stored_modality(samples.data.preprocessing).explain(samples, mistakes)
    RunFiles(run).write_json(EXPLANATION_FILE, content)
    reports.write(run)
    say_aside(f"explain: in {run}/report.html")


def find_known_data(run: Path, data: Path) -> str | None:
    """Find the key of the run's job that names these files, by their hashes; None for new data.

    Only the first files of a folder are compared, since it may hold millions; a file is read only if a recorded file has its size.
    """
    stored = read_mapping(RunFiles(run).read_object(INPUTS_FILE), "files")
    key_of_file: dict[tuple[str, str], str] = {}
    for data_key in stored:
        # A row begins with the size of the file and ends with its hash.
        for row in read_mapping(read_mapping(stored, data_key), "rows").values():
            key_of_file[str(row).partition(" ")[0], str(row).rpartition(" ")[2]] = data_key
    sizes = {size for size, _ in key_of_file}
    files = [data] if data.is_file() else islice((path for path in data.rglob("*") if path.is_file()), COMPARED_FILES)
    for path in files:
        size = str(path.stat().st_size)
        key = key_of_file.get((size, hash_file(path))) if size in sizes else None
        if key:
            return key
    return None


def load_validation_data(run: Path, trained: SavedModel, *, consent: bool) -> tuple[Job, Dataset]:
    """Load the job of a run and its data, read again and unchanged since the training.

    Args:
        consent: whether the user agreed to run the code of a model folder that lies outside of its run.

    Raises:
        CheckpointError: if it needs code that may not be run.
        DataError: if the data cannot be read, or has changed.
        SpecError: if the stored job names something that no longer exists.
    """
    from drivetrain.data.custom import user_code
    from drivetrain.job import custom as custom_job
    from drivetrain.models import code_consent

    job = load_stored_job(run)
    if any(custom_job.list_user_functions(job)):
        # A run folder from elsewhere could name any code in job.yaml and any folder in state.json.
        user_code.open_code(job.folder, code_consent.read_allowed_digests(trained.folder, consent=consent))
    data = read_run_data(run, job)
    _check_unchanged(data, trained)
    return job, data


def _load_samples(request: EvaluateRequest, trained: SavedModel, device: torch.device) -> ValidationSamples:
    """Load the validation data with the job's loss; raises SpecError if an explanation is requested and impossible."""
    from drivetrain.inference.validation_samples import ValidationSamples
    from drivetrain.training import losses

    job, data = load_validation_data(request.run, trained, consent=request.run_code)
    train = job.train
    objective = losses.build_objective(train.loss, data.heads, data.train.targets, train.class_weights, data.loss)
    # The predictions of `predict`: with temperature and thresholds, which the data's own heads do not have.
    heads = {
        name: replace(head, temperature=trained.heads[name].temperature, thresholds=trained.heads[name].thresholds)
        for name, head in data.heads.items()
    }
    # The data can have decided on another metric than the job's.
    metric = next((key for key in trained.trained if key not in ("run", "step", "epoch")), job.best())
    samples = ValidationSamples(trained, data, heads, objective, metric, train.seed, device)
    if request.explain:
        find_stored_modality(trained.preprocessing).check_explanation(samples, 0)
    return samples


def read_run_data(run: Path, job: Job) -> Dataset:
    """Load the data of the run, exactly as recorded when the run started.

    Raises:
        DataError: if it cannot be read, or has changed.
    """
    from drivetrain.training import recorded_inputs

    return recorded_inputs.load_unchanged(job, run, recorded_inputs.read_records(run), _make_changed_data_error)


def _make_changed_data_error(changes: str) -> DataError:
    return DataError(
        f"the data has changed since training: {changes}",
        "the data that the run was trained on",
        "restore it, or evaluate other data with --data PATH",
    )


def _evaluate_new(request: EvaluateRequest, path: Path, trained: SavedModel, device: torch.device) -> MetricAccumulator:
    """Evaluate on new data, with the job's loss as far as it is known."""
    from drivetrain.data import load_data
    from drivetrain.inference import new_data_loss
    from drivetrain.models import forward
    from drivetrain.training.evaluation.metrics import MetricAccumulator

    data = load_data.load_new([path], trained.preprocessing, trained.heads, labelled=True, csv=request.csv)
    for note in data.notes:
        say_aside(format_note(note))
    folders = (request.run, trained.folder.parent)
    objective, note = new_data_loss.build_objective(folders, trained.heads, data.split.targets)
    if note:
        say_aside(f"evaluate: {note}")
    accumulator = MetricAccumulator(trained.heads, objective)
    outputs = forward.compute_outputs(trained.network, trained.heads, data.split, data.prepare, device)
    _add_batches(accumulator, outputs, data.split.targets)
    return accumulator


def _add_batches(accumulator: MetricAccumulator, batches: Any, targets: Mapping[str, Any]) -> None:
    import torch

    total = len(next(iter(targets.values())))
    say_aside(f"evaluate: {total:,} samples")
    for ids, outputs in time_left.report_progress(batches, total, "evaluate"):
        index = torch.from_numpy(ids)
        accumulator.add(outputs, {name: y[index] for name, y in targets.items()}, ids)


def load_stored_job(run: Path, *, download: bool = True) -> Job:
    """Load the run's spec, with its remote data if `download`; paths start from the folder of the original spec."""
    from drivetrain.job_spec import spec_source, stored_spec

    if stored_spec.read_stored_spec(run).problem == MISSING:
        raise DataError(
            f"{run} has no job.yaml, so its validation data is unknown",
            "your own labeled data",
            "pass it with --data PATH",
        )
    try:
        return spec_source.load_stored_job(run, spec_source.fetch if download else None)
    except DataError as error:
        raise DataError(error.given, error.possible, f"{error.action}; or pass other data with --data PATH") from None
    except SpecError as error:
        model_problems = [problem for problem in error.problems if problem.key in ("model.name", "model.from")]
        if not model_problems:
            raise
        description = f"{model_problems[0].place}: {model_problems[0].key}: {model_problems[0].given}"
        action = "restore what the run started from, or pass other data with --data PATH"
        raise DataError(description, model_problems[0].possible, action) from None


def _check_unchanged(data: Dataset, trained: SavedModel) -> None:
    """Check that the data gives the classes and the preprocessing that the model was trained with."""
    from dataclasses import asdict

    changed = [
        f"{key} of head {name!r}" if name else key
        for name, head in data.heads.items()
        for key, value in asdict(head).items()
        # The model has the class weights of the loss as numbers, and what was fitted; the classes are compared.
        if key not in ("class_weights", "temperature", "thresholds")
        and value != asdict(trained.heads.get(name, head))[key]
    ]
    changed += [
        key
        for key, value in json.loads(json.dumps(data.preprocessing)).items()
        if value != trained.preprocessing.get(key)
    ]
    if changed or data.heads.keys() != trained.heads.keys():
        raise _make_changed_data_error(f"{', '.join(changed[:5]) or 'its outputs'} differ")


def _show(
    source: str,
    metrics: Mapping[str, float],
    matrices: list[Confusion],
    tables: Sequence[LabelTable] = (),
    with_thresholds: Collection[str] = (),
) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim", show_edge=False)
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        table.add_row(name, format_metric(value))
    screen = open_console()
    screen.print(f"evaluation on {source}")
    screen.print(table)
    if SCALED_RMSE in metrics:
        screen.print("  over all columns: mae and r2 are the means, rmse is the root of the mean of the squared errors")
    for confusion in matrices:
        for truth, guess, count, share in confusion.list_mistakes(5):
            head = f"{confusion.head}: " if confusion.head else ""
            screen.print(f"  {head}{truth} predicted as {guess}: {count:,} of {round(count / share):,} ({share:.1%})")
    for labels in tables:
        label_table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim", show_edge=False)
        for name in HEADER:
            label_table.add_column(name, justify="left" if name == HEADER[0] else "right")
        for row in labels.rows:
            label_table.add_row(*map(escape, row.format_cells()))
        start = "their thresholds" if labels.head in with_thresholds else "a probability of 0.5"
        screen.print(f"labels{f' of {labels.head}' if labels.head else ''}, predicted from {start}")
        screen.print(label_table)
