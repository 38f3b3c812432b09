"""Builds datasets from user data: from a function of the user, or from data that a Python program passes in.

It also determines the kind of the targets (classes, labels, numbers or other) and the head for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.custom import array_codes, data_sources, user_code, user_loss
from drivetrain.data.custom.data_sources import DataSource
from drivetrain.data.custom.iterables import StreamSplit
from drivetrain.data.custom.map_dataset import ArraySplit, Items, ItemSplit, describe, open_split
from drivetrain.data.custom.user_errors import blame_user_code
from drivetrain.data.dataset import Dataset, Head, InputRecord, Inputs, NewSamples
from drivetrain.data.formats import npz_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.notes import list_names
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError, Problem, SpecError
from drivetrain.job.custom import CustomJob, CustomTask
from drivetrain.job.embedded import EmbeddedJob
from drivetrain.job.formatting import format_value
from drivetrain.job.job import CLASS_METRICS, KAPPA, LABEL_METRICS, NUMBER_METRICS, RANKING_METRICS

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
"""Smallest class index that is taken for a mistake, if it is not below the number of samples."""


def load(job: CustomJob, recorded: InputRecord | None = None, files: CsvFiles | None = None) -> Dataset:
    """Call the user's function and check its result; `recorded` and `files` are not used.

    Raises:
        DataError: if the function raises, or its result cannot be used.
        SpecError: if a loss or metric of the job does not fit the targets.
    """
    data = job.data
    name = f"data.file: {data.factory}() in {data.file}"
    with blame_user_code(DataError, f"{name} raised"):
        code = user_code.open_code(job.folder)
        returned = code.bind(data.file, data.factory, data.arguments)()
        if data.reader:  # files that the reader needs, such as a vocabulary, are stored with the model
            code.with_copies(code.bind(data.file, data.reader, {}, data.arguments).keywords)
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        raise DataError(
            f"{name} returned {describe(returned)}",
            "a pair: (training data, validation data); or three, the last of them for a final test",
            "return both, as `return training, validation`",
        )
    reader = {"file": data.file, "function": data.reader, "arguments": data.arguments} if data.reader else None
    sources = [
        data_sources.open_source(value, f"data.file: {kind} data of {data.factory}() in {data.file}")
        for value, kind in zip(returned, ("training", "validation", "test"), strict=False)
    ]
    built = build_dataset(job, (sources[0], sources[1]), user_loss.load(job), reader)
    if len(returned) == 3:
        label, content = sources[2].name, data_sources.open_validation(sources[2], job.train.seed)
        test = open_split(content, label, job.train.seed, len(built.preprocessing["inputs"]))
        built.test = _check_like_training(test, label, built.preprocessing, built.heads, labelled=True)
        built.notes.append(f"{len(test):,} samples for the final test")
    return built


def build_dataset(
    job: CustomJob | EmbeddedJob,
    sources: tuple[DataSource, DataSource],
    loss: user_loss.CustomTerms | None,
    reader: Mapping[str, Any] | None = None,
) -> Dataset:
    """Build the dataset of a job from the user's training and validation data.

    Args:
        loss: the user's loss; None for a built-in loss.
        reader: file, function and arguments that read new samples.

    Raises:
        DataError: if the data cannot be used.
        SpecError: if a loss or metric of the job does not fit the targets.
    """
    first, second, seed = *sources, job.train.seed
    content = data_sources.open_training(first, seed, job.train.batch, job.train.epoch_steps)
    train = open_split(content, first.name, seed, collate=first.collate)
    validation = open_split(data_sources.open_validation(second, seed), second.name, seed, collate=second.collate)
    head = determine_head(job, train, validation, job.data.targets, job.data.names)
    if loss and len(head.columns) == 1:
        loss.set_data_shape(train.first_targets())
    sample = as_float32(train.gather(np.arange(1)), np.arange(1), None)
    inputs = [{"shape": list(x.shape[1:]), "type": str(x.dtype).removeprefix("torch.")} for x in sample]
    stored = {"kind": "own", "inputs": inputs, "targets": head.kind, "reader": reader}
    arrays = {"training": train, "validation": validation}
    other = "no built-in metric for these targets: runs are compared by your loss"
    notes = [
        f"{len(train):,} training and {len(validation):,} validation samples",
        f"targets: {other if head.kind == 'other' else head.outputs_text}",
        *_note_reading(train, head, job.data.names),
        *note_missing_classes(train, head),
        *array_codes.note_codes(train, validation, head),
    ]
    order = data_sources.build_order(sources[0], seed)
    return Dataset(
        train,
        validation,
        {"": head},
        stored,
        as_float32,
        mixable=False,
        decoded=isinstance(train, ArraySplit),
        notes=[*notes, *data_sources.describe_use(*sources, order)],
        order=order,
        drop_last=sources[0].drop_last,
        loss=loss,
        content=lambda: {name: part.digest() for name, part in arrays.items() if isinstance(part, ArraySplit)},
    )


def as_float32(inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
    """Convert float64 inputs to float32, the precision of the network."""
    return tuple(x.float() if x.dtype == torch.float64 else x for x in inputs)


def _note_reading(train: Items, head: Head, names: tuple[str, ...] | None) -> list[str]:
    """Return notes on float64 numbers of the first samples that float32 changes, and on reading item by item."""
    is_array = isinstance(train, ArraySplit)
    rows = np.arange(min(len(train), 1000 if is_array else 1))
    values = (*train.gather(rows), *([train.all_targets()[: len(rows)]] if is_array else []))
    is_rounded = any(x.dtype == torch.float64 and not torch.equal(x.float().double(), x) for x in values)
    notes = ["float64 numbers are rounded to float32, the precision of the training"] if is_rounded else []
    if is_array or isinstance(train, StreamSplit):
        return notes
    notes.append("the dataset returns one sample at a time; batches are collated while training")
    if head.kind == "classes" and names is None:
        notes.append("every target was read once to count the classes; set `names` to skip this")
    return notes


def read(sources: Sequence[Source], preprocessing: Mapping[str, Any], heads: Mapping[str, Head]) -> NewSamples:
    """Read new samples with the user's reader, or .npz files with `inputs` (or `inputs_0`, ...) and `targets`.

    A user's reader takes paths of any kind, and `preprocessing` has `code`, the folder of the model's code.

    Raises:
        DataError: if no sample can be used.
        CheckpointError: if running the model's code is not allowed.
    """
    paths, labelled = [source.path for source in sources], sources[0].labelled
    count, reader = len(preprocessing["inputs"]), preprocessing["reader"]
    data = _call_reader(reader, paths, preprocessing) if reader else _concatenate_files(paths, count, labelled)
    name = f"{reader['function']}() in {reader['file']}" if reader else str(paths[0])
    return _check_like_training(open_split(data, name, 0, count), name, preprocessing, heads, labelled=labelled)


def _check_like_training(
    split: Items, name: str, preprocessing: Mapping[str, Any], heads: Mapping[str, Head], *, labelled: bool
) -> NewSamples:
    """Check that samples have the shapes and targets of training, and set the form of their targets."""
    trained_shapes = [tuple(x["shape"]) for x in preprocessing["inputs"]]
    # For a dataset, the first sample is read.
    if labelled and (
        split.raw_targets is None if isinstance(split, ArraySplit) else "" not in split.samples(np.arange(1))[1]
    ):
        raise DataError(f"{name}: the samples have no targets", "samples with targets", "add targets, or use `predict`")
    sample_shapes = [tuple(x.shape[1:]) for x in split.gather(np.arange(1))]
    if [len(shape) for shape in sample_shapes] != [len(shape) for shape in trained_shapes]:
        raise DataError(
            f"{name}: inputs have the shapes {', '.join(map(str, sample_shapes))}",
            f"as in training: {', '.join(map(str, trained_shapes))}",
            "use inputs of the shape that the network was trained on",
        )
    max_target = find_max_target(heads[""])
    if labelled and max_target is not None and isinstance(split, ArraySplit):
        _check_targets(split, max_target)
    set_target_form(split, heads[""])
    return NewSamples(split, as_float32)


def _call_reader(reader: Mapping[str, Any], paths: Sequence[Path], preprocessing: Mapping[str, Any]) -> object:
    name, code = f"{reader['function']}() in {reader['file']}", user_code.find_opened(Path(preprocessing["code"]))
    with blame_user_code(DataError, f"{name} raised"):
        arguments = code.with_copies(reader["arguments"])
        return code.bind(reader["file"], reader["function"], {}, arguments)(list(paths))


def _concatenate_files(paths: Sequence[Path], count: int, labelled: bool) -> tuple[object, ...]:
    """Read the arrays of all files and concatenate them."""
    array_names = ["inputs"] if count == 1 else [f"inputs_{i}" for i in range(count)]
    array_names += ["targets"] if labelled else []
    parts = [_read_npz(path, array_names) for path in paths]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def _read_npz(path: Path, array_names: Sequence[str]) -> list[object]:
    """Read arrays of an .npz, in the order of their names."""
    if path.suffix.lower() != ".npz":
        raise DataError(
            f"{path} is no .npz, and the run was trained without a `reader`",
            f"an .npz with {', '.join(array_names)}",
            "write it with numpy.savez; or name a `reader` under data: and train again, then any file can be read",
        )
    possible = f"an .npz with {', '.join(array_names)}; or your own `reader` under data:, set before training"
    arrays = npz_file.read_arrays(path, "", array_names, possible, f"numpy.savez(..., {array_names[-1]}=...)")
    return list(arrays.values())


def _check_targets(split: ArraySplit, max_target: int) -> None:
    """Refuse class indices that training did not have."""
    targets = split.all_targets()
    if targets.min() < 0 or targets.max() > max_target:
        raise DataError(
            f"{split.name}: targets go from {targets.min():g} to {targets.max():g}",
            f"targets from 0 to {max_target}, as in training",
            "remove samples of other classes",
        )


def determine_head(
    job: CustomTask, train: Items, validation: Items, requested: str, names: tuple[str, ...] | None
) -> Head:
    """Determine the kind of the targets and their head, and set the conversion of targets in both splits.

    The requested kind is auto, classes, labels, numbers or other. Without names, outputs are numbered.

    Raises:
        DataError: if the targets have none of these kinds.
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
    """Build the head for targets of this kind with these names."""
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


