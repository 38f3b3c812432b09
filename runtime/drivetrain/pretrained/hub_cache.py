"""The cache of the Hugging Face hub on this machine, in the layout that all its libraries share.

models--OWNER--NAME/  blobs/            the content, each file named by its hash; datasets--OWNER--NAME/ alike
                      snapshots/COMMIT/ links to them, by file name
                      refs/REVISION     the commit of a branch or tag
                      drivetrain/       our records: COMMIT.json lists the files that were compared with their hashes,
                                        COMMIT.files.json all files that the commit has on the hub
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.pretrained.hub_error import HubKind
from drivetrain.system import file_lock
from drivetrain.system.files import make_folder, read_json, sync_folder, write_json, write_text

PART = ".part"
"""Suffix of an incomplete file; the next process resumes it."""
COMMIT = re.compile(r"[0-9a-f]{40}")
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REVISION = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)*")
ABANDONED_SECONDS = 7 * 86_400.0
"""Age after which an incomplete file is removed: if its revision has changed, no download resumes it."""
_LOCK = ".drivetrain.lock"


def find_home() -> Path:
    """The folder that all Hugging Face libraries share."""
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(os.environ.get("HF_HOME") or f"{shared}/huggingface"))


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, as the hub lists it."""

    name: str
    size: int
    """Size in bytes."""
    hash: str
    """SHA-256 of a large file, or the 40 digits by which git names a small one."""

    def is_in(self, path: Path) -> bool:
        """Whether a file on the disk has this content."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            if len(self.hash) == 64:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.hash
            digest = hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)
            return hashlib.file_digest(file, lambda: digest).hexdigest() == self.hash


@dataclass(frozen=True)
class Snapshot:
    """Files of a commit in the cache."""

    name: str
    commit: str
    folder: Path
    files: tuple[HubFile, ...]
    converted: str = ""
    """The pickle from which model.safetensors was converted; empty if the hub has model.safetensors."""


@dataclass(frozen=True)
class Repository:
    """The part of the cache for one repository of the hub."""

    name: str
    kind: HubKind
    root: Path

    def commit_of(self, revision: str) -> str:
        """The commit of a revision at the time it was fetched; empty if it was not fetched."""
        if COMMIT.fullmatch(revision):
            return revision
        if not _REVISION.fullmatch(revision):
            return ""
        stored_commit = _read_text(self.root / "refs" / revision).strip()
        return stored_commit if re.fullmatch(r"\w+", stored_commit) else ""

    def folder(self, commit: str) -> Path:
        """The folder of a commit's files."""
        return self.root / "snapshots" / commit

    def blob(self, file: HubFile) -> Path:
        """The path of a file's content."""
        return self.root / "blobs" / file.hash

    def read_readme(self, commit: str) -> str:
        """The file that describes the data of a commit; empty if it was not fetched, or the kind has none."""
        return _read_text(self.folder(commit) / self.kind.readme) if self.kind.readme else ""

    def find_complete(self, commit: str) -> Snapshot | None:
        """The snapshot of a commit whose files were compared with their hashes; None if one of them is missing."""
        record = read_json(self._record_path(f"{commit}.json"))
        try:
            files = tuple(HubFile(name, row["size"], row["hash"]) for name, row in record["files"].items())
            converted = str(record["converted"] or "")
        except (TypeError, LookupError, AttributeError):
            return None
        folder = self.folder(commit)
        for path, file in ((folder / file.name, file) for file in files):
            if not path.is_file() or path.stat().st_size != file.size:
                return None
        return Snapshot(self.name, commit, folder, files, converted)

    def list_foreign(self, commit: str) -> list[str]:
        """Paths of a commit's files in the cache, whatever program has put them there."""
        folder = self.folder(commit)
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def verify_foreign(self, commit: str, names: Iterable[str]) -> Snapshot | None:
        """The snapshot of files from another program; None if one does not have the hash that is its name.

        Only links lead to files that are named by their hash; other files are not checked, and get no hash.
        """
        folder = self.folder(commit)
        files = []
        for path in (folder / name for name in names):
            digest = path.resolve().name if path.is_symlink() else ""
            file = HubFile(path.relative_to(folder).as_posix(), path.stat().st_size, digest)
            if HASH.fullmatch(digest) and not file.is_in(path):
                return None
            files.append(file)
        return Snapshot(self.name, commit, folder, tuple(files))

    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """A block in which no other process fetches; it waits, and then finds all files in the cache.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.root / "blobs")
        try:
            handle = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritable_error(self.root, error) from None
        try:
            try:
                if not file_lock.lock(handle, wait=False):
                    say(f"hub: another process is fetching {self.name}; waiting for it")
                    file_lock.lock(handle)
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in files:
                path = folder / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._link_file(path, self.blob(file))
            sync_folder(folder)
        except OSError as error:
            raise _unwritable_error(folder, error) from None

    def _link_file(self, path: Path, blob: Path) -> None:
        target = os.path.relpath(blob, path.parent)
        if path.is_symlink() and os.readlink(path) == target:
            return
        path.unlink(missing_ok=True)
        try:
            path.symlink_to(target)
        except OSError:  # a file system without links
            copy = blob.with_name(f"{blob.name}.copy")
            shutil.copyfile(blob, copy)
            copy.replace(path)

    def remove_abandoned(self) -> int:
        """Remove incomplete files that nobody resumed for a while; the caller holds the lock. Returns their bytes."""
        for leftover in (self.root / "snapshots").glob(".*"):  # from killed processes
            shutil.rmtree(leftover, ignore_errors=True)
        removed_bytes = 0
        for part in (self.root / "blobs").glob(f"*{PART}"):
            with contextlib.suppress(OSError):  # what cannot be removed is no reason to end
                status = part.stat()
                if time.time() - status.st_mtime > ABANDONED_SECONDS:
                    part.unlink()
                    removed_bytes += status.st_size
        return removed_bytes

    def record(self, snapshot: Snapshot, revision: str) -> None:
        """Record that files of a commit are complete, and that the revision is this commit.

        Raises:
            StorageError: if the cache cannot be written.
        """
        files = {file.name: {"size": file.size, "hash": file.hash} for file in snapshot.files}
        record = {"name": self.name, "commit": snapshot.commit, "files": files, "converted": snapshot.converted}
        make_folder(self.root / "drivetrain")
        write_json(self._record_path(f"{snapshot.commit}.json"), record)
        self.record_revision(revision, snapshot.commit)

    def record_revision(self, revision: str, commit: str) -> None:
        """Record that a branch or tag is a commit.

        Raises:
            StorageError: if the cache cannot be written.
        """
        if revision != commit and _REVISION.fullmatch(revision):
            ref = self.root / "refs" / revision
            make_folder(ref.parent)
            write_text(ref, commit)

    def read_listing(self, commit: str) -> list[HubFile] | None:
        """The list of all files that a commit has on the hub; None if it was not fetched."""
        rows = read_json(self._record_path(f"{commit}.files.json"))
        try:
            return [HubFile(str(name), int(size), str(digest)) for name, size, digest in rows]
        except (TypeError, ValueError):
            return None

    def write_listing(self, commit: str, files: Sequence[HubFile]) -> None:
        """Record which files a commit has on the hub, so that the hub is not asked again.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.root / "drivetrain")
        rows = [[file.name, file.size, file.hash] for file in files]
        write_json(self._record_path(f"{commit}.files.json"), rows)

    def _record_path(self, name: str) -> Path:
        return self.root / "drivetrain" / name


def find_repository(name: str, kind: HubKind) -> Repository:
    """The part of the cache for a name on the hub."""
    folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    cache = Path(os.path.expanduser(folder)) if folder else find_home() / "hub"
    return Repository(name, kind, cache / f"{kind.folder}--{name.replace('/', '--')}")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _unwritable_error(root: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{root}: {error.strerror}", "a cache that this user can write to", "set HF_HOME to another folder"
    )
