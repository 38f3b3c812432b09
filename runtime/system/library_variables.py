"""Variables: those of a plan beside those that a person has set for the same libraries; the person's own words win."""

from __future__ import annotations

import os
from collections.abc import Mapping

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Settings of the GPU's allocator by comma; newer versions of torch read the first, if it is there."""
SAME_BITS = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS adds in the same order each time."""


def merged(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """What to set for a process.

    Args:
        found: the variables as they are.
        wanted: those of a plan.

    Returns:
        The plan's, where a person has set nothing that says otherwise; lists are joined.
    """
    given = dict(wanted)
    if found.get("CUBLAS_WORKSPACE_CONFIG") in SAME_BITS:
        given.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if "LD_PRELOAD" in given and found.get("LD_PRELOAD"):
        given["LD_PRELOAD"] = f"{given['LD_PRELOAD']}:{found['LD_PRELOAD']}"
    ours = given.pop(ALLOCATOR[1], None)
    if ours is None:
        return given
    names = [name for name in ALLOCATOR if found.get(name)] or [ALLOCATOR[1]]
    return given | {name: _joined(found.get(name, ""), ours) for name in names}


def allocator(found: Mapping[str, str] = os.environ) -> str:
    """The allocator's settings as torch reads them."""
    return next((found[name] for name in ALLOCATOR if found.get(name)), "")


def _joined(theirs: str, ours: str) -> str:
    """Both lists; of ours only what theirs does not name."""
    named = {part.partition(":")[0].strip() for part in theirs.split(",")}
    more = [part for part in ours.split(",") if part.partition(":")[0] not in named]
    return ",".join(filter(None, (theirs, *more)))
