"""From what a finished run was made: data, spec, plan, code, image and libraries, by their digests (provenance.json).

Git is asked about the folder of a job, which anybody may have written. It runs programs that the settings of a repository
name: filters, hooks, monitors, transports of a remote. So it never sees those settings. It gets a git directory of ours,
with a few harmless values of the repository's, and with links to its index, references and objects. Of the user's own
settings, which may name filters too, it gets as few.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.pretrained.earlier_run import WEIGHTS
from drivetrain.supervisor import same_conditions
from drivetrain.system import run_files
from drivetrain.system.files import hash_file
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import read_mapping, read_objects
from drivetrain.system.version import VERSION

COMMIT, IMAGE = "DRIVETRAIN_COMMIT", "DRIVETRAIN_IMAGE_ID"
"""What only the starter of a container knows: the commit of the job's folder, and the digest of the image."""
GIT_SECONDS = 5.0
"""Seconds for all requests, since git may have to read a large work tree."""
_WORDS = (
    r"^(core\.(autocrlf|eol|filemode|symlinks|ignorecase|precomposeunicode|trustctime|checkstat)"
    r"|extensions\.(objectformat|refstorage))$"
)
"""Settings of a repository that say how its files are stored; a word each, and none names a file or a program."""
_LINKS = ("index", "info", "packed-refs", "refs", "reftable")
_HEAD_BYTES = 4096
_LIMITS = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ALLOC_LIMIT": str(1 << 30),  # a small object can say that it is a large one
}


def write(run: Path, commits: Sequence[str]) -> None:
    """Record it for a run that has finished.

    Args:
        commits: of the job's folder, as each attempt began; an attempt with that of the one before is left out.
    """
    hardware: Mapping[str, Any] = RunFiles(run).read_object(run_files.HARDWARE_FILE)
    RunFiles(run).write_json(
        run_files.PROVENANCE_FILE,
        {
            "drivetrain": VERSION,
            "python": platform.python_version(),
            "torch": read_mapping(hardware, "torch").get("version"),
            "processor": read_mapping(hardware, "cpu").get("model"),
            "gpus": [gpu.get("name") for gpu in read_objects(hardware, "gpus")],
            "image": describe_image(),
            "commit": commits[0] if commits else None,
            **({"later_commits": list(commits[1:])} if commits[1:] else {}),
            "spec": _hash_file(run / run_files.JOB_FILE),
            "plan": _hash_plan(run),
            "data": {key: _hash_value(rows) for key, rows in same_conditions.read_data_digests(run).items()},
            "code": RunFiles(run).read_object(run_files.CODE_FILE),
            "model": _hash_file(run / run_files.MODEL / WEIGHTS),
        },
    )


def add_commit(before: Sequence[str], source: str, run: Path) -> list[str]:
    """The commits of a run's attempts with that of the one that begins now.

    Asked for at the start: what is committed while a run trains is not what it was made of.

    Args:
        before: those of earlier attempts.
        source: the spec, or the program that trains.
    """
    current = os.environ.get(COMMIT) or read_commit(Path(source).absolute().parent, run.parent)
    return [*before] if current is None or current in before[-1:] else [*before, current]


def read_commit(folder: Path, runs: Path | None = None) -> str | None:
    """The commit of a folder under git, with `-changed` if files there differ from it; None without git.

    Files that a filter such as that of Git LFS changes count as changed once their time or size is not that of the
    index, since no filter runs.

    Args:
        runs: where runs are written; what lies there was not trained from.
    """
    try:
        with open_repository(folder) as tree:
            if tree is None:
                return None
            head = tree.ask("rev-parse", "--verify", "HEAD", folder=folder).strip()
            unknown = ["ls-files", "--others", "--exclude-standard", "--", *_list_patterns(folder, runs)]
            changed = _differs(tree, folder) or tree.ask(*unknown, folder=folder)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-changed" if changed else head


