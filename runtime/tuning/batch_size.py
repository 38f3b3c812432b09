"""Chooses the batch size for `train.batch_size: auto`, and advises on the learning rate; without torch."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.errors import SpecError
from runtime.job import Job
from runtime.job.train import USUAL_BATCH

FILE = "batch_size.json"
"""In the run folder: the batch size, the reason, and samples per second of every size."""
FIRST, MOST = 8, 4096
"""Sizes that are tried: doubled from the first up to at most this."""
STEPS = 20
"""Smallest number of steps per epoch."""
GAIN = 1.05
"""Speedup that a larger batch must have."""


def fixed(job: Job, who: str) -> None:
    """Refuse `auto` for commands that do not measure it.

    Raises:
        SpecError: with what can be done instead.
    """
    if job.train.batch_size == "auto":
        raise SpecError(
            [
                job.problem(
                    ("train", "batch_size"),
                    f"is auto, which {who} cannot measure",
                    "a number; auto is measured by `drivetrain train` in one process",
                    "set it to a number",
                )
            ]
        )


def most(samples: int) -> int:
    """The largest batch size that is tried for so many training samples: the first one, doubled."""
    doublings = max(1, samples // STEPS // FIRST).bit_length() - 1
    return min(MOST, FIRST << doublings, samples)


def chosen(speeds: Mapping[int, float]) -> int:
    """The smallest size within 5 % of the fastest; a larger batch would cost steps without a gain.

    Args:
        speeds: samples per second by size.
    """
    best = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed * GAIN >= best)


def gains(speeds: Mapping[int, float]) -> bool:
    """Whether either of the last two doublings was faster, so that another may be."""
    last = list(speeds.values())[-3:]
    return len(last) < 3 or max(last[1:]) >= GAIN * last[0]


def consequence(job: Job, size: int) -> str:
    """What another batch size means for the learning rate, which is not changed.

    The rules: linear for SGD (Goyal et al. 2017, arXiv:1706.02677), square root for Adam (Malladi et al. 2022,
    arXiv:2205.10287).
    """
    rate, name = job.train.optimizer.lr, job.train.optimizer.name
    ratio = size / USUAL_BATCH
    rule, factor = ("linear", ratio) if name == "sgd" else ("square-root", ratio**0.5)
    return (
        f"train.optimizer.lr stays {rate:g}; if it was chosen for batches of {USUAL_BATCH}, the {rule} rule would "
        f"make it {rate * factor:.3g} (drivetrain find-lr JOB --set train.batch_size={size} measures it)"
    )
