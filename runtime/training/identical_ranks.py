"""Checks that all processes of the run have the same data and network, since each loads and builds them itself.

User code that uses unseeded random numbers, or iterates over a set or a folder listing, can give other results in each.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping

from torch import nn

from runtime.data.dataset import Dataset
from runtime.distributed.ranks import Ranks
from runtime.distributed.store import node_name
from runtime.distributed.world import NODES
from runtime.errors import DataError, SpecError
from runtime.job import Job
from runtime.plan.plan import Plan

SEED = (
    "fix the seed of what it draws and sort what it lists (a set and os.listdir have no order), or train in one process"
)


def check(ranks: Ranks, job: Job, dataset: Dataset, model: nn.Module, fingerprint: str) -> None:
    """Refuse to train different networks or different data.

    Args:
        fingerprint: of the samples, as recorded in a checkpoint.

    Raises:
        DataError: if samples, targets or preprocessing differ.
        SpecError: if the networks differ.
    """
    if ranks.count == 1:
        return
    wrong = _differs(
        ranks,
        {"samples": fingerprint, "preprocessing": json.dumps(dataset.preprocessing, default=str)}
        | {"classes": repr(dataset.heads)},
    )
    if wrong:
        raise DataError(f"{wrong} than process 1, from the same job", "data that every process reads alike", SEED)
    shapes = [(name, tuple(t.shape), str(t.dtype)) for name, t in (*model.named_parameters(), *model.named_buffers())]
    wrong = _differs(ranks, {"weights or buffers": repr(shapes)})
    if wrong:
        raise SpecError(
            [job.problem(("model",), f"{wrong} than process 1", "a network that every process builds alike", SEED)]
        )


def _differs(ranks: Ranks, things: Mapping[str, str]) -> str | None:
    """The first of these things in which a process differs from rank 0, and which process."""
    # Six bytes of a digest fit into a float64 exactly.
    own = [float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])) for text in things.values()]
    first, *others = ranks.all_gather(own)
    for number, row in enumerate(others, 2):
        for name, one, two in zip(things, first, row, strict=True):
            if one != two:
                return f"process {number} of {ranks.count} has other {name}"
    return None


def check_plan(ranks: Ranks, plan: Plan) -> None:
    """Refuse to train under different plans; there is nothing to compare on a single machine.

    Raises:
        SpecError: if a machine has decided otherwise.
    """
    if NODES not in os.environ:
        return
    own = plan.values()
    first = json.loads(ranks.text_from(0, json.dumps(own)))
    wrong = [f"{name} is {own[name]}, there {value}" for name, value in first.items() if own[name] != value]
    if found := first_difference(ranks, "; ".join(wrong)):
        raise SpecError(
            f"another plan than on the leader's machine: {found}",
            "one plan for all machines",
            "give the value in the job, under optimize, or use machines of one kind",
        )


def first_difference(ranks: Ranks, wrong: str) -> str:
    """What the first process with a difference has found, and on which machine; empty if none has."""
    met = [int(row[0]) for row in ranks.all_gather([float(bool(wrong))])]
    if not any(met):
        return ""
    return ranks.text_from(met.index(1), f"rank {ranks.number} on node {node_name()}: {wrong}")
