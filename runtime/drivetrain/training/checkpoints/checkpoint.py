"""Writes and reads checkpoints without pickle: safetensors and JSON, and a manifest of SHA-256 digests written last.

    checkpoints/
      step-120/  model.safetensors [frozen.safetensors] optimizer.safetensors [ema.safetensors] state.json MANIFEST.json
      best-96/   weights of the best evaluation

A checkpoint is written to a temporary folder: every file is fsynced, the manifest last, then the folder is renamed and
its parent fsynced. Only then are older checkpoints removed. A checkpoint must match its manifest to be loaded. A folder
that will be replaced is first renamed (`.old-step-120`), and renamed back after a kill in between.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from drivetrain.errors import CheckpointError
from drivetrain.models import safetensors_file
from drivetrain.models.safetensors_file import Tensors
from drivetrain.system import run_files
from drivetrain.system.fault_points import fault_point
from drivetrain.system.files import blame_storage, storage_error, sync_folder, write_json, write_text
from drivetrain.system.run_files import RunFiles
from drivetrain.training.checkpoints.manifest import (
    FROZEN_FORMAT,
    MANIFEST,
    PLAIN_FORMAT,
    Entry,
    all_damaged_error,
    describe_damaged,
    describe_file,
    find_best_step,
    list_files,
    verify,
)

OLD_PREFIX = ".old-"


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint in memory."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    """Tensors by file (model, optimizer, ema), then by name."""
    state: dict[str, Any]


def save(
    folder: Path,
    name: str,
    tensors: Mapping[str, Tensors],
    state: Mapping[str, object],
    frozen: Collection[str] = (),
) -> Path:
    """Write the checkpoint `folder/name` atomically; parameters named in `frozen` are written once for all checkpoints.

    Raises:
        StorageError: if it cannot be written; nothing is left behind.
    """
    final = folder / name
    unfinished = folder / f".tmp-{name}-{os.getpid()}"
    try:
        create_unfinished(unfinished)
        groups = split_frozen(tensors, frozen)
        for stem, group in groups.items():
            path = unfinished / f"{stem}.safetensors"
            if stem == FROZEN_STEM:
                link_or_write(folder, path, group)
            else:
                safetensors_file.write(path, group)
        files = {path.name: describe_file(path) for path in sorted(unfinished.iterdir())}
        commit(unfinished, final, state, FROZEN_FORMAT if FROZEN_STEM in groups else PLAIN_FORMAT, files)
    except OSError as error:
        raise storage_error(final, error) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return final


def create_unfinished(unfinished: Path) -> None:
    """Create an empty folder for an unfinished checkpoint; raises OSError if it cannot be created."""
    # Parents are not created: a new run folder would prevent a renamed one from getting its name back.
    unfinished.parent.mkdir(exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()


def commit(unfinished: Path, final: Path, state: Mapping[str, object], form: int, files: Mapping[str, Entry]) -> None:
    """Write state and manifest next to the tensors, and give the folder its final name.

    Raises:
        OSError: if a file cannot be written or the folder renamed.
    """
    fault_point("commit checkpoint")
    # write_json cannot store infinity.
    write_text(unfinished / run_files.STATE_FILE, json.dumps(state, indent=1) + "\n")
    listed_files = {**files, run_files.STATE_FILE: describe_file(unfinished / run_files.STATE_FILE)}
    write_json(unfinished / MANIFEST, {"format": form, "files": dict(sorted(listed_files.items()))})
    _rename_to_final(unfinished, final)


def _rename_to_final(unfinished: Path, final: Path) -> None:
    """Rename a finished folder to its final name; an existing folder of that name is removed only afterwards."""
    fault_point("rename checkpoint")
    old = final.with_name(OLD_PREFIX + final.name)
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    try:
        unfinished.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> None:
    """Clean up after a kill: restore a folder that was being replaced, and remove unfinished folders.

    Raises:
        StorageError: if a folder cannot be renamed.
    """
    with blame_storage(folder):
        for old in folder.glob(f"{OLD_PREFIX}*"):
            final = old.with_name(old.name.removeprefix(OLD_PREFIX))
            if not final.exists():
                old.rename(final)
        for leftover in (*folder.glob(f"{OLD_PREFIX}*"), *folder.glob(".tmp-*")):
            shutil.rmtree(leftover, ignore_errors=True)


def load(path: Path) -> Loaded:
    """Read a checkpoint; raises CheckpointError if it does not match its manifest."""
    mismatch = verify(path)
    if mismatch is None:
        try:
            return Loaded(path, _read_tensors(path), read_state(path))
        except (OSError, ValueError) as error:
            # The manifest only proves that the files are unchanged since they were written.
            mismatch = f"it cannot be read: {error}"
    raise CheckpointError(
        f"checkpoint {path}: {mismatch}",
        "a checkpoint that matches its manifest",
        "choose another checkpoint, or name none to use the newest",
    )


def _read_tensors(path: Path) -> dict[str, dict[str, Tensor]]:
    """Read the tensors of a verified checkpoint, by file; raises OSError or ValueError if they cannot be read."""
    names = [name for name in list_files(path) if name.endswith(".safetensors")]
    tensors = {name.removesuffix(".safetensors"): safetensors_file.read(path / name) for name in names}
    tensors[MODEL_STEM] |= tensors.pop(FROZEN_STEM, {})
    return tensors


def read_state(path: Path) -> dict[str, Any]:
    """Read the plain values of a verified checkpoint; raises OSError or ValueError if they cannot be read."""
    state, problem = RunFiles(path).read_checked_object(run_files.STATE_FILE)
    if problem:
        raise ValueError(f"{run_files.STATE_FILE} is {problem}")
    return state


def find_newest(folder: Path) -> tuple[Path | None, list[str]]:
    """Clean up the folder, and find the newest checkpoint that verifies; also returns a line for each damaged one.

    Raises:
        CheckpointError: if there are checkpoints and none verifies; a run never restarts silently from zero.
    """
    recover(folder)
    damaged: list[str] = []
    for path in reversed(run_files.list_checkpoints(folder)):
        mismatch = verify(path)
        if mismatch is None:
            return path, damaged
        damaged.append(describe_damaged(path.name, mismatch))
    if damaged:
        raise all_damaged_error(folder, damaged)
    return None, damaged


def can_resume(run: Path) -> bool:
    """Return whether a run folder has a checkpoint to resume from; followers use the leader's answer."""
    leader = RunFiles(run).read_object(run_files.LEADER_FILE)
    if "resumes" in leader:
        return bool(leader["resumes"])
    return bool(run_files.list_checkpoints(run / run_files.CHECKPOINTS))


