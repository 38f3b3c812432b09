"""Chooses the maximum text length in tokens, and measures the share of padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from drivetrain.data import stateless_random
from drivetrain.data.text import length_buckets
from drivetrain.job.text import PART_TOKENS, Truncation

SAMPLED_BATCHES = 500
"""Number of batches on which the share of padding is measured."""
MAX_AUTO_LENGTH = 512
"""Largest length that `auto` chooses if the network has no limit."""
_CUT_PLACES = {"right": "", "left": "at their start ", "middle": "in their middle "}
"""Where texts are cut, in words for notes."""

Lengths = npt.NDArray[np.int64]


def choose(
    requested: int | Literal["auto"], lengths: Lengths, network_limit: int | None, side: Truncation = "right"
) -> tuple[int, list[str]]:
    """Choose `max_length`, the largest number of tokens of a text; returns it and notes with the reason.

    `auto` takes the 99th percentile, rounded up to a multiple of 8, within the network's limit.

    Args:
        lengths: tokens of each training text, special tokens included.
        network_limit: largest number of tokens that the network takes; None if it has none.
        side: the part of a longer text that is left out.
    """
    p50, p95, p99 = (int(value) for value in np.percentile(lengths, (50, 95, 99), method="inverted_cdf"))
    spread = f"tokens per text: p50 {p50}, p95 {p95}, p99 {p99}, max {lengths.max()}"
    if requested != "auto":
        return requested, [spread, f"max_length {requested}: set by the job; {_describe_cut(lengths, requested, side)}"]
    rounded = -(-p99 // 8) * 8
    limit = network_limit or MAX_AUTO_LENGTH
    reason = "p99 rounded up to a multiple of 8"
    if rounded > limit:
        whose = "the limit of this network" if network_limit else "the most that auto uses"
        rounded, reason = limit, f"{whose}, less than p99"
    return rounded, [spread, f"max_length {rounded}: {reason}; {_describe_cut(lengths, rounded, side)}"]


def note_truncated(lengths: Lengths, longest: int, side: Truncation) -> list[str]:
    """A note on new texts that are truncated; none if none is."""
    return [f"max_length {longest}: {_describe_cut(lengths, longest, side)}"] if (lengths > longest).any() else []


def _describe_cut(lengths: Lengths, longest: int, side: Truncation) -> str:
    is_cut = lengths > longest
    if not is_cut.any():
        return "no text is cut"
    lost_share = int((lengths[is_cut] - longest).sum()) / int(lengths.sum())
    return f"{is_cut.mean():.1%} of the texts are cut {_CUT_PLACES[side]}({int(is_cut.sum()):,} of {len(lengths):,}), {lost_share:.1%} of all tokens"


@dataclass(frozen=True)
class PaddingShares:
    """Shares of padding in the first epoch, for each way of forming batches."""

    max_length: float
    """Batches padded to `max_length`."""
    longest: float
    """Batches padded to their longest text."""
    parts: float
    """Batches split into micro-batches of PART_TOKENS tokens."""

    def note(self) -> str:
        """The shares as a line; packed batches have no padding."""
        return (
            f"padding: {self.max_length:.0%} of a batch if filled up to max_length, "
            f"{self.longest:.0%} as filled up to the longest of each batch, "
            f"{self.parts:.0%} if cut into parts of {PART_TOKENS} tokens, none if packed (optimize.unpadding)"
        )


def padding(lengths: Lengths, longest: int, batch_size: int, seed: int) -> PaddingShares:
    """Measure the shares of padding in the first epoch, on at most SAMPLED_BATCHES batches."""
    shuffled = lengths[stateless_random.shuffle_samples(seed, 0, len(lengths))]
    groups = [shuffled[i : i + batch_size] for i in range(0, len(lengths), batch_size)][:SAMPLED_BATCHES]
    real_tokens = sum(int(group.sum()) for group in groups)
    padded_tokens = sum(len(group) * int(group.max()) for group in groups)
    bucketed_tokens = sum(length_buckets.count_computed(group, batch_size, PART_TOKENS) for group in groups)
    return PaddingShares(
        max_length=1 - real_tokens / (sum(map(len, groups)) * longest),
        longest=1 - real_tokens / padded_tokens,
        parts=1 - real_tokens / bucketed_tokens,
    )
