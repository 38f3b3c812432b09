"""Checks that every machine of a run has the same files of data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from runtime.distributed.world import LOCAL_RANK, NODES
from runtime.errors import DataError
from runtime.training import recorded_inputs
from runtime.training.identical_ranks import first_difference
from runtime.training.run import Run


def check_data(run: Run) -> None:
    """Refuse to train on different files; each machine reads its own.

    Raises:
        DataError: if a machine has another file than the leader's.
    """
    if NODES not in os.environ:
        return
    path = run.folder / recorded_inputs.RECORD
    record = json.loads(run.ranks.text_from(0, path.read_text(encoding="utf-8") if run.ranks.is_rank0 else ""))
    reads = not run.ranks.is_rank0 and os.environ.get(LOCAL_RANK, "0") == "0"
    if found := first_difference(run.ranks, "; ".join(_differences(run, record)) if reads else ""):
        raise DataError(
            f"other data than on the leader's machine: {found}",
            "the same files on all machines",
            "copy the leader's data to that machine, or read it from a file system that all share",
        )


def _differences(run: Run, record: Mapping[str, Any]) -> list[str]:
    """How the data of this machine differs from the leader's; shards may have other times, but not other rows."""
    found = recorded_inputs.changed_since(run.job, record)
    if run.readable.shards:
        own, leaders = run.readable.content(), record["arrays"]
        found += [f"the shards of {key} have other names, sizes or rows" for key in own if own[key] != leaders.get(key)]
    return found
