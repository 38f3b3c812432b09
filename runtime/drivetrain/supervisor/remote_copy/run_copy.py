"""The copy of a run folder in a store: finished checkpoints, all small files, the model.

A checkpoint that owner.json does not list is no part of the copy, so one that was killed anywhere holds those before.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from drivetrain.supervisor.remote_copy.copied_files import is_gone, is_small, name_best, small_files, stamp_of
from drivetrain.supervisor.remote_copy.owner_file import OwnerFile, StoredCheckpoint
from drivetrain.system import run_files
from drivetrain.system.files import parse_row
from drivetrain.system.run_files import RunFiles
from drivetrain.system.run_records import RunState
from drivetrain.training.checkpoints.manifest import MANIFEST, verify

_STEP = re.compile(r"step-\d+")


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
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._dropped: set[str] = set()
        """Folders of checkpoints that this process has taken out of the copy, and not removed yet."""
        self._has_removed_gone = False
        """Whether files were removed that this folder does not have."""

    def send(self) -> None:
        """Bring the copy up to date; the state of the run comes last, so a finished copy is complete.

        Raises:
            RemoteError: if the store does not take it; the same call sends the rest.
            LostOwnership: if another process owns the copy.
            OSError: if a file of the folder cannot be read.
        """
        # The stamp first: a state that is replaced between the two is sent again.
        stamp, state = stamp_of(self.run / run_files.STATE_FILE), None
        with contextlib.suppress(OSError):
            state = RunFiles(self.run).read_bytes(run_files.STATE_FILE)
        self._send_files()
        newest = self.newest()
        if newest and newest.name not in self.sent:
            self._send_step(newest)
        self._remove_dropped()
        if newest and newest.name not in self.sent:
            return  # it was removed meanwhile: the next call sends the one after it, and then the state
        if state is not None and stamp is not None and stamp != self._stamps.get(run_files.STATE_FILE):
            self.owner_file.check()
            self.store.put(run_files.STATE_FILE, state)
            status = RunState(parse_row(state) or {}).status or ""
            self.owner_file.publish(replace(self.owner_file.owner, status=status))
            self._stamps[run_files.STATE_FILE] = stamp

    def newest(self) -> Path | None:
        """The newest checkpoint of the folder that matches its manifest."""
        for path in reversed(run_files.list_checkpoints(self.run / run_files.CHECKPOINTS)):
            if path.name in self.sent:
                return path
            if path.name not in self.damaged and path.exists():
                if verify(path) is None:
                    return path
                if path.exists():  # else it was removed meanwhile
                    self.damaged.add(path.name)
        return None

    def missing(self) -> list[str]:
        """What is not in the store as it is here."""
        newest = self.newest()
        steps = [newest.name] if newest and newest.name not in self.sent else []
        return steps + [name for name, path in small_files(self.run) if self._stamps.get(name) != stamp_of(path)]

    def _send_step(self, path: Path) -> None:
        """Copy and publish a checkpoint, and with it the best one that it names."""
        with _link_files(path, self.run) as folder:
            if folder is None:
                return
            checkpoints = dict(self.owner_file.owner.checkpoints)
            best = name_best(RunFiles(folder).read_object(run_files.STATE_FILE))
            best_path = self.run / run_files.CHECKPOINTS / str(best)
            if best and best not in self.sent and best_path.is_dir():
                with _link_files(best_path, self.run) as best_folder:
                    if best_folder is not None and verify(best_folder) is None:
                        checkpoints[best] = self._upload(best_folder, best, None)
            # Rows of metrics that a checkpoint relies on are there before it is.
            self._send_files()
            checkpoints[path.name] = self._upload(folder, path.name, best)
        self._publish(select_retained(checkpoints, path.name, self.keep))
        self.sent |= {path.name, best or path.name} & checkpoints.keys()

    def _upload(self, folder: Path, name: str, best: str | None) -> StoredCheckpoint:
        """Copy one checkpoint, unless the store has this very one: a resumed run begins with it."""
        published = self.owner_file.owner.checkpoints.get(name)
        if published and self._has(folder, f"{run_files.CHECKPOINTS}/{published.folder}"):
            return published
        stored = StoredCheckpoint(f"{self.owner_file.writer}/{name}", best)
        for part in sorted(folder.iterdir(), key=lambda part: (part.name == MANIFEST, part.name)):
            self.owner_file.check()
            self.store.put_file(f"{run_files.CHECKPOINTS}/{stored.folder}/{part.name}", part, self.note_progress)
            self.note_progress()
        return stored

    def _has(self, folder: Path, prefix: str) -> bool:
        stored_sizes = {entry.name: entry.bytes for entry in self.store.objects(prefix)}
        sizes = {f"{prefix}/{part.name}": part.stat().st_size for part in folder.iterdir()}
        manifest = f"{prefix}/{MANIFEST}"
        return sizes.items() <= stored_sizes.items() and self.store.get(manifest) == (folder / MANIFEST).read_bytes()

    def _publish(self, checkpoints: Mapping[str, StoredCheckpoint]) -> None:
        """Let the copy consist of these checkpoints, and remove the others."""
        self._dropped |= self._published_folders() - {checkpoint.folder for checkpoint in checkpoints.values()}
        self.owner_file.publish(replace(self.owner_file.owner, checkpoints=checkpoints))
        self._remove_dropped()

    def _published_folders(self) -> set[str]:
        return {checkpoint.folder for checkpoint in self.owner_file.owner.checkpoints.values()}

    def _remove_dropped(self) -> None:
        for folder in self._dropped - self._published_folders():
            self.store.delete([entry.name for entry in self.store.objects(f"{run_files.CHECKPOINTS}/{folder}")])
            self._dropped.remove(folder)

    def _send_files(self) -> None:
        """Copy the files that have changed, but for the state; the first time, remove those that are gone."""
        if not self._has_removed_gone:
            self._remove_gone()
            self._has_removed_gone = True
        for name, path in small_files(self.run):
            stamp = stamp_of(path)
            if stamp is None or self._stamps.get(name) == stamp:
                continue
            self.owner_file.check()
            with contextlib.suppress(FileNotFoundError):  # replaced in this moment
                self.store.put_file(name, path, self.note_progress)
                self._stamps[name] = stamp
                self.note_progress()

    def _remove_gone(self) -> None:
        for entry in self.store.objects():
            is_ours = is_small(entry.name) and entry.name != run_files.STATE_FILE
            # The folder last: one that goes away meanwhile, with its disk, has removed none of its files.
            if is_ours and is_gone(self.run / entry.name) and (self.run / run_files.JOB_FILE).is_file():
                self.owner_file.check()
                self.store.delete([entry.name])


def select_retained(checkpoints: Mapping[str, StoredCheckpoint], newest: str, keep: int) -> dict[str, StoredCheckpoint]:
    """The checkpoints that stay by the rule of the folder: the last `keep` up to the newest, and the best ones they name."""
    steps = sorted(
        (
            name
            for name in checkpoints
            if _STEP.fullmatch(name) and run_files.parse_suffix(name) <= run_files.parse_suffix(newest)
        ),
        key=run_files.parse_suffix,
    )
    names = set(steps[-max(1, keep) :])
    names |= {checkpoints[name].best or name for name in names}
    return {name: checkpoint for name, checkpoint in checkpoints.items() if name in names}


@contextlib.contextmanager
def _link_files(path: Path, run: Path) -> Iterator[Path | None]:
    """A folder with the same files, which stays while the trainer removes older checkpoints; None if it is gone.

    The names are links, so it takes no space; where there are none, it is the folder itself.
    """
    links = run / f".tmp-copy-{path.name}"
    shutil.rmtree(links, ignore_errors=True)
    source: Path | None = links
    try:
        links.mkdir()
        for part in path.iterdir():
            os.link(part, links / part.name)
    except FileNotFoundError:
        source = None
    except OSError:
        source = path if path.exists() else None
    try:
        yield source
    finally:
        shutil.rmtree(links, ignore_errors=True)
