"""The cache of the Hugging Face hub on this machine, in the layout that all its libraries share.

models--OWNER--NAME/  blobs/            the content, each file named by its hash; datasets--OWNER--NAME/ alike
                      snapshots/COMMIT/ links to them, by file name
                      refs/REVISION     the commit of a branch or tag
                      drivetrain/       our records: COMMIT.json lists the files that were compared with their hashes
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.pretrained.hub_download import PART, HubFile
from drivetrain.pretrained.hub_error import NETWORK, HubKind
from drivetrain.system.files import make_folder, read_json, sync_folder, write_json, write_text

COMMIT = re.compile(r"[0-9a-f]{40}")
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REVISION = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)*")
ABANDONED_SECONDS = 7 * 86_400.0
"""Age after which an incomplete file is removed: if its revision has changed, no download resumes it."""
_LOCK = ".drivetrain.lock"


@dataclass(frozen=True)
class Snapshot:
    """Files of a commit in the cache."""

    name: str
    commit: str
    folder: Path
    files: tuple[HubFile, ...]
    converted: str = ""
    """The pickle from which model.safetensors was converted; empty if the hub has model.safetensors."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Repository:
    """The part of the cache for one repository of the hub."""

    name: str
    root: Path

    @property
    def blobs(self) -> Path:
        """The folder of file contents."""
        return self.root / "blobs"

    def commit_of(self, revision: str) -> str:
        """The commit of a revision at the time it was fetched; empty if it was not fetched."""
        if COMMIT.fullmatch(revision):
            return revision
        if not _REVISION.fullmatch(revision):
            return ""
        try:
            stored_commit = (self.root / "refs" / revision).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return ""
        return stored_commit if re.fullmatch(r"\w+", stored_commit) else ""

    def folder(self, commit: str) -> Path:
        """The folder of a commit's files."""
        return self.root / "snapshots" / commit

    def find_complete(self, commit: str) -> Snapshot | None:
        """The snapshot of a commit whose files were compared with their hashes; None if one of them is missing."""
        record = read_json(self._record_path(commit))
        try:
            files = tuple(HubFile(name, row["size"], row["hash"]) for name, row in record["files"].items())
            converted = str(record["converted"] or "")
        except (TypeError, LookupError, AttributeError):
            return None
        folder = self.folder(commit)
        if not all(_file_size(folder / file.name) == file.size for file in files):
            return None
        return Snapshot(self.name, commit, folder, files, converted)

    def find_foreign(self, commit: str, *, nested: bool = False) -> Snapshot | None:
        """The snapshot of a commit from another program; None if a file does not have the hash that is its name.

        Only links lead to files that are named by their hash; other files are not checked. Of a network only the files at
        the top count; of a dataset, which is `nested`, all files.
        """
        folder = self.folder(commit)
        if not folder.is_dir() or not (nested or (folder / "config.json").is_file()):
            return None
        files = []
        for path in sorted(folder.rglob("*") if nested else folder.iterdir()):
            digest = path.resolve().name if path.is_symlink() else ""
            if not path.is_file():
                continue
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
        make_folder(self.blobs)
        try:
            handle = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritable_error(self.root, error) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"hub: another process is fetching {self.name}; waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as error:
                say(f"hub: {self.root} cannot be locked ({error.strerror}); fetch in one process at a time")
            yield
        finally:
            os.close(handle)

    @contextmanager
    def staged(self, commit: str, files: Mapping[str, str]) -> Iterator[Path]:
        """A block with a new folder of links to blobs, which becomes the commit's folder if the block raises no error.

        Args:
            commit: commit of the files.
            files: hashes by file name.
        """
        final = self.folder(commit)
        staging = final.with_name(f".{commit}.{os.getpid()}")
        for leftover in final.parent.glob(f".{commit}.*"):  # from killed processes; the caller holds the lock
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            staging.mkdir(parents=True)
            for name, digest in files.items():
                self._link(staging / name, digest, name.count("/"))
            yield staging
            for foreign_file in (
                sorted(final.rglob("*")) if final.is_dir() else ()
            ):  # of another program, which may use it
                target = staging / foreign_file.relative_to(final)
                if not os.path.lexists(target) and (foreign_file.is_symlink() or not foreign_file.is_dir()):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(foreign_file, target)
            if final.is_dir():
                shutil.rmtree(final)
            staging.rename(final)
            sync_folder(final.parent)
        except OSError as error:
            raise _unwritable_error(final, error) from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def remove_abandoned(self) -> int:
        """Remove incomplete files that nobody resumed for a while; the caller holds the lock. Returns their bytes."""
        removed_bytes = 0
        for part in self.blobs.glob(f"*{PART}"):
            with contextlib.suppress(OSError):  # what cannot be removed is no reason to end
                status = part.stat()
                if time.time() - status.st_mtime > ABANDONED_SECONDS:
                    part.unlink()
                    removed_bytes += status.st_size
        return removed_bytes

    def _link(self, path: Path, digest: str, depth: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.symlink_to(Path(*[".."] * (depth + 2), "blobs", digest))
        except OSError:  # a file system without links
            shutil.copyfile(self.blobs / digest, path)

    def record(self, snapshot: Snapshot, revision: str) -> None:
        """Record that a commit is complete, and that the revision is this commit.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.root / "drivetrain")
        files = {file.name: {"size": file.size, "hash": file.hash} for file in snapshot.files}
        record = {"name": self.name, "commit": snapshot.commit, "files": files, "converted": snapshot.converted}
        write_json(self._record_path(snapshot.commit), record)
        if revision != snapshot.commit and _REVISION.fullmatch(revision):
            ref = self.root / "refs" / revision
            make_folder(ref.parent)
            write_text(ref, snapshot.commit)

    def read_listing(self, commit: str) -> list[HubFile] | None:
        """The list of all files that a commit has on the hub; None if it was not fetched."""
        try:
            return [
                HubFile(str(name), int(size), str(digest))
                for name, size, digest in read_json(self._listing_path(commit))
            ]
        except (TypeError, ValueError):
            return None

    def write_listing(self, commit: str, files: Sequence[HubFile]) -> None:
        """Record which files a commit has on the hub, so that the hub is not asked again.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.root / "drivetrain")
        write_json(self._listing_path(commit), [[file.name, file.size, file.hash] for file in files])

    def _listing_path(self, commit: str) -> Path:
        return self.root / "drivetrain" / f"{commit}.files.json"

    def _record_path(self, commit: str) -> Path:
        return self.root / "drivetrain" / f"{commit}.json"


def find_repository(cache: Path, name: str, kind: HubKind = NETWORK) -> Repository:
    """The part of the cache for a name on the hub."""
    return Repository(name, cache / f"{kind.folder}--{name.replace('/', '--')}")


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _unwritable_error(root: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{root}: {error.strerror}", "a cache that this user can write to", "set HF_HOME to another folder"
    )
