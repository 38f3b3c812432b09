"""The manifest of a checkpoint: its files with their sizes and SHA-256, written last, and what is said if they do not match."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError
from drivetrain.system.files import read_json, sha256

PLAIN, FROZEN, DIVIDED = 1, 2, 3
"""Formats: without and with a file of frozen weights, and with the parts of several processes. Versions before each of
them would not have loaded it.
"""
FORMATS = (PLAIN, FROZEN, DIVIDED)
MANIFEST = "MANIFEST.json"
STATE = "state.json"
Entry = dict[str, int | str]
"""Size and SHA-256 of a file, as the manifest lists them."""
_FILES = r"[a-z]+\.(safetensors|json)|shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors"
MOST_BYTES = 1 << 20
"""A manifest takes a few hundred bytes; a longer file is not a manifest."""


def verify(path: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; None if it matches its manifest."""
    try:
        files = list_files(path)
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


def entry_of(path: Path) -> Entry:
    """What the manifest says of a file.

    Raises:
        OSError: if it cannot be read.
    """
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def is_divided(path: Path) -> bool:
    """Whether a checkpoint consists of the parts of several processes."""
    manifest = read_json(path / MANIFEST)
    return isinstance(manifest, dict) and manifest.get("format") == DIVIDED


def describe_damaged(name: str, wrong: str) -> str:
    """What is said of a damaged checkpoint, for which an older one is looked for."""
    return f"checkpoint {name} is damaged: {wrong}; using an older one"


def all_damaged(folder: object, passed: list[str]) -> CheckpointError:
    """The error if there are checkpoints and none verifies; a run never restarts silently from zero.

    Args:
        folder: a folder or an address.
        passed: a line for each of them.
    """
    return CheckpointError(
        f"{folder}: all checkpoints are damaged:\n  " + "\n  ".join(passed),
        "a checkpoint that matches its manifest",
        "start again with --new",
    )


def list_files(path: Path) -> dict[str, dict[str, Any]]:
    """The files listed in a manifest; refuses paths outside of the folder.

    Raises:
        ValueError: with what is wrong with the manifest.
    """
    file = path / MANIFEST
    return list_files_of(read_json(file) if file.is_file() and file.stat().st_size <= MOST_BYTES else None)


def list_files_of(manifest: object) -> dict[str, dict[str, Any]]:
    """The same, of the content of a manifest."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{MANIFEST} is missing or incomplete")
    if manifest.get("format") not in FORMATS:
        raise ValueError(f"format {manifest.get('format')}, this version reads {', '.join(map(str, FORMATS))}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    for name, entry in files.items():
        if not re.fullmatch(_FILES, name):
            raise ValueError(f"{MANIFEST} lists {name!r}, which is not a checkpoint file")
        if not isinstance(entry, dict) or (type(entry.get("bytes")), type(entry.get("sha256"))) != (int, str):
            raise ValueError(f"{MANIFEST} has no size or SHA-256 for {name}")
    weights = "shard-00001-model-00001-of-00001" if manifest["format"] == DIVIDED else "model"
    if not {f"{weights}.safetensors", STATE} <= set(files):
        raise ValueError(f"{MANIFEST} lists no {weights}.safetensors or no {STATE}")
    return files
