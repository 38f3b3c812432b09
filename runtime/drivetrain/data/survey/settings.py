"""Request for a draft (the data and the user's options), and sensible first settings by the number of samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.data.labels import looks_empty, sort_class_names
from drivetrain.data.notes import list_counts, list_names
from drivetrain.errors import SpecError
from drivetrain.job.draft import Entry, quote

MOST_SKIP_SAMPLES = 2_000
"""Largest number of rows or windows for which a network is drafted with a linear model that is solved first. On 455 rows in
ten divisions the network alone was 0.8 points less accurate than the linear model, and begun with it 0.3 more.
"""
KEY = "init"
"""Stand-in for the spec key in messages about the data, since there is no spec yet."""


@dataclass(frozen=True)
class SurveyRequest:
    """The data to draft a spec for, and the options of `drivetrain init`."""

    path: Path
    base: Path
    """Folder of the spec."""
    task: str | None = None
    targets: tuple[str, ...] = ()
    """Columns named with --target."""
    texts: tuple[str, ...] = ()
    """Columns named with --text."""
    csv: Mapping[str, str] = field(default_factory=dict)
    """Format of CSV files, with the keys of `data.csv`."""
    pretrained: str | None = None
    """Folder or name of pretrained weights."""

    def format_path(self, path: Path) -> str:
        """Format a path for the spec: relative to the spec if both are in the working folder."""
        text, base, working_folder = os.path.abspath(path), os.path.abspath(self.base), os.getcwd()
        if Path(text).is_relative_to(working_folder) and Path(base).is_relative_to(working_folder):
            text = os.path.relpath(text, self.base)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SpecError(
                f"{KEY}: the path {os.fsencode(text)!r} is not UTF-8",
                "a path that can stand in a YAML file",
                "rename the file or folder",
            ) from None
        return f"./{text}" if text.startswith("~") else text

    def path_entry(self, key: str, path: Path, reason: str) -> Entry:
        """Draft a key with a path."""
        return Entry(key, quote(self.format_path(path)), reason)

    def check_task(self, possible: tuple[str, ...], reason: str) -> None:
        """Check that the requested task, if any, fits the data; raises SpecError if it does not."""
        if self.task and self.task not in possible:
            raise SpecError(
                f"--task {self.task}: {reason}", f"for these data: {', '.join(possible)}", "leave --task out"
            )

    def check_no_columns(self, reason: str) -> None:
        """Check that no columns are named for data without columns; raises SpecError if some are."""
        options = {"--target": self.targets, "--text": self.texts}
        if used := " and ".join(option for option, values in options.items() if values):
            raise SpecError(f"{used}: {reason}", "columns of a table", f"leave {used} out")


MANY_ROWS = 20_000
"""Smallest number of samples for which a tenth is enough for validation."""
MAX_LISTED_CLASSES = 8
ACCEPTED_BAD_SHARE = 0.045
"""Largest share of unusable samples that the default of `bad_samples` accepts, with a margin."""


def validation(samples: int, sample_noun: str) -> Entry:
    """Draft the fraction of the samples for validation."""
    fraction, word = (0.1, "a tenth") if samples >= MANY_ROWS else (0.2, "a fifth")
    return Entry("validation", str(fraction), f"{word} of the {sample_noun} is for validation")


def training(
    samples: int, samples_in_all: int, epochs_between: tuple[int, int], largest_batch: int, sample_noun: str, rate: str
) -> list[Entry]:
    """Draft the keys of `train:`; the epochs have about `samples_in_all` samples in total."""
    least, most = epochs_between
    count = min(most, max(least, round(samples_in_all / max(1, samples))))
    reason = f"passes over the training {sample_noun}; increase it if validation still improves"
    return [Entry("epochs", str(count), reason), batch_size(samples, largest_batch), *optimizer(rate)]


def batch_size(samples: int, most: int) -> Entry:
    """Draft a batch size: a power of two from 16 to `most`, with about forty steps or more per epoch."""
    size = 16
    while size * 2 <= most and size * 80 <= samples:
        size *= 2
    steps = max(1, samples // size)
    return Entry("batch_size", str(size), f"at most {steps:,} steps per epoch; auto measures which size is fastest")


def optimizer(rate: str, reason: str = "a good start for this network") -> list[Entry]:
    """Draft AdamW with a learning rate that suits the network, and a one-cycle schedule."""
    return [
        Entry("optimizer", f"{{name: adamw, lr: {rate}}}", f"{reason}; `drivetrain bench lr` tests others"),
        Entry("schedule", "one-cycle", "the learning rate rises, then falls to almost zero"),
    ]


def format_counts(counts: Mapping[str, int]) -> str:
    """Format the number of samples of each class, largest first: `6 classes, dots: 200, rings: 180, ...`.

    If all numbers are equal, the number is written once.
    """
    empty = [name for name in sort_class_names(counts) if looks_empty(name)]
    doubt = f"; probably no value: {list_names(empty)} (data.missing)" if empty else ""
    if len(set(counts.values())) == 1 and len(counts) > 1:
        names = list_names(sort_class_names(counts), MAX_LISTED_CLASSES)
        return f"{len(counts):,} classes of {next(iter(counts.values())):,} each: {names}{doubt}"
    return f"{len(counts):,} classes, {list_counts(counts, MAX_LISTED_CLASSES)}{doubt}"


def describe_classes(counts: Mapping[str, int]) -> list[str]:
    """Return lines on the number of samples of each class, and on classes with a single sample."""
    single_classes = sorted(name for name, count in counts.items() if count == 1)
    single = f"classes with one sample, which stays in training: {list_names(single_classes)}"
    return [format_counts(counts), *([single] if single_classes else [])]


def bad_samples(unusable_share: float, reason: str) -> list[Entry]:
    """Draft the limit on unusable samples, if the default limit would end the training."""
    if unusable_share <= ACCEPTED_BAD_SHARE:
        return []
    limit = min(0.99, unusable_share * 1.1 + 0.01)
    return [Entry("bad_samples", f"{limit:.2f}", f"{unusable_share:.0%} of the rows {reason}")]
