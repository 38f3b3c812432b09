"""Records a run's inputs in inputs.json when it starts, and checks them when it is resumed.

The record has digests of the user's code, of data files, of files of a pretrained network and of arrays passed in by a program,
and values computed from the data: vocabulary, categories, scales, classes.

A resumed run and its evaluations preprocess their data as recorded: weights are never used with another preprocessing
than in their training.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import filter as filter_names
from pathlib import Path
from typing import Any

from drivetrain.data import fingerprint
from drivetrain.data.custom import code_files
from drivetrain.data.dataset import Dataset, InputRecord, head_from_json
from drivetrain.data.formats import shards
from drivetrain.data.load_data import add_test, load
from drivetrain.data.notes import list_names
from drivetrain.distributed import world
from drivetrain.distributed.world import LOCAL_RANK, NODES
from drivetrain.errors import CheckpointError, DataError, DrivetrainError
from drivetrain.job import Job, extension
from drivetrain.job.custom import list_user_functions
from drivetrain.job.formatting import dot_key
from drivetrain.pretrained import earlier_run, hub_name
from drivetrain.pretrained import folder as pretrained
from drivetrain.system.files import parse_json, to_json
from drivetrain.system.run_files import INPUTS_FILE, RunFiles, damaged_error
from drivetrain.training.checkpoints import checkpoint
from drivetrain.training.run import Run
from drivetrain.training.start_checks import first_difference

DATA_KEY = ("data",)
"""Key of the function whose arguments name data, which is not copied."""
MAX_LISTED_CHANGES = 5
"""Largest number of listed changes."""
SLOW_SECONDS = 1.0
"""Longest recording without a message."""
MakeError = Callable[[str], DrivetrainError]
"""Function that makes the error for a change from its description."""


def load_data(job: Job, folder: Path) -> Dataset:
    """Load the data of a run; a resumed run accepts only unchanged data, preprocessed in the same way.

    Raises:
        DataError: if the data cannot be used.
        CheckpointError: if the data has changed.
    """
    inputs = read_records(folder) if checkpoint.can_resume(folder) else None
    if inputs is not None:
        _fix_commit(job, RunFiles(folder).read_object(INPUTS_FILE))
    if os.environ.get(world.RANK, "0") != "0":
        return load(job, inputs)
    if inputs is None:
        dataset = load(job)
    else:
        dataset = load_unchanged(job, folder, inputs, lambda changed: _changed_data_error(folder, changed, "--new"))
    # Load the test data now, so that a mistake in it does not appear only after the training.
    add_test(job, dataset)
    return dataset


def load_unchanged(job: Job, folder: Path, inputs: InputRecord, refuse: MakeError) -> Dataset:
    """Load the data of a run, preprocessed as when the run started.

    Raises:
        DataError: if the data cannot be used.
        DrivetrainError: if a file was changed, removed or added since the run started.
    """
    record = RunFiles(folder).read_object(INPUTS_FILE)
    _fix_commit(job, record)
    paths = _find_paths(job)
    _refuse_changes(_list_changed(record["files"], paths), refuse)
    dataset = load(job, inputs)
    changes = [*_list_added(record["files"], paths, dataset), *_list_other_changes(record, inputs, dataset)]
    _refuse_changes(changes, refuse)
    return dataset


def _fix_commit(job: Job, record: Mapping[str, Any]) -> None:
    """Use the hub commit of the pretrained network that the run started with, even if its branch has moved on."""
    commit = record.get("pretrained_commit")
    if commit:
        job.fix_commit(str(commit))


def read_records(folder: Path) -> InputRecord:
    """Read the recorded preprocessing and heads.

    Raises:
        CheckpointError: if the file is missing or damaged.
    """
    try:
        record = RunFiles(folder).read_object(INPUTS_FILE)
        {**record["files"], **record["arrays"]}
        _check_types(record)
        if record["digest"] != _hash_fitted(record):
            raise ValueError(INPUTS_FILE)
        return InputRecord({**record["preprocessing"]}, {row["name"]: head_from_json(row) for row in record["heads"]})
    except (AttributeError, LookupError, TypeError, ValueError):
        raise CheckpointError(
            f"{folder / INPUTS_FILE} is missing, damaged or edited",
            "the file as the run wrote it when it began",
            "restore it, or start a new run with --new",
        ) from None


def _hash_fitted(record: Mapping[str, Any]) -> str:
    """Compute the digest of heads and preprocessing, which are fitted to the training data."""
    fitted = [record["heads"], record["preprocessing"]]
    return hashlib.sha256(json.dumps(fitted, sort_keys=True).encode()).hexdigest()


def _check_types(record: Mapping[str, Any]) -> None:
    """Check that a record has the structure that runs write; its folder may come from anybody.

    Raises:
        TypeError: if a value has another type.
        LookupError: if a key is missing.
    """
    tables = [entry["rows"] for entry in record["files"].values()]
    for table in tables:
        if not isinstance(table, dict) or not all(isinstance(row, str) for row in table.values()):
            raise TypeError(INPUTS_FILE)
    if not all(isinstance(entry["folder"], bool) for entry in record["files"].values()):
        raise TypeError(INPUTS_FILE)


def record_inputs(run: Run, say: Callable[[str], None], *, resumes: bool) -> None:
    """Record the inputs of a new run; for a resumed run, check the arrays that a program passed in.

    Raises:
        CheckpointError: if the arrays have changed.
        StorageError: if the folder cannot be written.
    """
    inputs = read_records(run.folder) if resumes else None
    with run.clock.phase("data"):
        if inputs is None:
            _write_records(run, say)
        elif run.job.task == "python":
            changes = _list_other_changes(RunFiles(run.folder).read_object(INPUTS_FILE), inputs, run.readable)
            _refuse_changes(changes, lambda changed: _changed_data_error(run.folder, changed, "new=True"))


def report_changes(run: Run) -> None:
    """Record an event if files of the data have changed since the run started.

    Images are read again in every epoch, so the run may have trained on both versions.
    """
    recorded_files = RunFiles(run.folder).read_object(INPUTS_FILE)["files"]
    changes = _list_changed(recorded_files, _find_paths(run.job))
    if changes:
        listed = list_names(changes, MAX_LISTED_CHANGES, "; ")
        run.events.add("data", f"changed since the run started, and may have been trained in both forms: {listed}")


def _write_records(run: Run, say: Callable[[str], None]) -> None:
    start, data = time.monotonic(), run.readable
    files: dict[str, dict[str, Any]] = {}
    for key, path, names in _list_files(_find_paths(run.job), data):
        rows = fingerprint.fingerprint_files(_base_folder(path, path.is_dir()), names)
        files[key] = {"folder": path.is_dir(), "rows": rows}
    fitted = {"heads": [asdict(entry) for entry in data.heads.values()], "preprocessing": data.preprocessing}
    record = {
        **RunFiles(run.folder).read_object(INPUTS_FILE),  # the code, recorded when the network was built
        "files": files,
        "arrays": data.content(),
        "pretrained_commit": run.job.pretrained_commit,
        # The digest is that of the values as they are read back.
        "digest": _hash_fitted(parse_json(to_json(fitted))),
        **fitted,
    }
    RunFiles(run.folder).write_json(INPUTS_FILE, record)
    seconds = time.monotonic() - start
    if seconds > SLOW_SECONDS:
        count = sum(len(entry["rows"]) for entry in files.values())
        say(f"data: {count:,} files fingerprinted in {seconds:.1f} s")


def _changed_data_error(folder: Path, changed: str, new: str) -> CheckpointError:
    return CheckpointError(
        f"{extension.describe_unfinished(folder)}, and its data has changed since it started: {changed}",
        "the data that the run was started with",
        f"restore it, or start a new run with {new}" + (" and without --extend" if extension.read_name(folder) else ""),
    )


def _refuse_changes(changes: Sequence[str], refuse: MakeError) -> None:
    if changes:
        raise refuse(list_names(changes, MAX_LISTED_CHANGES, "; "))


def _list_changed(recorded_files: Mapping[str, Any], paths: Mapping[str, Path]) -> list[str]:
    """List the recorded files that have changed, each with its key."""
    changes = []
    for key, entry in recorded_files.items():
        if key not in paths:
            changes.append(f"{key}, which the job does not name, was read")
            continue
        base = _base_folder(paths[key], entry["folder"])
        changes += [f"{base / name} {change} ({key})" for name, change in fingerprint.list_changed(base, entry["rows"])]
    return changes


def _list_added(recorded_files: Mapping[str, Any], paths: Mapping[str, Path], dataset: Dataset) -> list[str]:
    """List the files that did not exist when the run started, each with its key."""
    added = []
    for key, path, names in _list_files(paths, dataset):
        base = _base_folder(path, path.is_dir())
        recorded_names = recorded_files[key]["rows"] if key in recorded_files else {}
        added += [f"{base / name} did not exist ({key})" for name in names if name not in recorded_names]
    return added


def _list_other_changes(record: Mapping[str, Any], inputs: InputRecord, dataset: Dataset) -> list[str]:
    """List changes of arrays passed in by a program and of values computed from the data; `record` is inputs.json."""
    changes = [
        f"the {name} samples have other values (if a function uses random numbers, fix its seed)"
        for name in sorted(_list_different_keys(record["arrays"], dataset.content()))
    ]
    preprocessing = json.loads(json.dumps(dataset.preprocessing))
    changes += [f"{name} of the preprocessing" for name in _list_different_keys(inputs.preprocessing, preprocessing)]
    heads = _list_different_keys(inputs.heads, dataset.heads)
    return changes + [f"the output {name!r}" if name else "the output" for name in heads]


def _list_different_keys(recorded: Mapping[str, object], current: Mapping[str, object]) -> list[str]:
    """List the keys whose values differ, or that only one of the mappings has."""
    return [key for key in {**recorded, **current} if recorded.get(key) != current.get(key)]


def _find_paths(job: Job) -> dict[str, Path]:
    """Find the paths in the spec that a run reads, by key."""
    model: Any = getattr(job, "model", None)
    paths = {dot_key(key): job.resolve(path) for key, path in job.data_paths()}
    name = hub_name.find_weights_name(job)
    if name:
        paths[dot_key(hub_name.find_weights_key(job))] = pretrained.locate(job, name).folder
    earlier = earlier_run.find(job)
    if earlier:
        paths["model.name"] = earlier.folder
    if getattr(model, "weights", None):
        paths["model.weights"] = job.resolve(model.weights)
    for key, function, _ in list_user_functions(job):
        # Any string among the arguments of a user's function could be a path.
        for key_path, text in _list_strings(function.arguments, (*key, "arguments")):
            # Small files that a network or loss reads are copied with the code, and recorded there.
            if key == DATA_KEY or not code_files.list_copies(job.folder, text):
                paths[dot_key(key_path)] = job.resolve(text)
    return paths


def _list_strings(value: object, key_path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield all strings in a nested value, each with its key path."""
    if isinstance(value, str):
        yield key_path, value
    elif isinstance(value, Mapping | list | tuple):
        for key, member in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _list_strings(member, (*key_path, str(key)))