def find_max_target(head: Head) -> int | None:
    """Find the highest valid target for classes or labels; None if there is no limit."""
    return {"classes": len(head.classes) - 1, "labels": 1}.get(head.kind)


def set_target_form(split: Items, head: Head) -> None:
    """Set how a split checks and converts its targets, by its head."""
    split.set_target_form(partial(convert, head.kind), find_max_target(head))


def _guess_kind(job: CustomTask, targets: Tensor) -> str:
    """Guess the kind from dtype and shape of the targets, and from the loss of the job."""
    is_integer = not targets.is_floating_point()
    if targets.ndim == 2 and (getattr(job.train.loss, "name", "") == "bce" or (is_integer and _is_binary(targets))):
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
    shape = f"{str(targets.dtype).removeprefix('torch.')} of shape (samples{''.join(f', {size}' for size in targets.shape[1:])})"
    if not fits[kind]:
        fitting = next(name for name in (_guess_kind(job, targets), "numbers", "other") if fits[name])
        description, possible = f"is {kind}, and the targets are {shape}", POSSIBLE_TARGETS[kind]
        action = f'change the targets, or set targets: {fitting} (in Python targets="{fitting}")'
        raise job.spec_error(("data", "targets"), description, possible, action)
    if kind == "other" and job.train.loss is None:
        description, possible = f"is missing, and the targets are {shape}", "no built-in loss fits these targets"
        raise job.spec_error(("train", "loss"), description, possible, "write a loss of your own")


