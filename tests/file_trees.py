"""Plants a recorded file tree (tests/trees/NAME.txt: `== path` and the file's text, in turn) into a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.paths import TREES


def plant_tree(folder: Path, name: str, files: Mapping[str, str | None] | None = None) -> Path:
    """Write the tree `name` below `folder`, then `files` over it (None takes a file away). Returns `folder`."""
    for part in (TREES / f"{name}.txt").read_text(encoding="utf-8").split("\n== ")[1:]:
        path, _, text = part.partition("\n")
        write_files(folder, {path: text})
    write_files(folder, files or {})
    return folder


def write_files(folder: Path, files: Mapping[str, str | None]) -> Path:
    """Write files below `folder`; None takes one away. Returns `folder`."""
    for path, text in files.items():
        target = folder / path
        if text is None:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder
