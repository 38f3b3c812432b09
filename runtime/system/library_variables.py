"""Merges a plan's environment variables with those that the user has set; the user's values win."""

from __future__ import annotations

import os
from collections.abc import Mapping

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Comma-separated settings of the GPU's allocator; newer torch versions read the first variable, if it is set."""
SAME_BITS = (":4096:8", ":16:8")
"""Workspace settings with which cuBLAS sums in the same order each time."""


def merge_variables(found: Mapping[str, str], planned: Mapping[str, str]) -> dict[str, str]:
    """The variables to set for a process.

    Args:
        found: the present variables.
        planned: those of a plan.

    Returns:
        The plan's, except where the user has set another value; lists are joined.
    """
    given = dict(planned)
    if found.get("CUBLAS_WORKSPACE_CONFIG") in SAME_BITS:
        given.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if "LD_PRELOAD" in given and found.get("LD_PRELOAD"):
        given["LD_PRELOAD"] = f"{given['LD_PRELOAD']}:{found['LD_PRELOAD']}"
    ours = given.pop(ALLOCATOR[1], None)
    if ours is None:
        return given
    names = [name for name in ALLOCATOR if found.get(name)] or [ALLOCATOR[1]]
    return given | {name: _joined(found.get(name, ""), ours) for name in names}


def allocator_settings(found: Mapping[str, str] = os.environ) -> str:
    """The allocator's settings as torch reads them."""
    return next((found[name] for name in ALLOCATOR if found.get(name)), "")


def _joined(theirs: str, ours: str) -> str:
    """Join two lists; of ours only settings that theirs does not have."""
    named = {part.partition(":")[0].strip() for part in theirs.split(",")}
    more = [part for part in ours.split(",") if part.partition(":")[0] not in named]
    return ",".join(filter(None, (theirs, *more)))
