"""Checks class weights that a job gives by name against the classes in the data."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.data.dataset import Dataset
from runtime.data.labels import listed
from runtime.errors import SpecError, nearest
from runtime.job import Job
from runtime.job.text import TextJob


def check(job: Job, dataset: Dataset) -> list[str]:
    """Check that every class with a weight is in the data.

    Returns:
        A note for each head with such weights: the weight of each class.

    Raises:
        SpecError: for a class that is not in the data, at the place of its name.
    """
    notes, problems = [], []
    for name, head in dataset.heads.items():
        weights = head.class_weights or job.train.class_weights
        if not isinstance(weights, Mapping) or not head.classes:
            continue
        key = _key(job, name, own=head.class_weights is not None)
        problems += [
            job.problem(
                (*key, given),
                f'"{given}" is no class of the data',
                listed(head.classes, 30),
                nearest(given, head.classes) or "use one of these",
            )
            for given in weights
            if given not in head.classes
        ]
        of, kind = (
            (f" of {name}" if name else ""),
            ("weights of samples with a label" if head.several else "class weights"),
        )
        named = listed([f"{each} {weights[each]:g}" for each in head.classes if each in weights], 30)
        rest = [each for each in head.classes if each not in weights]
        notes.append(f"{kind}{of}: {named}" + (f"; 1 for {listed(rest)}, which have none in the job" if rest else ""))
    if problems:
        raise SpecError(problems)
    return notes


def _key(job: Job, head: str, *, own: bool) -> tuple[str, ...]:
    """The key that gives the weights of a head."""
    if own and isinstance(job, TextJob):
        return ("data", "labels", head or next(iter(job.data.labels)), "class_weights")
    return ("train", "class_weights")
