"""The copy of a run folder in a store: each checkpoint with its manifest last, all small files, the model.

A checkpoint without a manifest is no checkpoint, so a copy that was killed anywhere holds the ones before.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from drivetrain.storage.object_store import ObjectStore
from drivetrain.supervisor.remote_copy.run_files import (
    CHECKPOINTS,
    LARGE_FILE_BYTES,
    LEFT_OUT,
    STATE,
    is_gone,
    is_portable,
    small_files,
    stamp_of,
)
from drivetrain.system.files import parse_json
from drivetrain.training.checkpoints.manifest import MANIFEST, verify

_STEP = re.compile(r"step-\d+")


class LostLock(Exception):
    """Somebody else writes this run."""


class RunCopy:
    """A run folder and its copy."""

    def __init__(self, store: ObjectStore, run: Path, keep: int, check: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            store: opened at the address of the copy.
            run: the run folder.
            keep: how many checkpoints stay in the store.
            check: called before every object and every part of one; raises LostLock if somebody else writes this run.
        """
        self.store = store
        self.run = run
        self.keep = keep
        self.check = check
        self.moved: Callable[[], None] = lambda: None
        """Called whenever the store has taken something."""
        self.up: set[str] = set()
        """Checkpoints that this process has written whole, or found so."""
        self.damaged: set[str] = set()
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._best: dict[str, str | None] = {}
        self._pruned = ""
        """The checkpoint whose older ones were removed."""
        self._cleaned = False
        """Whether files were removed that this folder does not have."""

    def send(self) -> None:
        """Bring the copy up to date; the state of the run comes last, so a finished copy is complete.

        Raises:
            RemoteError: if the store does not take it; the same call sends the rest.
            LostLock: if somebody else writes this run.
        """
        state = self._content(STATE)
        self._files()
        if (newest := self.newest()) and newest.name not in self.up:
            self._step(newest)
        if newest and newest.name in self.up and newest.name != self._pruned:
            self._prune(newest.name)
            if newest.name not in self.up:
                return  # the next call sends it again, and then the state
            self._pruned = newest.name
        if state is not None and (stamp := (len(state), hash(state), 0)) != self._stamps.get(STATE):
            self.check()
            self.store.put(STATE, state)
            self._stamps[STATE] = stamp

    def newest(self) -> Path | None:
        """The newest checkpoint of the folder that matches its manifest."""
        folders = (self.run / CHECKPOINTS).glob("step-*")
        checkpoints = sorted((path for path in folders if _STEP.fullmatch(path.name)), key=step_of, reverse=True)
        for path in checkpoints:
            if path.name in self.up:
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
        steps = [newest.name] if newest and newest.name not in self.up else []
        return steps + [name for name, path in small_files(self.run) if self._stamps.get(name) != stamp_of(path)]

    def has_last_checkpoint(self) -> bool:
        """Whether a run that was stopped can be resumed from the store without a loss."""
        newest = self.newest()
        return newest is None or newest.name in self.up

    def _step(self, path: Path) -> None:
        """Copy a checkpoint, and before it the best one that it names."""
        with hold(path, self.run) as folder:
            if folder is None:
                return
            best = best_of(folder)
            if best and not self._is_up(best) and (self.run / CHECKPOINTS / best).is_dir():
                with hold(self.run / CHECKPOINTS / best, self.run) as other:
                    if other is not None and verify(other) is None:
                        self._checkpoint(other, best)
            # Rows of metrics that a checkpoint relies on are there before it is.
            self._files()
            self._checkpoint(folder, path.name)
            self._best[path.name] = best

    def _checkpoint(self, folder: Path, name: str) -> None:
        """Copy one checkpoint; its manifest makes it one."""
        prefix = f"{CHECKPOINTS}/{name}"
        self.check()
        if self._is_there(folder, prefix):
            self.up.add(name)
            return
        # One of this name may be there, of a run that went back to an earlier one.
        self.store.delete([f"{prefix}/{MANIFEST}"])
        for part in sorted(folder.iterdir()):
            if part.name != MANIFEST:
                self.check()
                self.store.put_file(f"{prefix}/{part.name}", part, self._part)
                self.moved()
        self.check()
        self.store.put(f"{prefix}/{MANIFEST}", (folder / MANIFEST).read_bytes())
        self.moved()
        self.up.add(name)

    def _is_there(self, folder: Path, prefix: str) -> bool:
        """Whether the store has this very checkpoint, which is the only one perhaps: a resumed run begins with it."""
        stored_sizes = {entry.name: entry.bytes for entry in self.store.objects(prefix)}
        sizes = {f"{prefix}/{part.name}": part.stat().st_size for part in folder.iterdir()}
        manifest = f"{prefix}/{MANIFEST}"
        return sizes.items() <= stored_sizes.items() and self.store.get(manifest) == (folder / MANIFEST).read_bytes()

    def _is_up(self, name: str) -> bool:
        if name not in self.up and self.store.exists(f"{CHECKPOINTS}/{name}/{MANIFEST}"):
            self.up.add(name)
        return name in self.up

    def _prune(self, newest: str) -> None:
        """Remove what the rule for the folder removes: all but the last `keep`, and the best ones that those name."""
        parts_of: dict[str, list[str]] = {}
        for entry in self.store.objects(CHECKPOINTS):
            parts_of.setdefault(entry.name.split("/")[1], []).append(entry.name)
        complete = [name for name, parts in parts_of.items() if any(part.endswith(f"/{MANIFEST}") for part in parts)]
        if newest not in complete:  # somebody else has removed it: it is sent again, and nothing is removed before
            self.up.discard(newest)
            return
        steps = sorted((n for n in complete if _STEP.fullmatch(n) and step_of(n) <= step_of(newest)), key=step_of)
        retained = set(steps[-max(1, self.keep) :])
        retained |= {best for name in sorted(retained) if (best := self._best_there(name))}
        for name in sorted(set(parts_of) - retained):
            self.check()
            # The manifest first: what is left of a removal that was killed is no checkpoint.
            self.store.delete(sorted(parts_of[name], key=lambda part: not part.endswith(f"/{MANIFEST}")))
            self.up.discard(name)

    def _best_there(self, name: str) -> str | None:
        if name not in self._best:
            self._best[name] = _best(self.store.get(f"{CHECKPOINTS}/{name}/state.json"))
        return self._best[name]

    def _files(self) -> None:
        """Copy the files that have changed, but for the state; the first time, remove those that are gone."""
        if not self._cleaned:
            self._remove_gone()
            self._cleaned = True
        for name, path in small_files(self.run):
            stamp = stamp_of(path)
            if stamp is None or self._stamps.get(name) == stamp:
                continue
            self.check()
            with contextlib.suppress(FileNotFoundError):  # replaced in this moment
                if stamp[0] > LARGE_FILE_BYTES:
                    self.store.put_file(name, path, self._part)
                else:
                    self.store.put(name, path.read_bytes())
                self._stamps[name] = stamp
                self.moved()

    def _remove_gone(self) -> None:
        for entry in self.store.objects():
            ours = is_portable(entry.name) and entry.name.split("/")[0] not in (*LEFT_OUT, STATE)
            # The folder last: one that goes away meanwhile, with its disk, has removed none of its files.
            if ours and is_gone(self.run / entry.name) and (self.run / "job.yaml").is_file():
                self.check()
                self.store.delete([entry.name])

    def _part(self) -> None:
        self.check()
        self.moved()

    def _content(self, name: str) -> bytes | None:
        try:
            return (self.run / name).read_bytes()
        except OSError:
            return None


