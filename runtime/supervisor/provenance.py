"""From what a finished run was made: data, spec, plan, code, image and libraries, by their digests (provenance.json)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.data.custom import user_code
from runtime.system.files import read_json, sha256, write_json
from runtime.system.version import VERSION

FILE = "provenance.json"
COMMIT, IMAGE = "DRIVETRAIN_COMMIT", "DRIVETRAIN_IMAGE_ID"
"""What only the starter of a container knows: the commit of the job's folder, and the digest of the image."""
_PATIENCE = 5.0
"""Seconds for git, which may have to read a large work tree."""


def write(run: Path, source: str) -> None:
    """Record it for a run that has finished.

    Args:
        run: the run folder.
        source: the spec, or the program that trained.
    """
    hardware = read_json(run / "hardware.json") or {}
    write_json(
        run / FILE,
        {
            "drivetrain": VERSION,
            "python": platform.python_version(),
            "torch": (hardware.get("torch") or {}).get("version"),
            "processor": (hardware.get("cpu") or {}).get("model"),
            "gpus": [gpu.get("name") for gpu in hardware.get("gpus", [])],
            "image": _image(),
            "commit": os.environ.get(COMMIT) or commit(Path(source).parent),
            "spec": _digest(run / "job.yaml"),
            "plan": _plan(run),
            "data": _data(run),
            "code": read_json(run / user_code.RECORD) or {},
            "model": _digest(run / "model" / "model.safetensors"),
        },
    )


def commit(folder: Path) -> str | None:
    """The commit of a folder under git, with `-changed` if files there differ from it; None without git."""
    try:
        head = _git(folder, "rev-parse", "HEAD").strip()
        changed = _git(folder, "status", "--porcelain", "--", ".").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-changed" if changed else head


def _git(folder: Path, *words: str) -> str:
    # Nothing of the repository's settings runs, and nothing is written into it.
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    done = subprocess.run(
        command,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=_PATIENCE,
    )
    return done.stdout


def _image() -> dict[str, str] | None:
    word = os.environ.get("DRIVETRAIN_IMAGE")
    return {"name": word, "id": os.environ.get(IMAGE, "")} if word else None


def _digest(path: Path) -> str | None:
    return sha256(path) if path.is_file() else None


def _plan(run: Path) -> str | None:
    """Of the values alone: reasons name times that differ from run to run."""
    plan = read_json(run / "plan.json") or {}
    values = {each["name"]: each["value"] for each in plan.get("decisions", [])}
    return _of(values) if values else None


def _data(run: Path) -> dict[str, str]:
    """One digest for each path of the spec, over names and contents of its files."""
    record: Mapping[str, Any] = read_json(run / "data.json") or {}
    files = {
        key: {name: row.rpartition(" ")[2] for name, row in entry["rows"].items()}
        for key, entry in record.get("files", {}).items()
    }
    return {key: _of(rows) for key, rows in (files | record.get("arrays", {})).items()}


def _of(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