def _list_files(paths: Mapping[str, Path], dataset: Dataset) -> Iterator[tuple[str, Path, Sequence[str]]]:
    """Yield key, path and file names of all read data; a folder that only user code reads is skipped."""
    for key, base in paths.items():
        names = list(dataset.files.get(key, ()))
        if os.path.isfile(base):
            names[:0] = [path.name for path in shards.files(base, key)]
        elif key in ("model.name", "model.pretrained"):
            all_names = [path.name for path in base.iterdir()]
            names = sorted({name for pattern in pretrained.FILES for name in filter_names(all_names, pattern)})
        if names:
            yield key, base, names


def _base_folder(path: Path, folder: bool) -> Path:
    """Return the folder that file names are relative to."""
    return path if folder else path.parent


def check_data_of_nodes(run: Run) -> None:
    """Refuse to train if machines have different files; each machine reads its own.

    Raises:
        DataError: if a file of a machine differs from the leader's.
    """
    if NODES not in os.environ:
        return
    path = run.folder / INPUTS_FILE
    try:
        text = path.read_text(encoding="utf-8") if run.ranks.is_rank0 else ""
        record = parse_json(run.ranks.broadcast_text(text), dict)
    except ValueError as error:
        raise damaged_error(path, str(error)) from None
    reads = not run.ranks.is_rank0 and os.environ.get(LOCAL_RANK, "0") == "0"
    differences = _list_changed(record["files"], _find_paths(run.job))[:MAX_LISTED_CHANGES] if reads else []
    difference = first_difference(run.ranks, "; ".join(differences))
    if difference:
        raise DataError(
            f"different data than on the leader's machine: {difference}",
            "the same files on all machines",
            "copy the leader's data to that machine, or read it from a shared file system",
        )