def step_of(path: Path | str) -> int:
    """The step of a checkpoint, by its name."""
    return int(str(path).rpartition("-")[2])


def best_of(folder: Path) -> str | None:
    """The name of the best checkpoint that a checkpoint refers to."""
    try:
        return _best((folder / "state.json").read_bytes())
    except OSError:
        return None


def discard(store: ObjectStore) -> None:
    """Remove the copy of a run in which nothing was trained."""
    store.delete([entry.name for entry in store.objects()])


def _best(state: bytes) -> str | None:
    try:
        best = parse_json(state)["watch"]["best"]
        return f"best-{int(best['step'])}" if best["best"] is not None else None
    except (ValueError, LookupError, TypeError):
        return None


@contextlib.contextmanager
def hold(path: Path, run: Path) -> Iterator[Path | None]:
    """A folder with the same files, which stays while the trainer removes older checkpoints; None if it is gone.

    The names are links, so it takes no space; where there are none, it is the folder itself.
    """
    links = run / f".tmp-copy-{path.name}"
    shutil.rmtree(links, ignore_errors=True)
    try:
        try:
            links.mkdir()
            for part in path.iterdir():
                os.link(part, links / part.name)
        except FileNotFoundError:
            yield None
            return
        except OSError:
            yield path if path.exists() else None
            return
        yield links
    finally:
        shutil.rmtree(links, ignore_errors=True)