def _check_options(job: CustomTask, kind: str, targets: Tensor) -> None:
    """Check that loss, class weights and watched metrics of the job fit the targets."""
    problems: list[Problem] = []
    description = (
        f"the targets are {kind} ({str(targets.dtype).removeprefix('torch.')})"
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
    # Only later is it known whether there are two classes.
    metrics_of_some = [f"validation/{name}" for name in (*RANKING_METRICS, KAPPA)] if kind == "classes" else []
    for path, metric in job.list_watched_metrics():
        if metric not in (*metrics, *metrics_of_some):
            problems.append(
                job.problem(path, f"is {metric}", f"{description}, with the metrics {', '.join(metrics)}", "pick one")
            )
    if problems:
        raise SpecError(problems)


def _count_classes(train: Items, validation: Items, names: tuple[str, ...] | None) -> int:
    """Count the classes: the number of names, else one more than the highest index."""
    if names is not None and isinstance(train, ItemSplit):
        return len(names)  # batches are checked later; reading every item now could take long
    distinct_indices = [torch.unique(split.all_targets()) for split in (train, validation)]
    lowest, highest = int(torch.cat(distinct_indices).min()), int(torch.cat(distinct_indices).max())
    if lowest < 0:
        raise DataError(f"{train.name}: a target is {lowest}", "class indices from 0", "count the classes from 0")
    if len(distinct_indices[0]) < 2:
        raise DataError(
            f"{train.name}: all targets are {int(distinct_indices[0][0])}",
            "two classes or more",
            'add another class; for a loss that needs no targets, targets: other (in Python targets="other")',
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
    """Return a note on classes without a training sample, if the targets are known without reading every item."""
    if isinstance(train, ItemSplit) or not head.classes or head.several:
        return []
    present = set(torch.unique(train.targets[""]).tolist())
    missing = [name for index, name in enumerate(head.classes) if index not in present]
    return [f"the training data has no sample of the classes {list_names(missing)}"] if missing else []
