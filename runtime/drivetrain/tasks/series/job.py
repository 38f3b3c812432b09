"""Series tasks: classes or numbers from windows of several channels over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from drivetrain.errors import Problem
from drivetrain.job.data import Mixup, TableFileData
from drivetrain.job.job import CLASS_METRICS, NUMBER_METRICS, Job
from drivetrain.job.model import CustomModel, EarlierRun, WithWeights, choose_model_kind
from drivetrain.job.values import (
    Column,
    Count,
    DateFormat,
    Fraction,
    OneOrMore,
    Positive,
    PositiveRange,
    Probability,
    Share,
    Spec,
    accept_name,
)

_LONG = ("time", "date_format", "features", "label", "group", "window", "stride", "max_gap")
"""Keys of long tables, which arrays do not have."""


class WindowWarp(Spec):
    """Window warping (Le Guennec et al. 2016): a segment of the window is played faster or slower."""

    share: Share = Field(0.1, description="length of the segment, as a share of the window")
    speeds: PositiveRange = Field((0.5, 2.0), description="the segment is played at one of these two speeds")
    probability: Probability = Field(1.0, description="share of the windows that are warped")


class TimeWarp(Spec):
    """Time warping (Um et al. 2017): the speed changes smoothly along the window."""

    std: Positive = Field(0.2, description="standard deviation of the speed around 1; it is never below 0.1")
    knots: Count = Field(4, description="points inside the window at which the speed is drawn; linear between them")
    probability: Probability = Field(1.0, description="share of the windows that are warped")


class TimeMask(Spec):
    """Time masking (Park et al. 2019): consecutive rows are hidden."""

    share: Share = Field(0.1, description="largest hidden segment, as a share of the window")
    probability: Probability = Field(1.0, description="share of the windows with a hidden segment")


class SeriesAugment(Spec):
    """Random augmentation of training windows; random numbers depend only on (seed, epoch, window), and targets stay."""

    jitter: Positive | None = Field(
        None, description="standard deviation of normal noise, as a share of the channel's deviation"
    )
    scaling: Positive | None = Field(
        None, description="standard deviation of a random factor around 1 for each channel of a window"
    )
    time_warp: TimeWarp | None = Field(None, description="the speed changes smoothly along the window")
    window_warp: WindowWarp | None = Field(None, description="a segment of the window is played faster or slower")
    channel_dropout: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="probability that a channel of a window is replaced by its mean; one channel always stays"
    )
    time_mask: TimeMask | None = Field(
        None, description="a segment of the window is replaced by the mean of each channel"
    )
    mixup: Mixup | None = Field(None, description="mixup, for the whole batch, with random numbers from (seed, step)")


class SeriesData(TableFileData):
    """Series: a long table (.csv, .tsv, .jsonl, .parquet) with one row per time, cut into windows, or arrays (.npz).

    The label of a window is the label of its last row. A validation fraction is taken from the end of the time. Arrays are
    `x` of shape (N, T, channels) or (N, channels, T) and `y` of shape (N,) or, for several numbers, (N, K).
    """

    COLUMN_KEYS = ("time", "features", "label", "group")

    time: Column | None = Field(None, description="column of the time: numbers, or dates as 2024-05-31 08:30:00")
    date_format: DateFormat | None = Field(
        None,
        description="format of the times if the cells do not show it: as in strptime, or seconds, milliseconds (since 1970), excel",
    )
    features: OneOrMore | None = Field(
        None, description="input columns of the network; all other columns of numbers if absent"
    )
    label: OneOrMore | None = Field(None, description="column to predict; in a regression also a list of columns")
    group: Column | None = Field(None, description="column that separates several series, such as a machine")
    window: Count | None = Field(None, description="rows in a window")
    stride: Count | None = Field(None, description="rows from the start of one window to the next; window if absent")
    max_gap: Positive | None = Field(
        None,
        description="longest time between two rows of a window, in seconds for dates, else in units of the column; any if "
        "absent",
    )
    groups: Column | None = Field(
        None,
        description="column, or array (N,) of an .npz, that groups rows or windows, such as a patient: a fraction or a fold "
        "takes whole groups",
    )
    axes: Literal["auto", "time-channels", "channels-time"] = Field(
        "auto",
        description="order of the axes of `x` after the first; auto: time-channels if windows have more rows than channels, "
        "otherwise the key is required",
    )
    augment: SeriesAugment = Field(SeriesAugment(), description="random changes to training windows")

    @property
    def arrays(self) -> bool:
        """Whether the training data is an .npz file with arrays."""
        return self.train.lower().endswith(".npz")

    @property
    def step(self) -> int:
        """Rows from the start of one window to the start of the next."""
        return self.stride or self.window or 1


def check_odd(value: int) -> int:
    """Check that a kernel size is odd, so that the kernel has a center."""
    if value % 2 == 0:
        raise PydanticCustomError("odd", "an odd number")
    return value


class CnnLstmSpec(WithWeights):
    """Convolutions over time with ReLU and max pooling, then an LSTM whose last state is mapped to the outputs."""

    name: Literal["cnn-lstm"] = Field("cnn-lstm", description="architecture; the only built-in one for series")
    cnn_channels: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = Field(
        (64, 64), description="channels of each convolution"
    )
    kernel: Annotated[Count, AfterValidator(check_odd)] = Field(5, description="rows of a convolution's kernel; odd")
    pool: Count = Field(2, description="rows that max pooling after each convolution merges into one; 1 for no pooling")
    lstm_hidden: Count = Field(128, description="size of the LSTM's state")
    lstm_layers: Annotated[int, Field(ge=1, le=16)] = Field(1, description="number of stacked LSTMs")
    bidirectional: bool = Field(False, description="a second LSTM that reads backwards")
    dropout: Fraction = Field(0.1, description="dropout between LSTM layers and before the outputs")
    skip: bool = Field(
        False,
        description="adds a linear model of simple statistics of each channel to the outputs. It is solved in place of the first "
        "epoch, which the next ones continue: with few windows a network alone loses to it",
    )


SeriesModel = Annotated[
    Annotated[CnnLstmSpec, Tag("built-in")] | Annotated[EarlierRun, Tag("run")] | Annotated[CustomModel, Tag("own")],
    Discriminator(choose_model_kind),
    accept_name(),
]


class SeriesJob(Job):
    """Keys that both series tasks share."""

    data: SeriesData = Field(description="the training and validation data")
    model: SeriesModel = Field(CnnLstmSpec(), description="the network")

    def problems(self) -> Iterator[Problem]:
        """Yield keys that the form of the data does not have or needs, and windows that are too short."""
        yield from self._check_form()
        if isinstance(self.model, CnnLstmSpec) and self.data.window:
            pooled = self.model.pool ** len(self.model.cnn_channels)
            if pooled > self.data.window:
                layers = len(self.model.cnn_channels)
                description = f"is {self.model.pool}: after pooling {layers} times, {pooled} rows become one"
                yield self.problem(
                    ("model", "pool"),
                    description,
                    f"at most the window of {self.data.window} rows",
                    "a smaller pool, fewer convolutions or a longer window",
                )

    def _check_form(self) -> Iterator[Problem]:
        """Yield keys that arrays do not have, or that long tables do not have or need."""
        if self.data.fold and not self.data.arrays and self.data_path("validation") is None:
            yield self.problem(
                ("data", "fold"),
                f"is {self.data.fold}, and data.train is a series, whose last part is the validation data",
                "folds of samples that do not follow each other in time: windows in an .npz",
                "remove one of the two",
            )
        if self.data.arrays:
            for option in _LONG:
                if getattr(self.data, option) is not None:
                    yield self.problem(
                        ("data", option),
                        "is only for tables with one row per time step",
                        "data.train is an .npz file with the arrays `x` and `y`",
                        "remove it",
                    )
        else:
            if self.data.axes != "auto":
                yield self.problem(("data", "axes"), "is only for arrays", "an .npz file with `x` and `y`", "remove it")
            for option in ("time", "label", "window"):
                if getattr(self.data, option) is None:
                    yield self.problem(
                        ("data",),
                        f"{option} is missing",
                        "a table with one row per time step needs time, label and window",
                        f"add `{option}:`",
                    )
        for option in ("validation", "test"):
            path = getattr(self.data, option)
            if isinstance(path, str) and path.lower().endswith(".npz") != self.data.arrays:
                yield self.problem(
                    ("data", option),
                    f"is {path!r}, and data.train is {self.data.train!r}",
                    "both .npz files, or both tables",
                    "convert one of the two",
                )


class SeriesClassificationJob(SeriesJob):
    """Classification of windows."""

    METRICS = CLASS_METRICS
    BEST = "f1"
    LOSSES = ("cross-entropy", "focal")

    task: Literal["series-classification"]

    def problems(self) -> Iterator[Problem]:
        """Yield also a problem if there are several label columns."""
        yield from super().problems()
        if len(self.data.label or ()) > 1:
            yield self.problem(
                ("data", "label"),
                "is several columns",
                "one column of classes",
                "name one, or use the task series-regression for several numbers",
            )


class SeriesRegressionJob(SeriesJob):
    """Regression on windows, with one or several numbers."""

    PREDICTS_NUMBERS = True
    METRICS = NUMBER_METRICS
    BEST = "rmse"
    LOSSES = ("mse", "huber")

    task: Literal["series-regression"]

    def number_columns(self) -> tuple[str, ...]:
        """Return the label columns."""
        return self.data.label or ()

    def problems(self) -> Iterator[Problem]:
        """Yield also augmentation after which the numbers to predict would be wrong."""
        yield from super().problems()
        for option, reason in (
            ("scaling", "changes the amplitude"),
            ("time_warp", "changes the speed"),
            ("window_warp", "changes the speed"),
        ):
            if getattr(self.data.augment, option):
                yield self.problem(
                    ("data", "augment", option),
                    f"{reason} of a window, but not the numbers to predict",
                    "for classes; in a regression jitter, channel_dropout, time_mask, mixup",
                    "remove it",
                )
