"""Checkpoints without pickle: safetensors and JSON, with a manifest of SHA-256 digests that is written last.

    checkpoints/
      step-120/   model.safetensors [frozen.safetensors] optimizer.safetensors [ema.safetensors] state.json MANIFEST.json
      best-96/    the weights of the best evaluation

Where the weights are divided among processes, shard-....safetensors of each are in place of the first four files.

A checkpoint is written to a temporary folder: every file is fsynced, the manifest last, then the folder is renamed and
its parent fsynced; only then are older ones removed. A checkpoint that does not match its manifest is never loaded. A
folder that is to be replaced is first renamed (`.old-step-120`); after a kill in between it is renamed back.
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
from drivetrain.system.fault_points import fault_point
from drivetrain.system.files import parse_json, read_json, storage_error, sync_folder, write_json, write_text
from drivetrain.training.checkpoints import divided_tensors, frozen_weights
from drivetrain.training.checkpoints.manifest import (
    FROZEN,
    MANIFEST,
    PLAIN,
    STATE,
    Entry,
    all_damaged,
    describe_damaged,
    entry_of,
    is_divided,
    list_files,
    verify,
)

OLD = ".old-"
LEADER = "leader.json"
"""In the folder of a process that does not lead: whether the leader's folder has a checkpoint."""


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint in memory."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    """By file: model, optimizer, ema."""
    state: dict[str, Any]


def save(
    folder: Path,
    name: str,
    tensors: Mapping[str, Tensors],
    state: Mapping[str, object],
    frozen: Collection[str] = (),
) -> Path:
    """Write the checkpoint `folder/name` atomically; tensors of the model named in `frozen` are written once.

    Raises:
        StorageError: if it cannot be written; nothing is left behind.
    """
    final = folder / name
    unfinished = beside(final)
    try:
        make_empty(unfinished)
        groups = frozen_weights.split(tensors, frozen)
        for stem, group in groups.items():
            path = unfinished / f"{stem}.safetensors"
            if stem == frozen_weights.STEM:
                frozen_weights.put(folder, path, group)
            else:
                safetensors_file.write(path, group)
        files = {path.name: entry_of(path) for path in sorted(unfinished.iterdir())}
        commit(unfinished, final, state, FROZEN if frozen_weights.STEM in groups else PLAIN, files)
    except OSError as error:
        raise storage_error(final, error) from None
    finally:
        discard(unfinished)
    return final


def beside(final: Path) -> Path:
    """The folder in which a checkpoint is written before it gets its name."""
    return final.parent / f".tmp-{final.name}-{os.getpid()}"


def make_empty(unfinished: Path) -> None:
    """Make such a folder.

    Raises:
        OSError: if it cannot be made.
    """
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    discard(unfinished)
    unfinished.mkdir()


def discard(unfinished: Path) -> None:
    """Remove such a folder, if it is there."""
    shutil.rmtree(unfinished, ignore_errors=True)


def commit(unfinished: Path, final: Path, state: Mapping[str, object], kind: int, files: Mapping[str, Entry]) -> None:
    """Write state and manifest beside the tensors, and give the folder its name.

    Args:
        unfinished: the folder with the files of the tensors, which are on disk.
        final: its name.
        state: plain values of the run.
        kind: format of the manifest.
        files: those of the tensors.

    Raises:
        OSError: if that fails.
    """
    fault_point("commit checkpoint")
    # Not write_json, which would not keep infinity.
    write_text(unfinished / STATE, json.dumps(state, indent=1) + "\n")
    listed_files = {**files, STATE: entry_of(unfinished / STATE)}
    write_json(unfinished / MANIFEST, {"format": kind, "files": dict(sorted(listed_files.items()))})
    _put(unfinished, final)


def _put(unfinished: Path, final: Path) -> None:
    """Rename a finished folder to its final name; an existing folder of that name is kept until then."""
    fault_point("rename checkpoint")
    old = final.with_name(OLD + final.name)
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
    """Clean up after a kill: restore a folder that was being replaced, and remove unfinished ones.

    Raises:
        StorageError: if that is not possible.
    """
    try:
        for old in folder.glob(f"{OLD}*"):
            final = old.with_name(old.name.removeprefix(OLD))
            if not final.exists():
                old.rename(final)
        for leftover in (*folder.glob(f"{OLD}*"), *folder.glob(".tmp-*")):
            shutil.rmtree(leftover, ignore_errors=True)
    except OSError as error:
        raise storage_error(folder, error) from None


def load(path: Path) -> Loaded:
    """Read a checkpoint.

    Raises:
        CheckpointError: if it does not match its manifest.
    """
    wrong = verify(path)
    if wrong is None:
        try:
            return Loaded(path, _tensors(path), state_of(path))
        except (OSError, ValueError) as error:
            # The manifest only proves that the files are as they were written.
            wrong = f"it cannot be read: {error}"
    raise CheckpointError(
        f"checkpoint {path}: {wrong}",
        "a checkpoint that matches its manifest",
        "choose another one, or none to use the newest",
    )


def _tensors(path: Path) -> dict[str, dict[str, Tensor]]:
    """The whole tensors of a verified checkpoint, by file.

    Raises:
        OSError, ValueError: if they cannot be read.
    """
    if is_divided(path):
        return divided_tensors.read_whole(path)
    names = [name for name in list_files(path) if name.endswith(".safetensors")]
    return frozen_weights.join(
        {name.removesuffix(".safetensors"): safetensors_file.read(path / name) for name in names}
    )


def state_of(path: Path) -> dict[str, Any]:
    """The plain values of a verified checkpoint.

    Raises:
        OSError, ValueError: if they cannot be read.
    """
    state = parse_json((path / STATE).read_text(encoding="utf-8"))
    if not isinstance(state, dict):
        raise ValueError(f"{STATE} is empty or damaged")
    return state


def latest(folder: Path) -> tuple[Loaded | None, list[str]]:
    """The newest checkpoint that verifies, and a line for each that was skipped. Writes to the folder.

    Raises:
        CheckpointError: if there are checkpoints and none verifies; a run never restarts silently from zero.
    """
    path, passed = newest(folder)
    return load(path) if path else None, passed


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """`latest`, without reading its tensors."""
    recover(folder)
    passed: list[str] = []
    for path in reversed(steps(folder)):
        wrong = verify(path)
        if wrong is None:
            return path, passed
        passed.append(describe_damaged(path.name, wrong))
    if passed:
        raise all_damaged(folder, passed)
    return None, passed


def resumes(run: Path) -> bool:
    """Whether the run of this folder has a checkpoint to resume from; only the leader's folder holds them."""
    leader = read_json(run / LEADER)
    return bool(leader["resumes"]) if leader else bool(steps(run / "checkpoints"))


