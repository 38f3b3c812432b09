"""Reports samples that cannot be used, and checks their share against the job's limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drivetrain.errors import DataError

MAX_LISTED_SAMPLES = 20
"""Largest number of bad samples that are listed by name."""


@dataclass(frozen=True)
class BadSample:
    """A sample that cannot be used, and the reason."""

    title: str
    """Its path or row."""
    reason: str

    def __str__(self) -> str:
        return f"{self.title}: {self.reason}"


def check(bad: Sequence[BadSample], total: int, budget: float, key: str) -> list[str]:
    """Check the share of bad samples; return notes that list them.

    Args:
        bad: the samples that cannot be used.
        total: number of all samples, bad ones included.
        budget: largest allowed share of bad samples, `data.bad_samples` of the job.
        key: the spec key that names the data, for the message.

    Raises:
        DataError: if the share exceeds the budget.
    """
    if not bad:
        return []
    lines = [str(sample) for sample in bad[:MAX_LISTED_SAMPLES]]
    if len(bad) > MAX_LISTED_SAMPLES:
        lines.append(f"and {len(bad) - MAX_LISTED_SAMPLES:,} more")
    head = f"{key}: {len(bad):,} of {total:,} samples cannot be used"
    if len(bad) > budget * total:
        raise DataError(
            "\n    ".join([head, *lines]),
            f"at most a share of {budget:g} (data.bad_samples)",
            "repair or remove them, or raise data.bad_samples to skip them",
        )
    return [f"{head} and {'is' if len(bad) == 1 else 'are'} skipped", *(f"left out: {line}" for line in lines)]
