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
    """Notes that list the bad samples of `total` samples, bad ones included; `key` is the spec key that names the data.

    Raises:
        DataError: if their share exceeds the budget, `data.bad_samples` of the job.
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
