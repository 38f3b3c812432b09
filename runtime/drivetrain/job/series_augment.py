"""The `data.augment` part of series tasks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from drivetrain.job.data import Mixup
from drivetrain.job.values import Count, Positive, PositiveRange, Probability, Share, Spec


class WindowWarp(Spec):
    """Window warping (Le Guennec et al. 2016): a part of the window is played faster or slower."""

    share: Share = Field(0.1, description="length of the part, as a share of the window")
    speeds: PositiveRange = Field((0.5, 2.0), description="the part is played at one of these two speeds")
    probability: Probability = Field(1.0, description="share of the windows that are warped")


class TimeWarp(Spec):
    """Time warping (Um et al. 2017): the speed changes smoothly along the window."""

    std: Positive = Field(0.2, description="standard deviation of the speed around 1; it is never below 0.1")
    knots: Count = Field(4, description="points inside the window at which the speed is drawn; linear between them")
    probability: Probability = Field(1.0, description="share of the windows that are warped")


class TimeMask(Spec):
    """Time masking (Park et al. 2019): some rows in a row are hidden."""

    share: Share = Field(0.1, description="largest part that is hidden, as a share of the window")
    probability: Probability = Field(1.0, description="share of the windows with a hidden part")


class SeriesAugment(Spec):
    """Random augmentation of training windows; random numbers depend only on (seed, epoch, window).

    First and last row stay where they are when time is warped, and targets never change. In a regression the numbers
    may depend on amplitude and speed, so scaling and warping are refused there.
    """

    jitter: Positive | None = Field(
        None,
        description="standard deviation of normal noise, as a share of the channel's deviation in the training data, such as 0.05",
    )
    scaling: Positive | None = Field(
        None,
        description="standard deviation around 1 of a factor for each channel of a window, around the channel's training mean, "
        "such as 0.1; never below 0",
    )
    time_warp: TimeWarp | None = Field(None, description="the speed changes smoothly along the window")
    window_warp: WindowWarp | None = Field(None, description="a part of the window is played faster or slower")
    channel_dropout: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="probability that a channel of a window is replaced by its mean; one channel always stays"
    )
    time_mask: TimeMask | None = Field(None, description="a part of the window is replaced by the mean of each channel")
    mixup: Mixup | None = Field(None, description="mixup, for the whole batch, with random numbers from (seed, step)")
