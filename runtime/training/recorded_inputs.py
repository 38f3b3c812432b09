"""Records a run's inputs when it starts, and checks them when it is resumed.

    data.json            fingerprints of data files, files of a pretrained network, and arrays passed in by a program
    preprocessing.json   what was computed from the data: vocabulary, categories, scales, classes

A resumed run, and an evaluation of it, preprocess their data as recorded: weights are never used with another
preprocessing than in their training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.data import fingerprint, load_tested
from runtime.data.custom import argument_files
from runtime.data.dataset import Dataset, InputRecord, head
from runtime.data.formats import shards
from runtime.data.load import load
from runtime.distributed import world
from runtime.errors import CheckpointError, DrivetrainError
from runtime.job import Job
from runtime.job.custom import parts
from runtime.job.embedded import EmbeddedJob
from runtime.job.extension import unfinished
from runtime.job.formatting import dotted
from runtime.pretrained import earlier_run, hub_name
from runtime.pretrained import folder as pretrained
from runtime.system.files import sha256, write_json
from runtime.system.run_files import RunFiles
from runtime.training import streamed_inputs
from runtime.training.checkpoints import checkpoint

if TYPE_CHECKING:
    from runtime.training.run import Run

RECORD, SETTLED = "data.json", "preprocessing.json"
COPIED = ("model.arguments.", "train.loss.arguments.")
"""Keys of files that are copied with the user's code if they are small."""
SHOWN = 5
"""Largest number of changes that are listed."""
LONG = 1.0
"""Seconds; if recording takes longer, a line is printed."""
UNKNOWN = "this run was started by a version that did not record its data, so changes of the data cannot be detected"
Refuse = Callable[[str], DrivetrainError]
"""Makes the error for a change, given what has changed."""


def read(job: Job, folder: Path) -> Dataset:
    """Load the data of a run; if it is resumed, only unchanged data, preprocessed in the same way.

    Raises:
        DataError: if it cannot be used.
        CheckpointError: if it has changed.
    """
    settled = stored(folder) if checkpoint.resumes(folder) else None
    if settled is not None:
        _fix_commit(job, RunFiles(folder).read_json(RECORD))
    if os.environ.get(world.RANK, "0") != "0":
        return load(job, settled)
    if settled is None:
        dataset = load(job)
    else:
        dataset = unchanged(job, folder, settled, lambda changed: _unlike(folder, changed, "--new"))
    # Now, so that a mistake in it does not come up after the training.
    load_tested.add(job, dataset)
    return dataset


def unchanged(job: Job, folder: Path, settled: InputRecord, refuse: Refuse) -> Dataset:
    """Load the data of a run, preprocessed as when the run started.

    Args:
        job: of the run.
        folder: of the run.
        settled: the recorded preprocessing and heads.
        refuse: makes the error for a change.

    Raises:
        DataError: if it cannot be used.
        DrivetrainError: if a file was changed, removed or added since the run started.
    """
    record = RunFiles(folder).read_json(RECORD)
    _fix_commit(job, record)
    places = _places(job)
    _check(_changed(record["files"], places), refuse)
    dataset = load(job, settled)
    streamed_inputs.check(record.get("shards", {}), dataset.shards)
    _check([*_added(record["files"], places, dataset), *_differs(record, settled, dataset)], refuse)
    return dataset


def _fix_commit(job: Job, record: Mapping[str, Any]) -> None:
    """A pretrained network of the hub is the one that the run began with, whatever its branch means by now."""
    if commit := record.get("pretrained_commit"):
        job.fix_commit(str(commit))


def stored(folder: Path) -> InputRecord | None:
    """The recorded preprocessing and heads; None if the run was started with a version that did not record them.

    Raises:
        CheckpointError: if one of the two files is missing or damaged.
    """
    if not any((folder / name).exists() for name in (RECORD, SETTLED)):
        return None
    name = RECORD
    try:
        record = RunFiles(folder).read_json(RECORD)
        {**record["files"], **record["arrays"]}
        _check_kinds(record)
        name = SETTLED
        found = RunFiles(folder).read_json(SETTLED)
        if "preprocessing" in record and record["preprocessing"] != sha256(folder / SETTLED):
            raise ValueError(SETTLED)
        return InputRecord({**found["preprocessing"]}, {row["name"]: head(row) for row in found["heads"]})
    except (FileNotFoundError, AttributeError, LookupError, TypeError, ValueError):
        raise CheckpointError(
            f"{folder / name} is missing, damaged or edited",
            "the file as the run wrote it when it began",
            "restore it, or start a new run with --new",
        ) from None


def _check_kinds(record: Mapping[str, Any]) -> None:
    """Check that a record holds what a run writes there; its folder can be from anybody.

    Raises:
        TypeError: if not.
        LookupError: if something is missing.
    """
    tables = [entry["rows"] for entry in record["files"].values()] + list(record.get("shards", {}).values())
    for table in tables:
        if not isinstance(table, dict) or not all(isinstance(row, str) for row in table.values()):
            raise TypeError(RECORD)
    if not all(isinstance(entry["folder"], bool) for entry in record["files"].values()):
        raise TypeError(RECORD)


