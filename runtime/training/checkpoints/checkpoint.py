"""Checkpoints without pickle: safetensors and JSON, with a manifest of SHA-256 digests that is written last.

    checkpoints/
      step-120/   model.safetensors optimizer.safetensors [ema.safetensors] state.json MANIFEST.json
      best-96/    the weights of the best evaluation

A checkpoint is written to a temporary folder: every file is fsynced, the manifest last, then the folder is renamed and
its parent fsynced; only then are older ones removed. A checkpoint that does not match its manifest is never loaded. A
folder that is to be replaced is first renamed (`.old-step-120`); after a kill in between it is renamed back.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime.errors import CheckpointError
from runtime.models import safetensors_file
from runtime.models.safetensors_file import Tensors
from runtime.system.files import parse_json, read_json, sha256, storage_error, sync_folder, write_json, write_text

FORMAT = 1
MANIFEST = "MANIFEST.json"
OLD = ".old-"
MOST_BYTES = 1 << 20
"""A manifest takes a few hundred bytes; a longer file is not a manifest."""


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint in memory."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    """By file: model, optimizer, ema."""
    state: dict[str, Any]


def save(folder: Path, name: str, tensors: Mapping[str, Tensors], state: Mapping[str, object]) -> Path:
    """Write the checkpoint `folder/name` atomically.

    Raises:
        StorageError: if it cannot be written; nothing is left behind.
    """
    final, beside = folder / name, folder / f".tmp-{name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for stem, group in tensors.items():
            safetensors_file.write(beside / f"{stem}.safetensors", group)
        # Not write_json, which would not keep infinity.
        write_text(beside / "state.json", json.dumps(state, indent=1) + "\n")
        parts = sorted(beside.iterdir())
        files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in parts}
        write_json(beside / MANIFEST, {"format": FORMAT, "files": files})
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


def verify(path: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; None if it matches its manifest."""
    try:
        files = _listed(path)
        for name, entry in files.items():
            file = path / name
            if file.is_symlink() or not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != entry["bytes"]:
                return f"{name} has {file.stat().st_size} bytes, expected {entry['bytes']}"
            if (digest := sha256(file)) != entry["sha256"]:
                return f"{name} has SHA-256 {digest[:12]}..., expected {entry['sha256'][:12]}..."
    except ValueError as wrong:
        return str(wrong)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None


def _listed(path: Path) -> dict[str, dict[str, Any]]:
    """The files listed in a manifest; refuses paths outside of the folder.

    Raises:
        ValueError: with what is wrong with the manifest.
    """
    file = path / MANIFEST
    manifest = read_json(file) if file.is_file() and file.stat().st_size <= MOST_BYTES else None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{MANIFEST} is missing or incomplete")
    if manifest.get("format") != FORMAT:
        raise ValueError(f"format {manifest.get('format')}, this version reads {FORMAT}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    for name, entry in files.items():
        if not re.fullmatch(r"[a-z]+\.(safetensors|json)", name):
            raise ValueError(f"{MANIFEST} lists {name!r}, which is not a checkpoint file")
        if not isinstance(entry, dict) or (type(entry.get("bytes")), type(entry.get("sha256"))) != (int, str):
            raise ValueError(f"{MANIFEST} has no size or SHA-256 for {name}")
    if not {"model.safetensors", "state.json"} <= set(files):
        raise ValueError(f"{MANIFEST} lists no model.safetensors or no state.json")
    return files


def load(path: Path) -> Loaded:
    """Read a checkpoint.

    Raises:
        CheckpointError: if it does not match its manifest.
    """
    wrong = verify(path)
    if wrong is None:
        try:
            names = [name for name in _listed(path) if name.endswith(".safetensors")]
            tensors = {name.removesuffix(".safetensors"): safetensors_file.read(path / name) for name in names}
            state = parse_json((path / "state.json").read_text(encoding="utf-8"))
            if isinstance(state, dict):
                return Loaded(path, tensors, state)
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
        passed.append(f"checkpoint {path.name} is damaged: {wrong}; using an older one")
    if passed:
        raise CheckpointError(
            f"{folder}: all checkpoints are damaged:\n  " + "\n  ".join(passed),
            "a checkpoint that matches its manifest",
            "start again with --new",
        )
    return None, passed


def steps(folder: Path, kind: str = "step") -> list[Path]:
    """The checkpoints of a kind, oldest first."""
    found = [p for p in folder.glob(f"{kind}-*") if p.name.removeprefix(f"{kind}-").isdigit()]
    return sorted(found, key=number)


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
    found = [path for path in steps(folder) if newest is None or number(path) <= newest]
    kept = found[-max(1, keep) :]
    named = {best} | {_best_of(path) for path in kept}
    try:
        for path in steps(folder):
            if path not in kept:
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


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: `weight/exp_avg`."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{names[id(p)]}/{key}": torch.as_tensor(value)
        for p, entry in optimizer.state.items()
        for key, value in entry.items()
        if value is not None
    }


def load_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Load optimizer state by parameter name.

    Raises:
        CheckpointError: if a name is unknown.
    """
    parameters = dict(model.named_parameters())
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        if name not in parameters:
            raise CheckpointError(
                f"the optimizer state names {name!r}, which does not exist in the network",
                "the network that was saved",
                "undo the change of the model, or use --new",
            )
        parameter = parameters[name]
        place = parameter.device if key != "step" or optimizer.param_groups[0].get("fused") else torch.device("cpu")
        value = value.to(place)
        # Moments take the memory format of their parameter, as fused kernels require.
        same = value.shape == parameter.shape and value.ndim > 0
        optimizer.state[parameter][key] = (
            torch.empty_like(parameter, dtype=value.dtype).copy_(value) if same else value.clone()
        )
