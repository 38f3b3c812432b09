"""Reads and verifies the manifest of a checkpoint, which lists its files with their sizes and SHA-256."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError
from drivetrain.system.files import hash_file, read_json
from drivetrain.system.run_files import STATE_FILE

PLAIN_FORMAT, FROZEN_FORMAT = 1, 2
"""Formats without and with a file of frozen weights. Each has its own number, so that a version refuses formats that it
does not know.
"""
FORMATS = (PLAIN_FORMAT, FROZEN_FORMAT)
MANIFEST = "MANIFEST.json"
Entry = dict[str, int | str]
"""Size and SHA-256 of a file, as the manifest lists them."""
_FILE_PATTERN = r"[a-z]+\.(safetensors|json)"
MAX_MANIFEST_BYTES = 1 << 20
"""Maximum size of a manifest, which usually takes a few hundred bytes; a longer file is not a manifest."""


def verify(path: Path) -> str | None:
    """Describe how a checkpoint differs from its manifest, with the file's name; None if it matches."""
    try:
        files = list_files(path)
        for name, entry in files.items():
            file = path / name
            if file.is_symlink() or not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != entry["bytes"]:
                return f"{name} has {file.stat().st_size} bytes, expected {entry['bytes']}"
            digest = hash_file(file)
            if digest != entry["sha256"]:
                return f"{name} has SHA-256 {digest[:12]}..., expected {entry['sha256'][:12]}..."
    except ValueError as wrong:
        return str(wrong)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None


def describe_file(path: Path) -> Entry:
    """Return the entry of a file in the manifest: its size and SHA-256; raises OSError if it cannot be read."""
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def find_best_step(state: Mapping[str, Any]) -> int | None:
    """Find the step of the best checkpoint that a checkpoint's state refers to; None if it refers to none."""
    try:
        best = state["watch"]["best"]
        return None if best["best"] is None else int(best["step"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None


def describe_damaged(name: str, mismatch: str) -> str:
    """Return the line about a damaged checkpoint that is skipped."""
    return f"checkpoint {name} is damaged: {mismatch}; using an older one"


def all_damaged_error(folder: object, damaged: list[str]) -> CheckpointError:
    """Build the error for a run whose checkpoints are all damaged; a run never restarts silently from zero."""
    return CheckpointError(
        f"{folder}: all checkpoints are damaged:\n  " + "\n  ".join(damaged),
        "a checkpoint that matches its manifest",
        "start again with --new",
    )


def list_files(path: Path) -> dict[str, dict[str, Any]]:
    """Read the manifest of a checkpoint: the entries of its files by name. Paths outside of the folder are refused.

    Raises:
        ValueError: if the manifest is wrong; the message says how.
    """
    file = path / MANIFEST
    return parse_files(read_json(file) if file.is_file() and file.stat().st_size <= MAX_MANIFEST_BYTES else None)


def parse_files(manifest: object) -> dict[str, dict[str, Any]]:
    """Return the file entries in the content of a manifest, as `list_files` does."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{MANIFEST} is missing or incomplete")
    if manifest.get("format") not in FORMATS:
        raise ValueError(f"format {manifest.get('format')}, this version reads {', '.join(map(str, FORMATS))}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    for name, entry in files.items():
        if not re.fullmatch(_FILE_PATTERN, name):
            raise ValueError(f"{MANIFEST} lists {name!r}, which is not a checkpoint file")
        if not isinstance(entry, dict) or (type(entry.get("bytes")), type(entry.get("sha256"))) != (int, str):
            raise ValueError(f"{MANIFEST} has no size or SHA-256 for {name}")
    if not {"model.safetensors", STATE_FILE} <= set(files):
        raise ValueError(f"{MANIFEST} lists no model.safetensors or no {STATE_FILE}")
    return files
