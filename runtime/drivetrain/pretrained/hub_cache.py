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
"""Seconds after which an incomplete file counts as abandoned, as those of a revision that has moved on."""
_LOCK = ".drivetrain.lock"


@dataclass(frozen=True)
class Snapshot:
    """Files of a commit in the cache."""

    name: str
    commit: str
    folder: Path
    files: tuple[HubFile, ...]
    converted: str = ""
    """The pickle that model.safetensors was made of; empty if the hub has it as safetensors."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Repository:
    """What the cache has of one name on the hub."""

    name: str
    root: Path

    @property
    def blobs(self) -> Path:
        """The folder of contents."""
        return self.root / "blobs"

    def commit_of(self, revision: str) -> str:
        """The commit that a revision was when it was fetched; empty if it was not."""
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

    def complete(self, commit: str) -> Snapshot | None:
        """A commit that was compared with its hashes, and whose files are there."""
        record = read_json(self._record(commit))
        try:
            files = tuple(HubFile(name, row["size"], row["hash"]) for name, row in record["files"].items())
            converted = str(record["converted"] or "")
        except (TypeError, LookupError, AttributeError):
            return None
        folder = self.folder(commit)
        if not all(_size(folder / file.name) == file.size for file in files):
            return None
        return Snapshot(self.name, commit, folder, files, converted)

    def foreign(self, commit: str, *, nested: bool = False) -> Snapshot | None:
        """A commit that another program put there, if its files have the hashes by which they are named.

        Files that are no links have no such name, and are taken as they are. Of a network only the files at the top
        are looked at; of a dataset, which is `nested`, all of them.
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
        """Fetch alone: another process waits, and finds everything there.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.blobs)
        try:
            handle = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritable(self.root, error) from None
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
        """A new folder with links to blobs, which becomes the commit's folder if the block ends well.

        Args:
            commit: of the files.
            files: hash by file name.
        """
        final = self.folder(commit)
        staging = final.with_name(f".{commit}.{os.getpid()}")
        for leftover in final.parent.glob(f".{commit}.*"):  # of a killed process; the caller holds the lock
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            staging.mkdir(parents=True)
            for name, digest in files.items():
                self._link(staging / name, digest, name.count("/"))
            yield staging
            for other in sorted(final.rglob("*")) if final.is_dir() else ():  # of another program, which may use it
                target = staging / other.relative_to(final)
                if not os.path.lexists(target) and (other.is_symlink() or not other.is_dir()):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(other, target)
            if final.is_dir():
                shutil.rmtree(final)
            staging.rename(final)
            sync_folder(final.parent)
        except OSError as error:
            raise _unwritable(final, error) from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def remove_abandoned(self) -> int:
        """Remove incomplete files that nobody resumed for a while; the caller holds the lock. Returns their bytes."""
        removed = 0
        for part in self.blobs.glob(f"*{PART}"):
            with contextlib.suppress(OSError):  # what cannot be removed is no reason to end
                status = part.stat()
                if time.time() - status.st_mtime > ABANDONED_SECONDS:
                    part.unlink()
                    removed += status.st_size
        return removed

    def _link(self, path: Path, digest: str, depth: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.symlink_to(Path(*[".."] * (depth + 2), "blobs", digest))
        except OSError:  # a file system without links
            shutil.copyfile(self.blobs / digest, path)

    def keep(self, snapshot: Snapshot, revision: str) -> None:
        """Record a complete commit, and that the revision means it.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.root / "drivetrain")
        files = {file.name: {"size": file.size, "hash": file.hash} for file in snapshot.files}
        record = {"name": self.name, "commit": snapshot.commit, "files": files, "converted": snapshot.converted}
        write_json(self._record(snapshot.commit), record)
        if revision != snapshot.commit and _REVISION.fullmatch(revision):
            ref = self.root / "refs" / revision
            make_folder(ref.parent)
            write_text(ref, snapshot.commit)

    def listing(self, commit: str) -> list[HubFile] | None:
        """All files that a commit has on the hub; None if they were not listed."""
        try:
            return [
                HubFile(str(name), int(size), str(digest)) for name, size, digest in read_json(self._listing(commit))
            ]
        except (TypeError, ValueError):
            return None

    def keep_listing(self, commit: str, files: Sequence[HubFile]) -> None:
        """Record which files a commit has on the hub, so that it need not be asked again.

        Raises:
            StorageError: if the cache cannot be written.
        """
        make_folder(self.root / "drivetrain")
        write_json(self._listing(commit), [[file.name, file.size, file.hash] for file in files])

    def _listing(self, commit: str) -> Path:
        return self.root / "drivetrain" / f"{commit}.files.json"

    def _record(self, commit: str) -> Path:
        return self.root / "drivetrain" / f"{commit}.json"


def repository(cache: Path, name: str, kind: HubKind = NETWORK) -> Repository:
    """What the cache has of a name."""
    return Repository(name, cache / f"{kind.folder}--{name.replace('/', '--')}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _unwritable(root: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{root}: {error.strerror}", "a cache that this user can write to", "set HF_HOME to another folder"
    )