def _differs(tree: WorkTree, folder: Path) -> bool:
    """Whether files that git knows differ from the commit, in submodules too.

    git would look into a submodule by itself, but under the settings that the submodule has.
    """
    status = ["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty", "--", "."]
    if tree.ask(*status, folder=folder).strip():
        return True
    for submodule in tree.submodules(folder):
        with open_repository(submodule, tree.until) as below:
            if below and below.root == submodule and _differs(below, submodule):
                return True
    return False


def _list_patterns(folder: Path, runs: Path | None) -> list[str]:
    """Patterns of files that a commit should have: specs and code, and no data, which has digests, and no results."""
    root, below = folder.resolve(), runs.resolve() if runs else None
    left_out = []
    if below and below != root and below.is_relative_to(root):
        left_out = [f":(exclude,literal){below.relative_to(root)}"]
    return ["*.py", "*.yaml", "*.yml", *left_out]


def describe_image() -> dict[str, str] | None:
    """The image that this process runs in; None without one."""
    word = os.environ.get("DRIVETRAIN_IMAGE")
    return {"name": word, "id": os.environ.get(IMAGE, "")} if word else None


def _hash_file(path: Path) -> str | None:
    return hash_file(path) if path.is_file() else None


def _hash_plan(run: Path) -> str | None:
    """Of the values alone: reasons name times that differ from run to run."""
    decisions = read_objects(RunFiles(run).read_object(run_files.PLAN_FILE), "decisions")
    values = {decision["name"]: decision["value"] for decision in decisions}
    return _hash_value(values) if values else None


