"""Records the origin of a finished run in its state.json: commits, image and libraries, digests of data, code and weights.

The commit of a job's folder is read as text from the files of its repository. Git never runs there, because a folder may
come from anybody, and git would start programs that its settings name.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from drivetrain.pretrained.earlier_run import WEIGHTS
from drivetrain.supervisor import same_conditions
from drivetrain.system import run_files
from drivetrain.system.files import hash_file, open_file
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import read_mapping
from drivetrain.system.version import VERSION

COMMIT, IMAGE = "DRIVETRAIN_COMMIT", "DRIVETRAIN_IMAGE_ID"
"""Variables set by the starter of a container: commit of the job's folder, and digest of the image."""
_MAX_BYTES = 1 << 22
"""Size of the largest repository file that is read: packed-refs has a line for each branch and tag."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = re.compile(r"ref: (refs/(?!.*\.\.)[^\s:?*\[\\]+)")


def describe_inputs(run: Path) -> dict[str, object]:
    """Describe the software, data, code and weights of a finished run."""
    hardware, weights = RunFiles(run).read_object(run_files.HARDWARE_FILE), run / run_files.MODEL / WEIGHTS
    digests = {
        key: hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        for key, rows in same_conditions.read_data_digests(run).items()
    }
    image = os.environ.get("DRIVETRAIN_IMAGE")
    return {
        "drivetrain": VERSION,
        "python": platform.python_version(),
        "torch": read_mapping(hardware, "torch").get("version"),
        "image": {"name": image, "id": os.environ.get(IMAGE, "")} if image else None,
        "data": digests,
        "code": same_conditions.read_record(run, "code"),
        "model": hash_file(weights) if weights.is_file() else None,
    }


def add_commit(earlier_commits: Sequence[str], source: str) -> list[str]:
    """Return the commits of a run's attempts, including the attempt of `source` (a spec or program) that begins now."""
    current = os.environ.get(COMMIT) or read_commit(Path(source).absolute().parent)
    if current is None or current in earlier_commits[-1:]:
        return [*earlier_commits]
    return [*earlier_commits, current]


def read_commit(folder: Path) -> str | None:
    """Return the checked-out commit of a folder's repository; None without a repository or a first commit."""
    folder = Path(os.path.realpath(folder))
    directory = next(filter(None, map(_find_git_directory, (folder, *folder.parents))), None)
    if directory is None:
        return None
    head = _read_small(directory / "HEAD")
    branch = _BRANCH.fullmatch(head)
    if branch:
        shared = _find_shared_directory(directory)
        packed = re.search(rf"^(\w+) {re.escape(branch[1])}$", _read_small(shared / "packed-refs"), re.MULTILINE)
        head = _read_small(shared / branch[1]) or (packed[1] if packed else "")
    return head if _COMMIT.fullmatch(head) else None  # never record other content of a file


def read_origin(root: Path) -> str | None:
    """Return the address of the remote `origin` of the repository in this very folder; None if there is none."""
    directory = _find_git_directory(root)
    settings = _read_small(_find_shared_directory(directory) / "config") if directory else ""
    section = settings.partition('[remote "origin"]')[2].partition("\n[")[0]
    address = re.search(r"^\s*url\s*=\s*(\S+)", section, re.MULTILINE)
    return address[1] if address else None


def _find_git_directory(root: Path) -> Path | None:
    """Return the git directory of a folder; None if the folder is not the root of a repository."""
    entry = root / ".git"
    if os.path.isfile(entry):  # of a worktree or submodule; unlike `is_file` it is false on any error
        return root / _read_small(entry).removeprefix("gitdir:").strip()
    return entry if os.path.isdir(entry) else None


def _find_shared_directory(directory: Path) -> Path:
    """Return the folder of branches and settings, which a worktree shares with its repository."""
    return directory / _read_small(directory / "commondir")


def _read_small(path: Path) -> str:
    """Read a small regular file and strip its text; empty if it is missing or not a regular file."""
    try:
        with open_file(path, os.O_NOFOLLOW) as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):  # a path with a zero
        return ""
