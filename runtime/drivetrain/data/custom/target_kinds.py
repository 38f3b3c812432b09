"""Determines what user targets are (classes, labels, numbers or other), and the head for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from drivetrain.data.custom.map_dataset import Items, ItemSplit
from drivetrain.data.dataset import Head
from drivetrain.data.labels import list_names
from drivetrain.errors import DataError, Problem, SpecError
from drivetrain.job.custom import CustomTask
from drivetrain.job.formatting import format_value
from drivetrain.job.job import CLASS_METRICS, KAPPA, LABEL_METRICS, NUMBER_METRICS, RANKING_METRICS
from drivetrain.job.train import BinaryCrossEntropy

LOSSES_BY_KIND = {"classes": ("cross-entropy", "focal"), "labels": ("bce",), "numbers": ("mse", "huber"), "other": ()}
METRICS_BY_KIND: Mapping[str, tuple[str, ...]] = {
    "classes": CLASS_METRICS,
    "labels": LABEL_METRICS,
    "numbers": NUMBER_METRICS,
    "other": ("loss",),
}
POSSIBLE_TARGETS = {
    "classes": "whole numbers from 0, one for each sample",
    "labels": "0 or 1, as (samples, labels)",
    "numbers": "one number for each sample, or (samples, numbers)",
}
SUSPICIOUS_CLASS_INDEX = 1000
"""A class index of this or more, and of at least the number of samples, is taken for a mistake."""


def determine_head(
    job: CustomTask, train: Items, validation: Items, requested: str, names: tuple[str, ...] | None
) -> Head:
    """Determine the kind of the targets and their head, and set how the splits convert them.

    The requested kind is auto, classes, labels, numbers or other. Without names, outputs are numbered.

    Raises:
        DataError: if the targets are of none of these kinds.
        SpecError: if the job requests a loss or metric that does not fit the kind.
    """
    sample_targets = train.first_targets()
    kind = _guess_kind(job, sample_targets) if requested == "auto" else requested
    _check_kind(job, sample_targets, kind)
    _check_options(job, kind, sample_targets)
    count = _count_classes(train, validation, names) if kind == "classes" else sample_targets[0].numel()
    if kind != "other" and names is not None and len(names) != count:
        description = f"is a list of {len(names)}, and the targets have {count} {kind}"
        raise job.spec_error(("data", "names"), description, f"{count} names", "name each of them, in order")
    output_names = names or (("value",) if kind == "numbers" and count == 1 else tuple(map(str, range(count))))
    head = _build_head(kind, output_names)
    for split in (train, validation):
        set_target_form(split, head)
    return head


def _build_head(kind: str, names: tuple[str, ...]) -> Head:
    """The head for targets of this kind with these names."""
    if kind == "other":
        return Head("")
    if kind == "numbers":
        # The user's network and loss get the numbers unscaled.
        return Head("", columns=names, mean=(0.0,) * len(names), std=(1.0,) * len(names))
    return Head("", classes=names, several=kind == "labels")


def convert(kind: str, targets: Tensor) -> Tensor:
    """Convert targets for losses and scores: classes (N,) int64, labels and numbers (N, K) float32."""
    if kind == "classes":
        return targets.long()
    if kind == "other":
        return targets.float() if targets.dtype == torch.float64 else targets
    return targets.float().reshape(len(targets), -1)


def max_target(head: Head) -> int | None:
    """The highest valid target of classes or labels; None if there is no limit."""
    return {"classes": len(head.classes) - 1, "labels": 1}.get(head.kind)


def set_target_form(split: Items, head: Head) -> None:
    """Let a split check and convert its targets for a head."""
    split.set_target_form(partial(convert, head.kind), max_target(head))


def _guess_kind(job: CustomTask, targets: Tensor) -> str:
    """Guess the kind from dtype and shape of the targets, and from the loss of the job."""
    is_integer = not targets.is_floating_point()
    if targets.ndim == 2 and (isinstance(job.train.loss, BinaryCrossEntropy) or (is_integer and _is_binary(targets))):
        return "labels"
    if is_integer:
        return "classes" if targets.ndim == 1 else "other"
    return "numbers" if targets.ndim <= 2 else "other"


def _is_binary(targets: Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all())


def _check_kind(job: CustomTask, targets: Tensor, kind: str) -> None:
    """Check that the targets can be of this kind."""
    fits = {
        "classes": targets.ndim == 1 and not targets.is_floating_point(),
        "labels": targets.ndim == 2 and _is_binary(targets),
        "numbers": targets.ndim <= 2,
        "other": True,
    }
    shape = f"{_dtype_name(targets)} of shape (samples{''.join(f', {size}' for size in targets.shape[1:])})"
    if not fits[kind]:
        description = f"is {kind}, and the targets are {shape}"
        raise job.spec_error(("data", "targets"), description, POSSIBLE_TARGETS[kind], "change one of the two")
    if kind == "other" and job.train.loss is None:
        description = f"is missing, and the targets are {shape}"
        raise job.spec_error(
            ("train", "loss"), description, "no built-in loss fits these targets", "write a loss of your own"
        )


def _dtype_name(targets: Tensor) -> str:
    return str(targets.dtype).removeprefix("torch.")


def _check_options(job: CustomTask, kind: str, targets: Tensor) -> None:
    """Check that loss, class weights and watched metrics of the job fit the targets."""
    problems: list[Problem] = []
    description = (
        f"the targets are {kind} ({_dtype_name(targets)})"
        if kind != "other"
        else "the kind of the targets is not recognized"
    )
    loss = job.train.loss
    if loss is not None and not job.has_own_loss() and loss.name not in LOSSES_BY_KIND[kind]:
        path = job.document.nearest(("train", "loss", "name"))
        possible = (
            f"{description}, for which there is {', '.join(LOSSES_BY_KIND[kind]) or 'none'}, or a loss of your own"
        )
        problems.append(job.problem(tuple(map(str, path)), f"is {loss.name}", possible, "choose one of these"))
    if job.train.class_weights != "none" and kind not in ("classes", "labels"):
        problems.append(
            job.problem(
                ("train", "class_weights"), f"is {format_value(job.train.class_weights)}", description, "remove it"
            )
        )
    metrics = [f"validation/{name}" for name in METRICS_BY_KIND[kind]]
    metrics += [
        metric for metric in job.metrics() if metric.removeprefix("validation/") in getattr(job, "own_metrics", ())
    ]
    # Whether there are two classes is known later.
    metrics_of_some = [f"validation/{name}" for name in (*RANKING_METRICS, KAPPA)] if kind == "classes" else []
    for path, metric in job.list_watched_metrics():
        if metric not in (*metrics, *metrics_of_some):
            problems.append(
                job.problem(path, f"is {metric}", f"{description}, with the metrics {', '.join(metrics)}", "pick one")
            )
    if problems:
        raise SpecError(problems)


def _count_classes(train: Items, validation: Items, names: tuple[str, ...] | None) -> int:
    """Count the classes: as many as there are names, else one more than the highest index."""
    if names is not None and isinstance(train, ItemSplit):
        return len(names)  # batches are checked later; reading every item now could take long
    distinct_indices = [torch.unique(split.all_targets()) for split in (train, validation)]
    lowest, highest = int(torch.cat(distinct_indices).min()), int(torch.cat(distinct_indices).max())
    if lowest < 0:
        raise DataError(f"{train.name}: a target is {lowest}", "class indices from 0", "count the classes from 0")
    if len(distinct_indices[0]) < 2:
        raise DataError(
            f"{train.name}: all targets are {int(distinct_indices[0][0])}", "two classes or more", "add another class"
        )
    if highest >= max(SUSPICIOUS_CLASS_INDEX, len(train)):
        raise DataError(
            f"{train.name}: targets are whole numbers up to {highest:,}, more than samples",
            "class indices from 0, or numbers as floats",
            "give numbers as floats, or data.targets: numbers",
        )
    if names is not None and highest < len(names):
        return len(names)
    return highest + 1


def note_missing_classes(train: Items, head: Head) -> list[str]:
    """A note on classes without a training sample, if the targets are known without reading every item."""
    if isinstance(train, ItemSplit) or not head.classes or head.several:
        return []
    present = set(torch.unique(train.targets[""]).tolist())
    missing = [name for index, name in enumerate(head.classes) if index not in present]
    return [f"the training data has no sample of the classes {list_names(missing)}"] if missing else []