def _hash_value(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class WorkTree:
    """A work tree, and the git directory of ours that stands for its own."""

    root: Path
    directory: Path
    ignored: str
    """The file in which the user lists what every repository ignores; it need not exist."""
    until: float
    """When git must have answered, by time.monotonic()."""

    def ask(self, *arguments: str, folder: Path) -> str:
        """What a command of git prints in a folder of the work tree.

        Raises:
            OSError: if git cannot be started.
            subprocess.SubprocessError: if it fails, or takes too long.
        """
        places = {
            "GIT_DIR": str(self.directory),
            "GIT_WORK_TREE": str(self.root),
            "GIT_INDEX_FILE": str(self.directory / "index"),
            "GIT_OBJECT_DIRECTORY": str(self.directory / "objects"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "HOME": str(self.directory),  # before version 2.32, git does not know the variable above
            "XDG_CONFIG_HOME": str(self.directory),
        }
        return _run_git(["-c", f"core.excludesFile={self.ignored}", "-C", str(folder), *arguments], places, self.until)

    def submodules(self, folder: Path) -> Iterator[Path]:
        """The folders of submodules in a folder of the work tree that are checked out.

        Raises:
            OSError: if git cannot be started.
            subprocess.SubprocessError: if it fails, or takes too long.
        """
        for row in self.ask("ls-files", "--stage", "-z", "--", ".", folder=folder).split("\0"):
            mode, _, path = row.partition("\t")
            submodule = _resolve(folder) / path
            # A link could lead out of the work tree, or around in a circle.
            if mode.startswith("160000 ") and _resolve(submodule) == submodule and os.path.lexists(submodule / ".git"):
                yield submodule


@contextlib.contextmanager
def open_repository(folder: Path, until: float | None = None) -> Iterator[WorkTree | None]:
    """The repository that a folder is in; None if there is none.

    The git directory must be `.git` of a folder above, or be a worktree's or submodule's that belongs there: a file or
    a link that leads anywhere else is not followed.

    Raises:
        OSError: if git cannot be started, or the repository cannot be read.
        subprocess.SubprocessError: if git fails, or takes too long.
    """
    position = _locate(_resolve(folder))
    if position is None:
        yield None
        return
    until = until or time.monotonic() + GIT_SECONDS
    with tempfile.TemporaryDirectory(prefix="drivetrain-git-") as name:
        root, source = position
        _write_directory(Path(name), source, until)
        yield WorkTree(root, Path(name), _list_ignored(until), until)


def _locate(folder: Path) -> tuple[Path, Path] | None:
    """The root of the work tree and its git directory."""
    for root in (folder, *folder.parents):
        entry = root / ".git"
        if entry.is_symlink():
            return None
        if entry.is_dir() and os.path.lexists(entry / "HEAD"):
            return root, entry
        if entry.is_file():
            text = _read_small(entry)
            source = root / text.removeprefix("gitdir:").strip()
            return (root, source) if text.startswith("gitdir:") and _is_directory_of(source, entry) else None
    return None


def _is_directory_of(source: Path, entry: Path) -> bool:
    """Whether a git directory is that of the work tree whose `.git` file names it."""
    with contextlib.suppress(OSError):
        if _resolve(source / _read_small(source / "gitdir")) == _resolve(entry):  # a worktree
            return True
    above = _locate(entry.parent.parent)
    return above is not None and _resolve(source).is_relative_to(_resolve(above[1]))  # a submodule


def _write_directory(directory: Path, source: Path, until: float) -> None:
    """Fill our git directory from that of a repository.

    Raises:
        OSError: if a file of the repository cannot be read, or lies outside of it.
        subprocess.SubprocessError: if git cannot read its settings.
    """
    shared = source
    if os.path.lexists(source / "commondir"):  # a worktree has only HEAD and the index for itself
        shared = source / _read_small(source / "commondir")
        if not _resolve(source).is_relative_to(_resolve(shared)):
            raise OSError(f"{source} does not belong to {shared}")
    (directory / "HEAD").write_text(_read_small(source / "HEAD") + "\n", encoding="utf-8")
    settings = _read_settings("--global", until=until)
    settings |= _read_settings("--file", str(shared / "config"), until=until)
    (directory / "config").write_text(_format_config(settings), encoding="utf-8")
    # What can be in another repository is the objects: alternates name more folders of them.
    (directory / "objects").symlink_to(_resolve(shared / "objects"))
    splits = [path.name for path in source.glob("sharedindex.*")]
    for name in (*_LINKS, *splits):
        path = (source if "index" in name else shared) / name
        if not os.path.lexists(path):
            continue
        if not _resolve(path).is_relative_to(_resolve(shared)):
            raise OSError(f"{path} lies outside of its repository")
        (directory / name).symlink_to(_resolve(path))


def _list_ignored(until: float) -> str:
    named = _ask_settings(["config", "--global", "--type=path", "--get", "core.excludesFile"], until).strip()
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return named or os.path.join(settings, "git", "ignore")


def _read_settings(*file_options: str, until: float) -> dict[str, str]:
    """The harmless settings of a file, or of the user."""
    rows = _ask_settings(["config", *file_options, "--null", "--get-regexp", _WORDS], until).split("\0")
    pairs = (row.partition("\n") for row in rows)
    return {name: value for name, _, value in pairs if re.fullmatch(r"[A-Za-z0-9]+", value)}


def _ask_settings(arguments: list[str], until: float) -> str:
    """What a command prints that reads settings; empty if there are none."""
    try:
        return _run_git(arguments, {"GIT_DIR": os.devnull}, until)
    except subprocess.CalledProcessError:
        return ""


def _format_config(settings: dict[str, str]) -> str:
    lines = [f"[core]\nrepositoryformatversion = {int(any(name.startswith('extensions.') for name in settings))}"]
    for name, value in settings.items():
        section, _, key = name.partition(".")
        lines.append(f"[{section}]\n{key} = {value}")
    return "\n".join(lines) + "\n"


def _read_small(path: Path) -> str:
    """The text of a small regular file, without the white space around it; raises OSError if it is none."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is not a regular file")
        text = file.read(_HEAD_BYTES).decode("utf-8", "replace").strip()
    if "\0" in text:
        raise OSError(f"{path} is not a text")
    return text


def _resolve(path: Path) -> Path:
    """A path without links; Path.resolve would raise an error for links in a circle."""
    return Path(os.path.realpath(path))


def _run_git(arguments: list[str], places: dict[str, str], until: float) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *arguments],
        env={**environment, **_LIMITS, **places},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
        timeout=max(until - time.monotonic(), 0.01),
    )
    return done.stdout
