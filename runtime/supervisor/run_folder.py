"""The run folder `runs/<name>-<NNN>/`: which one a command uses, and the lock that lets only one process write to
it.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from runtime.errors import Busy, CheckpointError, DataError, SpecError
from runtime.job import Job
from runtime.job_spec.yaml_file import dump, parse
from runtime.system.files import read_json, storage_error, write_text

# Keys that may change on a resume: they affect neither the training nor which weights are kept.
FREE = (
    "limits",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.notice",
    "train.max_time",
    "optimize.loader_workers",
    "environment",
)
BEGUN = (
    "job.yaml",
    "hardware.json",
    "plan.json",
    "state.json",
    "batch_size.json",
    "code.json",
    "data.json",
    "preprocessing.json",
    "metrics.jsonl",
    "events.jsonl",
    "telemetry.jsonl",
    "progress.json",
    "tensorboard",
    "ranks",
    "report.html",
    "report.md",
    "report.json",
)
"""Files that a run writes before its first checkpoint."""
LOCK = ".lock"
HALF = re.compile(r"\.tmp-.+|\..+\.\d+")
"""Names of files that a kill can leave incomplete."""
PATIENCE = 1.5
"""Seconds to wait for the lock, since a killed process takes a moment to disappear."""


@dataclass
class RunFolder:
    """A run folder, locked for this process and its children."""

    path: Path
    resumes: bool
    lock: int
    """Open file that holds the lock; pass it to the trainer, so that the lock lives as long as any of the processes."""

    def state(self) -> dict[str, Any]:
        """The state that the supervisor wrote last."""
        return read_json(self.path / "state.json") or {}


def open_run(runs: Path, job: Job, *, new: bool = False, changes: Mapping[str, object] | None = None) -> RunFolder:
    """The unfinished run of this job's name, or a new one with the next number.

    Raises:
        StorageError: if the folder cannot be written.
        Busy: if another process is training in it.
        CheckpointError: if the unfinished run was started with another spec.
    """
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(runs, error) from None
    known = numbered(runs, job.name)
    last = known[-1] if known else None
    if last and not new and _of_a_run(last) and (read_json(last / "state.json") or {}).get("status") != "done":
        lock = _lock(last)
        if _is_untrained(last) or (not (last / "checkpoints").exists() and _difference(last, job)):
            return _anew(last, job, lock)
        _same_spec(last, job)
        _sweep(last)
        return RunFolder(last, True, lock)
    path = runs / f"{job.name}-{_number(last) + 1 if last else 1:03}"
    try:
        path.mkdir()
        write_text(path / "job.yaml", spec_text(job))
    except OSError as error:
        raise storage_error(path, error) from None
    return RunFolder(path, False, _lock(path))


def numbered(runs: Path, name: str) -> list[Path]:
    """The run folders of a name, in order."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{3,}}")
    return sorted((p for p in runs.iterdir() if p.is_dir() and pattern.fullmatch(p.name)), key=_number)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def spec_text(job: Job) -> str:
    """The resolved spec as YAML."""
    return dump(job.dumped())


def _anew(path: Path, job: Job, lock: int) -> RunFolder:
    """Reuse a folder in which nothing was trained yet, for a spec or data whose error was fixed.

    Files of the user stay.
    """
    try:
        for rest in map(path.joinpath, BEGUN):
            if rest.is_dir() and not rest.is_symlink():
                shutil.rmtree(rest)
            else:
                rest.unlink(missing_ok=True)
        _sweep(path)
        write_text(path / "job.yaml", spec_text(job))
    except OSError as error:
        raise storage_error(path, error) from None
    return RunFolder(path, False, lock)


def _of_a_run(path: Path) -> bool:
    """Whether a folder with the name of a run is a run, and not the user's; a run killed at its start is empty."""
    names = {rest.name for rest in path.iterdir() if not HALF.fullmatch(rest.name)}
    return not names or bool(names & {LOCK, "job.yaml", "state.json"})


def _is_untrained(path: Path) -> bool:
    """Whether a run ended before its first step because of its spec or its data; there is nothing to resume."""
    code = (read_json(path / "state.json") or {}).get("exit_code")
    begun = any((path / name).exists() for name in ("checkpoints", "metrics.jsonl"))
    return code in (SpecError.exit_code, DataError.exit_code) and not begun


def _same_spec(path: Path, job: Job) -> None:
    lines = _difference(path, job)
    if lines:
        raise CheckpointError(
            f"{path} is unfinished and was started with another job file:\n"
            + "\n".join(f"    {line}" for line in lines),
            "the job file that the run was started with",
            "undo the change, or start a new run with --new",
        )


def _difference(path: Path, job: Job) -> list[str]:
    """Lines of a diff of what must not change and has changed."""
    try:
        stored = (path / "job.yaml").read_text(encoding="utf-8")
    except FileNotFoundError:  # killed before it was written
        write_text(path / "job.yaml", spec_text(job))
        return []
    except OSError as error:
        raise storage_error(path / "job.yaml", error) from None
    before, now = (_fixed_part(spec) for spec in (_filled(stored, job), job.dumped()))
    _forgive_older_default(before, now)
    # As text, since for Python 1 equals True and 16 equals 16.0, and mappings in another order are equal: arguments of a
    # user's function and the order of label columns are neither.
    lines = dump(before).splitlines(), dump(now).splitlines()
    return list(difflib.unified_diff(*lines, "the unfinished run", "this spec", lineterm="", n=1))


def _forgive_older_default(before: dict[str, object], now: Mapping[str, object]) -> None:
    """Earlier versions stored `deterministic: true` where the job file says nothing."""
    old, new = before.get("train"), now.get("train")
    if isinstance(old, dict) and isinstance(new, Mapping) and new.get("deterministic") == "auto":
        old["deterministic"] = "auto" if old.get("deterministic") is True else old.get("deterministic")


def _filled(text: str, job: Job) -> Mapping[str, object]:
    """A stored spec with the defaults of keys that were added since."""
    stored = parse(text, "job.yaml").data
    try:
        return type(job).model_validate(stored).dumped()
    except ValidationError:
        return stored


def _fixed_part(spec: Mapping[str, object]) -> dict[str, object]:
    """The part of a spec that must not change."""
    kept: dict[str, object] = {}
    for key, value in spec.items():
        if key not in FREE:
            inner = value.items() if isinstance(value, Mapping) else None
            kept[key] = value if inner is None else {name: one for name, one in inner if f"{key}.{name}" not in FREE}
    return kept


def _sweep(path: Path) -> None:
    """Remove incomplete files of a killed process; we hold the lock, so no other process is writing."""
    for rest in path.iterdir():
        if HALF.fullmatch(rest.name):
            shutil.rmtree(rest, ignore_errors=True) if rest.is_dir() else rest.unlink(missing_ok=True)


def _lock(path: Path) -> int:
    try:
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise storage_error(path, error) from None
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            if time.monotonic() < end:
                time.sleep(0.1)
                continue
        os.close(handle)
        raise Busy(
            f"{path}: another process is training in this folder",
            "one trainer per run folder",
            "wait for it, stop it, or start another run with --new",
        )