def steps(folder: Path, kind: str = "step") -> list[Path]:
    """The checkpoints of a kind, oldest first."""
    folders = [p for p in folder.glob(f"{kind}-*") if p.name.removeprefix(f"{kind}-").isdigit()]
    return sorted(folders, key=number)


def number(path: Path) -> int:
    """The step of a checkpoint."""
    return int(path.name.rsplit("-", 1)[1])


def prune(folder: Path, keep: int, best: int | None, newest: int | None = None) -> None:
    """Remove checkpoints: all steps except the last `keep`, and every best one that those do not refer to.

    Args:
        folder: of the checkpoints.
        keep: how many stay, at least one.
        best: step of the best evaluation.
        newest: the step that was just written. Higher steps were damaged when the run went back, and do not count.

    Raises:
        StorageError: if something cannot be removed.
    """
    fault_point("remove checkpoints")
    folders = [path for path in steps(folder) if newest is None or number(path) <= newest]
    retained = folders[-max(1, keep) :]
    named = {best} | {_best_of(path) for path in retained}
    try:
        for path in steps(folder):
            if path not in retained:
                _remove(path)
        for path in steps(folder, "best"):
            if number(path) not in named:
                _remove(path)
        for path in folder.glob(".tmp-*"):
            shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        raise storage_error(folder, error) from None


def _best_of(path: Path) -> int | None:
    try:
        best = parse_json((path / "state.json").read_text(encoding="utf-8"))["watch"]["best"]
        return best["step"] if best["best"] is not None else None
    except (OSError, ValueError, LookupError, TypeError):  # damaged: it refers to none
        return None


def _remove(path: Path) -> None:
    trash = path.with_name(f".tmp-{path.name}")
    path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
