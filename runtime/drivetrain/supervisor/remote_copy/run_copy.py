"""The copy of a run folder in a store: finished checkpoints, all small files, the model.

A checkpoint that owner.json does not list is no part of the copy, so one that was killed anywhere holds those before.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from drivetrain.data.fingerprint import stamp
from drivetrain.supervisor.remote_copy.owner_file import OWNER, OwnerFile, StoredCheckpoint, list_steps
from drivetrain.system.files import parse_row
from drivetrain.system.run_files import (
    CHECKPOINTS,
    COPY_FILE,
    JOB_FILE,
    RANKS,
    STATE_FILE,
    RunFiles,
    list_checkpoints,
    parse_suffix,
)
from drivetrain.system.run_records import RunState
from drivetrain.training.checkpoints.manifest import MANIFEST, find_best_step, verify

LEFT_OUT = (CHECKPOINTS, RANKS, OWNER, COPY_FILE)
"""Of a run folder or a copy: brought in another way, of no use elsewhere, or about this place alone."""
_PART = re.compile(r"(?!\.)[^/\\\x00-\x1f]{1,255}")


class RunCopy:
    """A run folder and its copy, whose owner is this process."""

    def __init__(
        self, owner_file: OwnerFile, run: Path, keep: int, note_progress: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            owner_file: of the copy, taken by this process.
            keep: how many checkpoints stay in the store.
            note_progress: called whenever the store has taken an object or a part of one; what it raises ends the upload.
        """
        self.owner_file = owner_file
        self.store = owner_file.store
        self.run = run
        self.keep = keep
        self.note_progress = note_progress
        self.sent: set[str] = set()
        """Checkpoints of the folder that are in the store whole."""
        self.damaged: set[str] = set()
        self._stamps: dict[str, str] = {}
        """Of the files that are in the store, as they were when they were sent."""
        self._sent_state = b""

    def send(self) -> None:
        """Bring the copy up to date; the state of the run comes last, so a finished copy is complete.

        Raises:
            RemoteError: if the store does not take it; the same call sends the rest.
            LostOwnership: if another process owns the copy.
            OSError: if a file of the folder cannot be read.
        """
        state = b""
        with contextlib.suppress(OSError):
            # Before the files that it speaks of: one that is replaced meanwhile is sent by the next call.
            state = RunFiles(self.run).read_bytes(STATE_FILE)
        self._send_files()
        checkpoint = self.find_unsent()
        if checkpoint and not self._send_checkpoint(checkpoint):
            return  # it was removed meanwhile: the next call sends the one after it, and then the state
        if state not in (b"", self._sent_state):
            self.owner_file.check()
            self.store.put(STATE_FILE, state)
            status = RunState(parse_row(state) or {}).status or ""
            self.owner_file.publish(replace(self.owner_file.owner, status=status))
            self._sent_state = state

    def find_unsent(self) -> Path | None:
        """The newest checkpoint of the folder that matches its manifest; None if it is in the store."""
        for path in reversed(list_checkpoints(self.run / CHECKPOINTS)):
            if path.name in self.sent:
                break
            if path.name not in self.damaged:
                if verify(path) is None:
                    return path
                if path.exists():  # else it was removed meanwhile
                    self.damaged.add(path.name)
        return None

    def missing(self) -> list[str]:
        """What is not in the store as it is here."""
        checkpoint = self.find_unsent()
        names = [name for name, _ in self._list_unsent_files()]
        return [checkpoint.name, *names] if checkpoint else names

    def _send_checkpoint(self, path: Path) -> bool:
        """Copy and publish a checkpoint, and with it the best one that it names; returns whether it was still there."""
        with contextlib.ExitStack() as stack:
            files = _open_files(path, stack)
            if not files:
                return False
            checkpoints = dict(self.owner_file.owner.checkpoints)
            step = find_best_step(parse_row(files[STATE_FILE].read()) or {})
            best = None if step is None else f"best-{step}"
            if best and best not in self.sent:
                best_path = self.run / CHECKPOINTS / best
                if (best_files := _open_files(best_path, stack)) and verify(best_path) is None:
                    checkpoints[best] = self._upload(best_files, best, None)
            # Rows of metrics that a checkpoint relies on are there before it is.
            self._send_files()
            checkpoints[path.name] = self._upload(files, path.name, best)
        # As in the folder: the last ones up to this one stay, and the best ones that they name.
        steps = [name for name in list_steps(checkpoints) if parse_suffix(name) <= parse_suffix(path)][-self.keep :]
        names = {*steps, *(checkpoints[name].best for name in steps)}
        checkpoints = {name: checkpoint for name, checkpoint in checkpoints.items() if name in names}
        self.owner_file.publish(replace(self.owner_file.owner, checkpoints=checkpoints))
        self.sent |= {path.name, best or path.name} & checkpoints.keys()
        return True

    def _upload(self, files: Mapping[str, BinaryIO], name: str, best: str | None) -> StoredCheckpoint:
        """Copy one checkpoint, unless the store has this very one: a resumed run begins with it."""
        published = self.owner_file.owner.checkpoints.get(name)
        if published and self._has(files, f"{CHECKPOINTS}/{published.folder}"):
            return published
        stored = StoredCheckpoint(f"{self.owner_file.writer}/{name}", best)
        for part, file in files.items():
            self._send_file(f"{CHECKPOINTS}/{stored.folder}/{part}", file)
        return stored

    def _has(self, files: Mapping[str, BinaryIO], prefix: str) -> bool:
        stored_sizes = {entry.name: entry.bytes for entry in self.store.objects(prefix)}
        sizes = {f"{prefix}/{part}": os.fstat(file.fileno()).st_size for part, file in files.items()}
        return (
            sizes.items() <= stored_sizes.items() and self.store.get(f"{prefix}/{MANIFEST}") == files[MANIFEST].read()
        )

    def _send_files(self) -> None:
        """Copy the files that have changed, but for the state; the first time, remove those that are gone."""
        if not self._stamps:
            self._remove_gone()
        for name, path in self._list_unsent_files():
            present = stamp(path)
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # replaced in this moment
                self._send_file(name, file)
                self._stamps[name] = present

    def _list_unsent_files(self) -> Iterator[tuple[str, Path]]:
        """Name and path of the files, without the state, that are not in the store as they are here."""
        for folder, folders, names in os.walk(self.run):
            relative = Path(folder).relative_to(self.run)
            folders[:] = sorted(name for name in folders if is_small((relative / name).as_posix()))
            for path in (Path(folder) / name for name in sorted(names)):
                name = (relative / path.name).as_posix()
                is_ours = is_small(name) and name != STATE_FILE and not path.is_symlink()
                if is_ours and stamp(path) not in ("", self._stamps.get(name)):
                    yield name, path

    def _send_file(self, name: str, file: BinaryIO) -> None:
        self.owner_file.check()
        file.seek(0)
        self.store.put_file(name, file, self.note_progress)
        self.note_progress()

    def _remove_gone(self) -> None:
        for entry in self.store.objects():
            is_ours = is_small(entry.name) and entry.name != STATE_FILE
            # The folder last: one that goes away meanwhile, with its disk, has removed none of its files.
            if is_ours and is_gone(self.run / entry.name) and (self.run / JOB_FILE).is_file():
                self.owner_file.check()
                self.store.delete([entry.name])


def is_small(name: str) -> bool:
    """Whether a name is that of a file that is copied as it is; never one that is hidden, or leads out of the folder."""
    parts = name.split("/")
    return parts[0] not in LEFT_OUT and all(map(_PART.fullmatch, parts))


def is_gone(path: Path) -> bool:
    """Whether a file is missing for sure; one that cannot be looked at is not."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _open_files(folder: Path, stack: contextlib.ExitStack) -> dict[str, BinaryIO]:
    """The files of a checkpoint, MANIFEST.json last; empty if it is gone. Open, they stay when the trainer removes it."""
    try:
        return {part.name: stack.enter_context(part.open("rb")) for part in sorted(folder.iterdir(), reverse=True)}
    except FileNotFoundError:
        return {}
