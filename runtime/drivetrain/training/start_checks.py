"""Checks before the first step: all ranks have the same data, network and plan, and the batches can be trained.

Each process loads the data and builds the network itself. User code that uses unseeded random numbers, or iterates over
a set or a folder listing, can give different results in each process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np
from torch import nn

from drivetrain.data.custom.iterables import StreamSplit
from drivetrain.data.custom.user_loss import SPLITTABLE
from drivetrain.data.dataset import Batch, Dataset
from drivetrain.distributed.ranks import Ranks
from drivetrain.distributed.store import find_node_name
from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.plan.plan import Plan

SEEDS = "seed its random numbers and sort its lists (a set and os.listdir have no order), or train in one process"


def check_identical(ranks: Ranks, job: Job, dataset: Dataset, model: nn.Module, fingerprint: str) -> None:
    """Refuse to train different networks or different data.

    Args:
        fingerprint: fingerprint of the samples, as recorded in a checkpoint.

    Raises:
        DataError: if samples, targets or preprocessing differ.
        SpecError: if the networks differ.
    """
    if ranks.world_size == 1:
        return
    preprocessing = json.dumps(dataset.preprocessing, default=str)
    texts = {"samples": fingerprint, "preprocessing": preprocessing, "classes": repr(dataset.heads)}
    difference = _find_difference(ranks, texts)
    if difference:
        raise DataError(f"{difference} than process 1, from the same job", "the same data in every process", SEEDS)
    shapes = [(name, tuple(t.shape), str(t.dtype)) for name, t in (*model.named_parameters(), *model.named_buffers())]
    difference = _find_difference(ranks, {"weights or buffers": repr(shapes)})
    if difference:
        raise job.spec_error(("model",), f"{difference} than process 1", "the same network in every process", SEEDS)


def _find_difference(ranks: Ranks, texts: Mapping[str, str]) -> str | None:
    """Describe which process differs from rank 0 in which of the named texts; None if all are equal."""
    # Six bytes of a digest fit into a float64 exactly.
    digests = [float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])) for text in texts.values()]
    first_row, *other_rows = ranks.all_gather(digests)
    for number, row in enumerate(other_rows, 2):
        for name, first_digest, digest in zip(texts, first_row, row, strict=True):
            if first_digest != digest:
                return f"process {number} of {ranks.world_size} has different {name}"
    return None


def note_same_samples(ranks: Ranks, dataset: Dataset) -> list[str]:
    """Return a warning if all processes read the same samples from an iterable, judged by the first one."""
    if ranks.world_size == 1 or not isinstance(dataset.train, StreamSplit):
        return []
    content = b"".join(value.numpy().tobytes() for value in dataset.train.gather(np.arange(1)))
    rows = ranks.all_gather([float(int.from_bytes(hashlib.sha256(content).digest()[:6]))])
    if any(row != rows[0] for row in rows):
        return []
    return [
        f"warning: the {ranks.world_size} processes begin with the same sample of the iterable; it should yield different samples in each process, by its number RANK of "
        "WORLD_SIZE (environment variables)"
    ]


def adopt_plan(ranks: Ranks, plan: Plan) -> Plan:
    """Return the plan with rank 0's values: a rank whose machine has less memory or disk may have chosen others."""
    return plan.with_values(json.loads(ranks.broadcast_text(json.dumps(plan.values()))))


def first_difference(ranks: Ranks, wrong: str) -> str:
    """Return the first text `wrong` of any process that is not empty, with its machine; empty if all are."""
    text = f"rank {ranks.rank} on node {find_node_name()}: {wrong}"
    is_wrong = [bool(row[0]) for row in ranks.all_gather([float(bool(wrong))])]
    return ranks.broadcast_text(text, is_wrong.index(True)) if any(is_wrong) else ""


SINGLE_SAMPLE = (
    "this network cannot train on a single sample: one of its BatchNorm layers would have one value per channel, which "
    "has no variance"
)


def refuse_single_samples(job: Job, forward: ForwardPass, processes: int) -> None:
    """Refuse sizes that are too small for a network that needs two samples at once, if `processes` share a batch.

    Raises:
        SpecError: if a size is too small; names its key.
    """
    if forward.min_samples == 1:
        return
    if forward.micro_batch == 1:
        key, setting = ("optimize", "micro_batch"), "1"
    elif job.train.batch < 2 * processes:
        key, setting = ("train", "batch_size"), str(job.train.batch)
        if processes > 1:
            setting += f" for {processes} processes"
    elif forward.splitter is not Batch.split:
        key, setting = ("optimize", "unpadding"), "a text may be computed alone"
    else:
        return
    action = "use a larger size, or layers that need no batch, such as GroupNorm or LayerNorm"
    raise job.spec_error(key, f"{setting}, but {SINGLE_SAMPLE}", "two samples or more at a time", action)


def check_divisible(job: Job, dataset: Dataset, processes: int) -> None:
    """Refuse several processes if a batch cannot be divided among them.

    This is so if the user's loss cannot be combined from the losses of their shares, or if a batch of an iterable has
    fewer samples than processes.

    Raises:
        SpecError: if they are refused; names the key.
    """
    if processes > 1 and isinstance(dataset.train, StreamSplit) and job.train.batch < processes:
        raise job.spec_error(
            ("train", "batch_size"),
            f"is {job.train.batch}, and each of {processes} processes reads its own samples from an iterable",
            f"{processes} samples or more",
            "raise it, or train in one process",
        )
    obstacle = dataset.loss.division.obstacle if dataset.loss else ""
    if processes == 1 or not obstacle:
        return
    description = f"a batch is divided among {processes} processes, and {obstacle}"
    action = f"train in one process, on one GPU; {SPLITTABLE}"
    raise job.spec_error(
        ("limits", "processes"), description, "one process, which computes every batch as a whole", action
    )
