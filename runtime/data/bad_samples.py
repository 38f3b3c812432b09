"""Bad samples: what could not be used and why, and how many of them a job puts up with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.errors import DataError

SHOWN = 20
"""Bad samples that are listed; the rest is counted."""


@dataclass(frozen=True)
class BadSample:
    """One sample that cannot be used."""

    title: str
    """Its path, or its row."""
    reason: str

    def __str__(self) -> str:
        return f"{self.title}: {self.reason}"


def check(bad: Sequence[BadSample], total: int, budget: float, key: str) -> list[str]:
    """Notes that list the bad samples, if there are few enough.

    Args:
        bad: what could not be used.
        total: all samples, the bad ones too.
        budget: largest share of bad samples, `data.bad_samples` of the job.
        key: the key that names the data, for the message.

    Raises:
        DataError: if the share is larger than the budget.
    """
    if not bad:
        return []
    lines = [str(one) for one in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"and {len(bad) - SHOWN:,} more")
    head = f"{key}: {len(bad):,} of {total:,} samples cannot be used"
    if len(bad) > budget * total:
        raise DataError(
            "\n    ".join([head, *lines]),
            f"data.bad_samples allows a share of {budget:g}",
            "repair or remove them, or raise data.bad_samples to leave them out",
        )
    return [f"{head} and {'is' if len(bad) == 1 else 'are'} left out", *(f"left out: {line}" for line in lines)]
