"""The cache of the Hugging Face hub on this machine, in the layout that all its libraries share.

models--OWNER--NAME/  blobs/            the content, each file named by its hash; datasets--OWNER--NAME/ alike
                      snapshots/COMMIT/ links to them, by file name
                      refs/REVISION     the commit of a branch or tag
                      drivetrain/       our records: COMMIT.json lists all files that the commit has on the hub, and those in
                                        the cache that were compared with their hashes
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.pretrained.hub_error import HubKind
from drivetrain.system import file_lock
from drivetrain.system.files import make_folder, read_json, storage_error, sync_folder, write_json, write_text

PART = ".part"
"""Suffix of an incomplete file."""
COMMIT = re.compile(r"[0-9a-f]{40}")
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REVISION = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)*")
_LOCK = ".drivetrain.lock"


def find_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Find the folder that all Hugging Face libraries share."""
    shared = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(environ.get("HF_HOME") or f"{shared}/huggingface"))


def find_token(environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Find the token, and the variable or file that holds it, as `hf auth login` stores it; both empty if there is none."""
    token = environ.get("HF_TOKEN", "")
    if token:
        return token.strip(), "HF_TOKEN"
    path = Path(os.path.expanduser(environ.get("HF_TOKEN_PATH") or find_home(environ) / "token"))
    token = _read_text(path).strip()
    return (token, str(path)) if token.isascii() and token else ("", "")


@contextmanager
def blame_cache(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError that names the variable of the cache."""
    try:
        yield
    except OSError as error:
        general = storage_error(path, error)
        action = f"{general.action.partition(',')[0]}, or set HF_HOME to another folder"
        raise StorageError(general.given, general.possible, action) from None


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, as the hub lists it."""

    name: str
    size: int
    """Size in bytes."""
    hash: str
    """SHA-256 of a large file, or the 40 digits by which git names a small one."""

    def is_in(self, path: Path) -> bool:
        """Return whether a file on the disk has this content."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            if len(self.hash) == 64:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.hash
            digest = hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)
            return hashlib.file_digest(file, lambda: digest).hexdigest() == self.hash


@dataclass(frozen=True)
class CommitRecord:
    """The files of a commit by name."""

    listed: dict[str, HubFile]
    """All files that it has on the hub."""
    checked: dict[str, HubFile]
    """Files in the cache that were compared with their hashes, and converted weights."""


@dataclass(frozen=True)
class Repository:
    """The part of the cache for one repository of the hub."""

    name: str
    kind: HubKind
    root: Path

    def commit_of(self, revision: str) -> str:
        """Return the commit of a revision at the time it was fetched; empty if it was not fetched."""
        if COMMIT.fullmatch(revision):
            return revision
        stored_commit = _read_text(self.root / "refs" / revision).strip() if _REVISION.fullmatch(revision) else ""
        return stored_commit if re.fullmatch(r"\w+", stored_commit) else ""

    def folder(self, commit: str) -> Path:
        """Return the folder of a commit's files."""
        return self.root / "snapshots" / commit

    def blob(self, file: HubFile) -> Path:
        """Return the path of a file's content."""
        return self.root / "blobs" / file.hash

    def read_readme(self, commit: str) -> str:
        """Read the file that describes the data of a commit; empty if it was not fetched, or the kind has none."""
        return _read_text(self.folder(commit) / self.kind.readme) if self.kind.readme else ""

    def list_cached(self, commit: str) -> list[str]:
        """List the paths of a commit's files in the cache, whatever program has put them there."""
        folder = self.folder(commit)
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def read_file(self, commit: str, name: str) -> HubFile | None:
        """Describe a file that another program has put into the cache; None if it is missing, or has not its hash as name.

        Only links lead to files that are named by their hash; other files are not checked, and get no hash.
        """
        path = self.folder(commit) / name
        if not path.is_file():
            return None
        file = HubFile(name, path.stat().st_size, path.resolve().name if path.is_symlink() else "")
        return None if HASH.fullmatch(file.hash) and not file.is_in(path) else file

    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """Let no other process fetch inside this block; it waits, and then finds all files in the cache.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.root / "blobs")
        with blame_cache(self.root):
            handle = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                if not file_lock.lock(handle, wait=False):
                    say(f"hub: another process is fetching {self.name}; waiting for it")
                    file_lock.lock(handle)
                for leftover in (self.root / "blobs").glob(f"*{PART}*"):  # from killed processes
                    leftover.unlink(missing_ok=True)
            except OSError as error:
                say(f"hub: {self.root} cannot be locked ({error.strerror}); fetch in one process at a time")
            yield
        finally:
            os.close(handle)

    def link(self, files: Iterable[HubFile], folder: Path) -> None:
        """Give files whose contents are complete their names in a folder; other files there stay.

        Raises:
            StorageError: if the cache cannot be written.
        """
        with blame_cache(folder):
            for file in files:
                path, blob = folder / file.name, self.blob(file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                try:
                    path.symlink_to(os.path.relpath(blob, path.parent))
                except OSError:  # a file system without links
                    copy = blob.with_name(f"{blob.name}{PART}")
                    shutil.copyfile(blob, copy)
                    copy.replace(path)
            sync_folder(folder)

    def read_record(self, commit: str) -> CommitRecord | None:
        """Read which files a commit has; None if they were not listed."""
        content = read_json(self.root / "drivetrain" / f"{commit}.json")
        try:
            listed, checked = (
                {str(name): HubFile(str(name), int(size), str(digest)) for name, size, digest in content[part]}
                for part in ("listed", "checked")
            )
        except (TypeError, ValueError, LookupError):
            return None
        return CommitRecord(listed, checked)

    def write_record(self, commit: str, record: CommitRecord) -> None:
        """Record which files a commit has.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.root / "drivetrain")
        rows = {
            part: [[file.name, file.size, file.hash] for file in files.values()]
            for part, files in (("listed", record.listed), ("checked", record.checked))
        }
        write_json(self.root / "drivetrain" / f"{commit}.json", rows)

    def record_revision(self, revision: str, commit: str) -> None:
        """Record that a branch or tag is a commit.

        Raises:
            StorageError: if the cache cannot be written.
        """
        if revision != commit and _REVISION.fullmatch(revision):
            ref = self.root / "refs" / revision
            make_folder(ref.parent)
            write_text(ref, commit)


def find_repository(name: str, kind: HubKind) -> Repository:
    """Find the part of the cache for a name on the hub."""
    folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    cache = Path(os.path.expanduser(folder)) if folder else find_home() / "hub"
    return Repository(name, kind, cache / f"{kind.folder}--{name.replace('/', '--')}")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
