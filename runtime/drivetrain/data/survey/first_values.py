"""Sensible initial settings, derived from the number of samples."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.data.labels import list_names, looks_empty, sort_class_names
from drivetrain.job.draft import Entry

MANY_ROWS = 20_000
"""Number of samples from which on a tenth of them is enough for validation."""
MAX_LISTED_CLASSES = 8
ACCEPTED_BAD_SHARE = 0.045
"""Share of unusable samples that the default of `bad_samples` accepts, with a margin."""


def validation(samples: int, sample_noun: str) -> Entry:
    """The fraction of the samples for validation."""
    fraction, word = (0.1, "a tenth") if samples >= MANY_ROWS else (0.2, "a fifth")
    return Entry("validation", str(fraction), f"{word} of the {sample_noun} is for validation")


def training(
    samples: int, samples_in_all: int, epochs_between: tuple[int, int], largest_batch: int, sample_noun: str, rate: str
) -> list[Entry]:
    """The keys of `train:`, with as many epochs as see about `samples_in_all` samples."""
    least, most = epochs_between
    count = min(most, max(least, round(samples_in_all / max(1, samples))))
    reason = f"passes over the training {sample_noun}; increase it if validation still improves"
    return [Entry("epochs", str(count), reason), batch_size(samples, largest_batch), *optimizer(rate)]


def batch_size(samples: int, most: int) -> Entry:
    """A power of two from 16 to `most`, with about forty steps or more in an epoch."""
    size = 16
    while size * 2 <= most and size * 80 <= samples:
        size *= 2
    steps = max(1, samples // size)
    return Entry("batch_size", str(size), f"at most {steps:,} steps per epoch; auto measures which size is fastest")


def optimizer(rate: str, reason: str = "a good start for this network") -> list[Entry]:
    """AdamW with a learning rate that suits the network, and a one-cycle schedule."""
    return [
        Entry("optimizer", f"{{name: adamw, lr: {rate}}}", f"{reason}; `drivetrain find-lr` tests others"),
        Entry("schedule", "one-cycle", "the learning rate rises, then falls to almost zero"),
    ]


def format_counts(counts: Mapping[str, int]) -> str:
    """The number of samples of each class, such as `6 classes: dots 200, rings 180, ...`, the largest first.

    If all are equal, the number is written once.
    """
    empty = [name for name in sort_class_names(counts) if looks_empty(name)]
    doubt = f"; probably no value: {list_names(empty)} (data.missing)" if empty else ""
    if len(set(counts.values())) == 1 and len(counts) > 1:
        names = list_names(sort_class_names(counts), MAX_LISTED_CLASSES)
        return f"{len(counts):,} classes of {next(iter(counts.values())):,} each: {names}{doubt}"
    listed = [f"{name} {counts[name]:,}" for name in sorted(counts, key=lambda name: (-counts[name], name))]
    return f"{len(counts):,} classes: {list_names(listed, MAX_LISTED_CLASSES)}{doubt}"


def describe_classes(counts: Mapping[str, int]) -> list[str]:
    """Lines on the number of samples of each class, and on classes with a single one."""
    single_classes = sorted(name for name, count in counts.items() if count == 1)
    single = f"classes with one sample, which stays in training: {list_names(single_classes)}"
    return [format_counts(counts), *([single] if single_classes else [])]


def bad_samples(unusable_share: float, reason: str) -> list[Entry]:
    """The limit on unusable samples, if the default limit would end the training."""
    if unusable_share <= ACCEPTED_BAD_SHARE:
        return []
    limit = min(0.99, unusable_share * 1.1 + 0.01)
    return [Entry("bad_samples", f"{limit:.2f}", f"{unusable_share:.0%} of the rows {reason}")]
