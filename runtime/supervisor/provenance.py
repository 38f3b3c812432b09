"""From what a finished run was made: data, spec, plan, code, image and libraries, by their digests (provenance.json)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.data.custom import user_code
from runtime.supervisor import repository
from runtime.system.files import sha256
from runtime.system.run_files import RunFiles
from runtime.system.version import VERSION

FILE = "provenance.json"
COMMIT, IMAGE = "DRIVETRAIN_COMMIT", "DRIVETRAIN_IMAGE_ID"
"""What only the starter of a container knows: the commit of the job's folder, and the digest of the image."""


def write(run: Path, commits: Sequence[str]) -> None:
    """Record it for a run that has finished.

    Args:
        run: the run folder.
        commits: of the job's folder, as each attempt began; an attempt with that of the one before is left out.
    """
    hardware = RunFiles(run).read_object("hardware.json")
    RunFiles(run).write_json(
        FILE,
        {
            "drivetrain": VERSION,
            "python": platform.python_version(),
            "torch": (hardware.get("torch") or {}).get("version"),
            "processor": (hardware.get("cpu") or {}).get("model"),
            "gpus": [gpu.get("name") for gpu in hardware.get("gpus", [])],
            "image": image(),
            "commit": commits[0] if commits else None,
            **({"later_commits": list(commits[1:])} if commits[1:] else {}),
            "spec": _digest(run / "job.yaml"),
            "plan": _plan(run),
            "data": _data(run),
            "code": RunFiles(run).read_object(user_code.RECORD),
            "model": _digest(run / "model" / "model.safetensors"),
        },
    )


def add_commit(before: object, source: str, run: Path) -> list[str]:
    """The commits of a run's attempts with that of the one that begins now.

    Asked for at the start: what is committed while a run trains is not what it was made of.

    Args:
        before: those of earlier attempts.
        source: the spec, or the program that trains.
        run: the run folder.
    """
    known = [str(each) for each in before] if isinstance(before, list) else []
    found = os.environ.get(COMMIT) or commit(Path(source).absolute().parent, run.parent)
    return known if found is None or found in known[-1:] else [*known, found]


def commit(folder: Path, runs: Path | None = None) -> str | None:
    """The commit of a folder under git, with `-changed` if files there differ from it; None without git.

    Files that a filter such as that of Git LFS changes count as changed once their time or size is not that of the
    index, since no filter runs.

    Args:
        folder: of the job.
        runs: where runs are written; what lies there was not trained from.
    """
    try:
        with repository.opened(folder) as tree:
            if tree is None:
                return None
            head = tree.ask("rev-parse", "--verify", "HEAD", folder=folder).strip()
            unknown = ["ls-files", "--others", "--exclude-standard", "--", *_own(folder, runs)]
            changed = _differs(tree, folder) or tree.ask(*unknown, folder=folder)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-changed" if changed else head


def _differs(tree: repository.WorkTree, folder: Path) -> bool:
    """Whether files that git knows differ from the commit, in submodules too.

    git would look into a submodule by itself, but under the settings that the submodule has.
    """
    status = ["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty", "--", "."]
    if tree.ask(*status, folder=folder).strip():
        return True
    for submodule in tree.submodules(folder):
        with repository.opened(submodule, tree.until) as below:
            if below and below.root == submodule and _differs(below, submodule):
                return True
    return False


def _own(folder: Path, runs: Path | None) -> list[str]:
    """Patterns of files that a commit should have: specs and code, and no data, which has digests, and no results."""
    root, below = folder.resolve(), runs.resolve() if runs else None
    left_out = []
    if below and below != root and below.is_relative_to(root):
        left_out = [f":(exclude,literal){below.relative_to(root)}"]
    return ["*.py", "*.yaml", "*.yml", *left_out]


def image() -> dict[str, str] | None:
    """The image that this process runs in; None without one."""
    word = os.environ.get("DRIVETRAIN_IMAGE")
    return {"name": word, "id": os.environ.get(IMAGE, "")} if word else None


def _digest(path: Path) -> str | None:
    return sha256(path) if path.is_file() else None


def _plan(run: Path) -> str | None:
    """Of the values alone: reasons name times that differ from run to run."""
    plan = RunFiles(run).read_object("plan.json")
    values = {each["name"]: each["value"] for each in plan.get("decisions", [])}
    return _of(values) if values else None


def _data(run: Path) -> dict[str, str]:
    """One digest for each path of the spec, over names and contents of its files."""
    record: Mapping[str, Any] = RunFiles(run).read_object("data.json")
    files = {
        key: {name: row.rpartition(" ")[2] for name, row in entry["rows"].items()}
        for key, entry in record.get("files", {}).items()
    }
    return {key: _of(rows) for key, rows in (files | record.get("arrays", {})).items()}


def _of(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
