"""Which checkpoints stay: the last ones, and the best ones that they name."""

from __future__ import annotations

import shutil
from pathlib import Path

from runtime.system.files import parse_json, storage_error
from runtime.training.checkpoints.checkpoint import number, steps


def prune(folder: Path, keep: int, best: int | None, newest: int | None = None) -> None:
    """Remove checkpoints: all steps except the last `keep`, and every best one that those do not refer to.

    Args:
        folder: of the checkpoints.
        keep: how many stay, at least one.
        best: step of the best evaluation.
        newest: the step that was just written. Higher steps were damaged when the run went back, and do not count.

    Raises:
        StorageError: if something cannot be removed.
    """
    found = [path for path in steps(folder) if newest is None or number(path) <= newest]
    kept = found[-max(1, keep) :]
    named = {best} | {_best_of(path) for path in kept}
    try:
        for path in steps(folder):
            if path not in kept:
                _remove(path)
        for path in steps(folder, "best"):
            if number(path) not in named:
                _remove(path)
        for path in folder.glob(".tmp-*"):
            shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        raise storage_error(folder, error) from None


def _best_of(path: Path) -> int | None:
    try:
        best = parse_json((path / "state.json").read_text(encoding="utf-8"))["watch"]["best"]
        return best["step"] if best["best"] is not None else None
    except (OSError, ValueError, LookupError, TypeError):  # damaged: it refers to none
        return None


def _remove(path: Path) -> None:
    trash = path.with_name(f".tmp-{path.name}")
    path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
