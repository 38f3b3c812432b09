"""Sensible initial settings, derived from the number of samples."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.data.labels import class_names, list_names, looks_empty
from drivetrain.job.draft import Entry, scalar

MANY_ROWS = 20_000
"""From this many samples on, a tenth of them is enough for validation."""
USUAL_LOSS = 0.045
"""Share of unusable samples that the default of `bad_samples` accepts, with a margin."""
UNEVEN = (3.0, 30.0)
"""Ratio of largest to smallest class for which balanced class weights help; above, single samples would dominate."""
LIGHTEST, MOST_WEIGHTS = 1.5, 20
"""The smallest class weight that is worth a line in a draft, and the largest number of them."""


def validation(samples: int, sample_noun: str) -> Entry:
    """The fraction of the samples for validation."""
    fraction, word = (0.1, "a tenth") if samples >= MANY_ROWS else (0.2, "a fifth")
    return Entry("validation", str(fraction), f"{word} of the {sample_noun} is for validation")


def epochs(samples: int, samples_in_all: int, least: int, most: int, sample_noun: str) -> Entry:
    """The number of epochs in which the network sees about `samples_in_all` samples."""
    count = min(most, max(least, round(samples_in_all / max(1, samples))))
    return Entry(
        "epochs", str(count), f"passes over the training {sample_noun}; increase it if validation still improves"
    )


def batch_size(samples: int, most: int) -> Entry:
    """A power of two that gives at least about forty steps per epoch."""
    size = 16
    while size * 2 <= most and size * 80 <= samples:
        size *= 2
    steps = max(1, samples // size)
    return Entry("batch_size", str(size), f"at most {steps:,} steps per epoch; auto measures which size is fastest")


def optimizer(rate: str, network: str) -> list[Entry]:
    """AdamW with a learning rate that suits the network, and a one-cycle schedule."""
    return [
        Entry(
            "optimizer",
            f"{{name: adamw, lr: {rate}}}",
            f"a good start for {network}; `drivetrain find-lr` tests others",
        ),
        Entry("schedule", "one-cycle", "the learning rate rises, then falls to almost zero"),
    ]


def class_weights(counts: Mapping[str, int]) -> list[Entry]:
    """Balanced class weights if the classes are uneven; what is probably no value gets none."""
    counts = {name: count for name, count in counts.items() if not looks_empty(name)} or counts
    most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    times = counts[most] / max(1, counts[least])
    if times < UNEVEN[0]:
        return []
    if times > UNEVEN[1]:
        # The square root of what would balance them.
        roots = {name: (counts[most] / max(1, count)) ** 0.5 for name, count in counts.items()}
        rarest = sorted((name for name in roots if roots[name] >= LIGHTEST), key=lambda name: (-roots[name], name))
        weights = ", ".join(f"{scalar(name)}: {roots[name]:.1f}" for name in rarest[:MOST_WEIGHTS])
        reason = f"{most} has {times:.0f} times as many samples as {least}; balanced would let single samples dominate"
        return [Entry("class_weights", f"{{{weights}}}", reason)]
    return [Entry("class_weights", "balanced", f"{most} has {times:.0f} times as many samples as {least}")]


def format_counts(counts: Mapping[str, int], most: int = 8) -> str:
    """Such as `6 classes: dots 200, rings 180, ...`, largest first; equal ones are grouped."""
    empty = [name for name in class_names(counts) if looks_empty(name)]
    doubt = f"; probably no value: {list_names(empty)} (data.missing)" if empty else ""
    if len(set(counts.values())) == 1 and len(counts) > 1:
        names = list_names(class_names(counts), most)
        return f"{len(counts):,} classes of {next(iter(counts.values())):,} each: {names}{doubt}"
    order = sorted(counts, key=lambda name: (-counts[name], name))
    return f"{len(counts):,} classes: {list_names([f'{name} {counts[name]:,}' for name in order], most)}{doubt}"


def single(counts: Mapping[str, int]) -> list[str]:
    """A line about classes with one sample, which cannot be in both training and validation."""
    alone = sorted(name for name, count in counts.items() if count == 1)
    return [f"classes with one sample, which stays in training: {list_names(alone)}"] if alone else []


def bad_samples(unusable_share: float, reason: str) -> list[Entry]:
    """The limit for unusable samples, if the default would end the training."""
    if unusable_share <= USUAL_LOSS:
        return []
    return [
        Entry(
            "bad_samples", f"{min(0.99, unusable_share * 1.1 + 0.01):.2f}", f"{unusable_share:.0%} of the rows {reason}"
        )
    ]
