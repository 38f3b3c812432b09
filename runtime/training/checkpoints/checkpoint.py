"""Checkpoints without pickle: safetensors and JSON, with a manifest of SHA-256 digests that is written last.

    checkpoints/
      step-120/   model.safetensors [frozen.safetensors] optimizer.safetensors [ema.safetensors] state.json MANIFEST.json
      best-96/    the weights of the best evaluation

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

from runtime.errors import CheckpointError
from runtime.models import safetensors_file
from runtime.models.safetensors_file import Tensors
from runtime.system.files import parse_json, read_json, sha256, storage_error, sync_folder, write_json, write_text
from runtime.training.checkpoints import frozen_weights
from runtime.training.checkpoints.manifest import FORMATS, MANIFEST, all_damaged, listed, passed_over, verify

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
    final, beside = folder / name, folder / f".tmp-{name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        groups = frozen_weights.split(tensors, frozen)
        for stem, group in groups.items():
            path = beside / f"{stem}.safetensors"
            if stem == frozen_weights.STEM:
                frozen_weights.put(folder, path, group)
            else:
                safetensors_file.write(path, group)
        # Not write_json, which would not keep infinity.
        write_text(beside / "state.json", json.dumps(state, indent=1) + "\n")
        parts = sorted(beside.iterdir())
        files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in parts}
        write_json(beside / MANIFEST, {"format": FORMATS[frozen_weights.STEM in groups], "files": files})
        _put(beside, final)
    except OSError as error:
        raise storage_error(final, error) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return final


def _put(beside: Path, final: Path) -> None:
    """Rename a finished folder to its final name; an existing folder of that name is kept until then."""
    old = final.with_name(OLD + final.name)
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    try:
        beside.rename(final)
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
        for rest in (*folder.glob(f"{OLD}*"), *folder.glob(".tmp-*")):
            shutil.rmtree(rest, ignore_errors=True)
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
            names = [name for name in listed(path) if name.endswith(".safetensors")]
            tensors = {name.removesuffix(".safetensors"): safetensors_file.read(path / name) for name in names}
            state = parse_json((path / "state.json").read_text(encoding="utf-8"))
            if isinstance(state, dict):
                return Loaded(path, frozen_weights.joined(tensors), state)
            wrong = "it cannot be read: state.json is empty or damaged"
        except (OSError, ValueError) as error:
            # The manifest only proves that the files are as they were written.
            wrong = f"it cannot be read: {error}"
    raise CheckpointError(
        f"checkpoint {path}: {wrong}",
        "a checkpoint that matches its manifest",
        "choose another one, or none to use the newest",
    )


def latest(folder: Path) -> tuple[Loaded | None, list[str]]:
    """The newest checkpoint that verifies, and a line for each that was skipped. Writes to the folder.

    Raises:
        CheckpointError: if there are checkpoints and none verifies; a run never restarts silently from zero.
    """
    recover(folder)
    passed: list[str] = []
    for path in reversed(steps(folder)):
        wrong = verify(path)
        if wrong is None:
            return load(path), passed
        passed.append(passed_over(path.name, wrong))
    if passed:
        raise all_damaged(folder, passed)
    return None, passed


def resumes(run: Path) -> bool:
    """Whether the run of this folder has a checkpoint to resume from; only the leader's folder holds them."""
    leader = read_json(run / LEADER)
    return bool(leader["resumes"]) if leader else bool(steps(run / "checkpoints"))


def steps(folder: Path, kind: str = "step") -> list[Path]:
    """The checkpoints of a kind, oldest first."""
    found = [p for p in folder.glob(f"{kind}-*") if p.name.removeprefix(f"{kind}-").isdigit()]
    return sorted(found, key=number)


def number(path: Path) -> int:
    """The step of a checkpoint."""
    return int(path.name.rsplit("-", 1)[1])