def prune(folder: Path, keep: int, best: int | None, newest: int | None = None) -> None:
    """Remove step checkpoints except the last `keep`, and best checkpoints that no remaining checkpoint refers to.

    Args:
        folder: the folder of all checkpoints.
        keep: number of step checkpoints to keep, at least one.
        best: step of the best evaluation; None if there is none.
        newest: step that was just written. Higher steps were damaged when the run rolled back, and are removed.

    Raises:
        StorageError: if something cannot be removed.
    """
    fault_point("remove checkpoints")
    candidates = run_files.list_checkpoints(folder)
    if newest is not None:
        candidates = [path for path in candidates if run_files.parse_suffix(path) <= newest]
    retained = candidates[-max(1, keep) :]
    referenced_steps = {best} | {find_best_step(RunFiles(path).read_object(run_files.STATE_FILE)) for path in retained}
    with blame_storage(folder):
        for path in run_files.list_checkpoints(folder):
            if path not in retained:
                _remove_checkpoint(path)
        for path in run_files.list_checkpoints(folder, "best"):
            if run_files.parse_suffix(path) not in referenced_steps:
                _remove_checkpoint(path)
        for path in folder.glob(".tmp-*"):
            shutil.rmtree(path, ignore_errors=True)


def _remove_checkpoint(path: Path) -> None:
    # Rename first: a kill in the middle must not leave a folder that looks like a checkpoint.
    trash = path.with_name(f".tmp-{path.name}")
    path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


FROZEN_STEM = "frozen"
FROZEN_FILE = f"{FROZEN_STEM}.safetensors"
MODEL_STEM = "model"


def split_frozen(tensors: Mapping[str, Tensors], frozen: Collection[str]) -> dict[str, Tensors]:
    """Split the tensors by file, and move the model's frozen tensors to a separate file."""
    model = tensors[MODEL_STEM]
    frozen_tensors = {name: value for name, value in model.items() if name in frozen}
    if not frozen_tensors or len(frozen_tensors) == len(model):
        return dict(tensors)
    trained_tensors = {name: value for name, value in model.items() if name not in frozen_tensors}
    return {**tensors, MODEL_STEM: trained_tensors, FROZEN_STEM: frozen_tensors}


def link_or_write(folder: Path, path: Path, tensors: Tensors) -> None:
    """Create the file `path` as a link to an identical file in a checkpoint of `folder`; write it if there is none.

    Every checkpoint stays complete: it can be verified, copied and removed on its own. Without hard links on the file
    system, the file is written each time. Files are compared bit by bit, so a damaged file is not linked.

    Raises:
        OSError: if it cannot be written.
    """
    for earlier in folder.glob(f"*/{FROZEN_FILE}"):
        try:
            if not earlier.is_symlink() and safetensors_file.holds(earlier, tensors):
                os.link(earlier, path)
                sync_folder(path.parent)
                return
        except OSError:  # it cannot be linked: no hard links on this file system, or too many links to one file
            path.unlink(missing_ok=True)
    safetensors_file.write(path, tensors)