def begin(run: Run, say: Callable[[str], None], *, resumes: bool) -> None:
    """Record the inputs of a new run; for a resumed one, check arrays that a program passed in.

    Raises:
        CheckpointError: if the arrays have changed.
        StorageError: if the folder cannot be written.
    """
    settled = stored(run.folder) if resumes else None
    with run.clock.phase("data"):
        if settled is None:
            _keep(run, say)
        elif isinstance(run.job, EmbeddedJob):
            _check(
                _differs(RunFiles(run.folder).read_json(RECORD), settled, run.readable),
                lambda changed: _unlike(run.folder, changed, "new=True"),
            )
    if settled is None and resumes:
        say(f"data: {UNKNOWN}")


def _keep(run: Run, say: Callable[[str], None]) -> None:
    start, data = time.monotonic(), run.readable
    files: dict[str, dict[str, Any]] = {
        key: {"folder": place.is_dir(), "rows": fingerprint.of(_base(place, place.is_dir()), names)}
        for key, place, names in _named(_places(run.job), data)
    }
    write_json(
        run.folder / SETTLED,
        {"heads": [asdict(each) for each in data.heads.values()], "preprocessing": data.preprocessing},
    )
    write_json(
        run.folder / RECORD,
        {
            "files": files,
            "arrays": data.content(),
            "shards": data.shards,
            "preprocessing": sha256(run.folder / SETTLED),
            "pretrained_commit": run.job.pretrained_commit,
        },
    )
    spent = time.monotonic() - start
    if spent > LONG:
        count = sum(len(each["rows"]) for each in files.values())
        say(f"data: {count:,} files fingerprinted in {spent:.1f} s")


def changed_since(job: Job, record: Mapping[str, Any]) -> list[str]:
    """How the files of this machine differ from those in a record, perhaps of another machine."""
    return _changed(record["files"], _places(job))[:SHOWN]


def _unlike(folder: Path, changed: str, new: str) -> CheckpointError:
    return CheckpointError(
        f"{unfinished(folder)}, and its data has changed since it started: {changed}",
        "the data that the run was started with",
        f"restore it, or start a new run with {new}",
    )


def _check(changes: Sequence[str], refuse: Refuse) -> None:
    if changes:
        more = f" and {len(changes) - SHOWN:,} more" if len(changes) > SHOWN else ""
        raise refuse(f"{'; '.join(changes[:SHOWN])}{more}")


def _changed(record: Mapping[str, Any], places: Mapping[str, Path]) -> list[str]:
    """Recorded files that have changed, each with its key."""
    found = []
    for key, entry in record.items():
        if key not in places:
            found.append(f"{key}, which the job does not name, was read")
            continue
        base = _base(places[key], entry["folder"])
        found += [f"{base / name} {what} ({key})" for name, what in fingerprint.changed(base, entry["rows"])]
    return found


def _added(record: Mapping[str, Any], places: Mapping[str, Path], dataset: Dataset) -> list[str]:
    """Files that were not there when the run started, each with its key."""
    return [
        f"{_base(place, place.is_dir()) / name} was not there ({key})"
        for key, place, names in _named(places, dataset)
        for name in names
        if key not in record or name not in record[key]["rows"]
    ]


def _differs(record: Mapping[str, Any], settled: InputRecord, dataset: Dataset) -> list[str]:
    """What else has changed: arrays passed in by a program, and what was computed from the data."""
    before, now = record["arrays"], dataset.content()
    found = [
        f"the {name} samples have other values (if a function uses random numbers, fix its seed)"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    made = _plain(dataset.preprocessing)
    found += [f"{name} of the preprocessing" for name, value in settled.preprocessing.items() if made[name] != value]
    return found + [
        f"the output {name!r}" if name else "the output"
        for name in {*settled.heads, *dataset.heads}
        if settled.heads.get(name) != dataset.heads.get(name)
    ]


def _plain(value: object) -> Any:
    """A value as JSON gives it back: tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _places(job: Job) -> dict[str, Path]:
    """Paths that the spec names and a run reads, by key."""
    model: Any = getattr(job, "model", None)
    found = {dotted(key): job.resolve(path) for key, path in job.data_paths()}
    if name := hub_name.given(job):
        found[dotted(hub_name.key(job))] = pretrained.locate(job, name)[0]
    if earlier := earlier_run.find(job):
        found["model.name"] = earlier.folder
    if getattr(model, "weights", None):
        found["model.weights"] = job.resolve(model.weights)
    for key, part, _ in parts(job):
        found |= {dotted(place): job.resolve(text) for place, text in _texts(part.arguments, (*key, "arguments"))}
    return found


def _texts(value: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """All strings among the arguments of a user function: each could be a path."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping | list | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _texts(inner, (*place, str(key)))


def _named(places: Mapping[str, Path], dataset: Dataset) -> Iterator[tuple[str, Path, Sequence[str]]]:
    """Key, path and file names of what is read; a folder that only user code reads has no file names."""
    for key, place in places.items():
        names = list(dataset.files.get(key, ()))
        if key in dataset.shards:  # they may be larger than this disk, and are told apart by size and stamp
            continue
        if key.startswith(COPIED) and argument_files.names_below(place, place.name):
            continue  # copied with the code, and recorded there
        if os.path.isfile(place):
            names[:0] = [path.name for path in shards.files(place, key)]
        elif key in ("model.name", "model.pretrained"):
            names = sorted(
                path.name for path in place.iterdir() if any(fnmatch(path.name, kind) for kind in pretrained.FILES)
            )
        if names:
            yield key, place, names


def _base(place: Path, folder: bool) -> Path:
    """The folder that file names are relative to."""
    return place if folder else place.parent
