"""Advice for a job that should start from an earlier run (`model: {from: RUN}`), and says so in a way that is refused."""

from __future__ import annotations

from typing import Any

from runtime.job.document import Document
from runtime.job.formatting import Path, shown

FROM = ("model", "from")
_NETWORKS = ("name", "file", "source")
"""Keys that name a network."""


def advice(path: Path, document: Document) -> list[str] | None:
    """The three parts of an error about an unknown key below `model`; None if no run is named.

    Args:
        path: of the unknown key.
        document: the spec as written.
    """
    if path[:1] != FROM[:1] or len(path) != len(FROM) or not document.has(FROM):
        return None
    model: dict[str, Any] = document.data["model"]
    run = shown(model["from"]).strip("'")
    named = [key for key in _NETWORKS if key in model]
    if path != FROM:
        if named:
            return None  # the error about `from` explains it
        return [
            "is a setting of a network, and `from` takes that of the earlier run",
            "from, freeze and unfreeze",
            "remove it",
        ]
    if "file" in model or document.data.get("task") == "custom":
        return [
            "names a run, and the network is code of yours",
            "its weights, for the same network",
            f"write `weights: {run}/model/model.safetensors` instead",
        ]
    if not named:
        return None
    replace = f"--set 'model={{from: {run}}}'"
    by_set = document.place(FROM).startswith("--set")
    return [
        f"names a run, and model.{named[0]} names a network",
        "the network of the run: from, freeze and unfreeze, and no other key",
        f"write {replace}, which replaces all of `model`" if by_set else f"write `model: {{from: {run}}}`",
    ]


def hint(path: Path, value: object) -> str:
    """What to do about a value of `model` that looks like a run folder; empty if it does not."""
    is_run = path == FROM[:1] and isinstance(value, str) and "/" in value
    return f"to start from a run: `model: {{from: {value}}}`" if is_run else ""
