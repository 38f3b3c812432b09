"""Whether runs that are counted together were trained with the same data and the same code of the user."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from runtime.data import fingerprint
from runtime.data.custom import argument_files, user_code
from runtime.errors import CheckpointError
from runtime.job import Job
from runtime.job.formatting import dotted
from runtime.system.files import sha256
from runtime.system.run_files import RunFiles


def changed(run: Path, job: Job, free: Collection[str] = ()) -> str:
    """A file of the data or of the user's code that was another one when a run was trained; empty if there is none.

    Args:
        run: a finished run.
        job: the present spec.
        free: spec keys of data that may differ.
    """
    recorded = _data(run)
    for path, text in job.data_paths():
        place, key = job.resolve(text), dotted(path)
        if key in recorded and key not in free:
            base = place if recorded[key]["folder"] else place.parent
            name = next((name for name, _ in fingerprint.changed(base, recorded[key]["rows"])), None)
            if name:
                return str(base / name)
    if shard := _changed_shard(run, job, free):
        return shard
    for name, digest in _code(run).items():
        file = argument_files.original(job.folder, name)
        if not file.is_file() or sha256(file) != digest:
            return str(file)
    return ""


def _changed_shard(run: Path, job: Job, free: Collection[str]) -> str:
    """A streamed shard that is another one now, or gone; empty if there is none."""
    for path, text in job.data_paths():
        key = dotted(path)
        known = _record(run, "shards").get(key)
        if known is None or key in free:
            continue
        from runtime.data.streaming import open_stream

        found = {shard.name: shard.recorded() for shard in open_stream.open_store(job, text, key).shards()}
        if name := next((name for name in sorted(known.keys() | found) if known.get(name) != found.get(name)), None):
            return f"{text}/{name}"
    return ""


def check(runs: Mapping[str, Path], free: Collection[str] = ()) -> None:
    """Check that all runs had the same files: one that was added to a folder is found by the runs that read it.

    Raises:
        CheckpointError: if they had not; comparing or averaging them would mean nothing.
    """
    contents = {run: _contents(run, free) for run in runs.values()}
    first, *others = contents
    for other in others:
        kinds = [kind for kind in contents[first] if contents[other][kind] != contents[first][kind]]
        if kinds:
            raise CheckpointError(
                f"{first} and {other} were trained with other {kinds[0]}",
                f"one set of {kinds[0]} for all runs",
                f"move the runs with the earlier {kinds[0]} away, such as {first}; the same command then trains them again",
            )


def _contents(run: Path, free: Collection[str]) -> dict[str, object]:
    data = {
        key: {name: row.rpartition(" ")[2] for name, row in entry["rows"].items()}
        for key, entry in _data(run).items()
        if key.startswith("data.") and key not in free
    }
    data |= {key: row for key, row in _record(run, "arrays").items() if key.startswith("data.") and key not in free}
    return {"data": data, "code": _code(run)}


def _data(run: Path) -> dict[str, Any]:
    """The files that a run was trained with, by spec key; empty if they are not recorded."""
    return _record(run, "files")


def _record(run: Path, part: str) -> dict[str, Any]:
    record = RunFiles(run).read_json("data.json")
    found = record.get(part) if isinstance(record, dict) else None
    return found if isinstance(found, dict) else {}


def _code(run: Path) -> dict[str, str]:
    """The digests of the user's code by file name; empty without such code."""
    record = RunFiles(run).read_json(user_code.RECORD)
    return record if isinstance(record, dict) else {}
