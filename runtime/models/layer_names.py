"""Name patterns for layers in the spec: which parameters one matches, and the error if it matches none."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from fnmatch import fnmatch

from runtime.errors import Problem
from runtime.job import Job
from runtime.job.formatting import Path as Key
from runtime.job.formatting import dotted

SHOWN = 600
"""Characters of the list of layers in a message."""


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The parameters that a pattern matches by their own name, or by that of a layer that contains them."""
    return [name for name in names if fnmatch(name, pattern) or fnmatch(name, f"{pattern}.*")]


def layers(names: Iterable[str]) -> list[str]:
    """The layers that contain these parameters, in their order; a parameter outside of layers by its own name."""
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))


def above(names: Iterable[str]) -> list[str]:
    """The layers that contain these parameters, and all modules around them."""
    found = [name.split(".")[:depth] for name in layers(names) for depth in range(1, name.count(".") + 2)]
    return list(dict.fromkeys(".".join(parts) for parts in found))


def problem(job: Job, key: Key, given: str, pattern: str, names: Collection[str]) -> Problem:
    """The problem of a pattern, with the layers that it could name; `names` are their parameters."""
    listed = ", ".join(layers(names))
    close = difflib.get_close_matches(pattern.rstrip("*."), above(names), n=1, cutoff=0.5)
    return Problem(
        job.document.place(key),
        dotted(key),
        given,
        f"layers: {listed[:SHOWN]}{'...' if len(listed) > SHOWN else ''}",
        f'did you mean "{close[0]}"?' if close else "name one of them, or several with a pattern such as `features*`",
    )
