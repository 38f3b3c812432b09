"""Table tasks: classes or numbers from the columns of a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from drivetrain.errors import Problem
from drivetrain.job.data import TableFileData
from drivetrain.job.job import CLASS_METRICS, LABEL_METRICS, NUMBER_METRICS, Job
from drivetrain.job.model import CustomModel, EarlierRun, WithWeights, choose_model_kind
from drivetrain.job.values import Column, Count, DateFormat, Fraction, OneOrMore, accept_name

DatePart = Literal["year", "month", "day", "weekday", "hour", "minute", "days"]


class TableData(TableFileData):
    """A table: a .csv, .tsv, .jsonl or .parquet file with one sample per row.

    Numbers and booleans are numeric, text is categorical. An empty number becomes the median, with a flag. Empty text is one
    category, and all categories that the training rows lack are another one. Constant columns are dropped.
    """

    COLUMN_KEYS = ("target", "features", "numeric", "categorical", "dates")

    target: OneOrMore = Field(
        description="column to predict; several columns: independent labels of 0 and 1 in a classification, several numbers "
        "in a regression"
    )
    features: OneOrMore | None = Field(None, description="columns to predict from; all other columns if absent")
    ignore: OneOrMore | None = Field(None, description="columns that are not used: identifiers, other targets, dates")
    groups: Column | None = Field(
        None,
        description="column that groups rows, such as a patient: a fraction or a fold takes whole groups; it is not a feature",
    )
    numeric: OneOrMore | None = Field(None, description="columns to read as numbers, whatever they contain")
    categorical: OneOrMore | None = Field(None, description="columns to read as categories, such as numeric codes")
    dates: Annotated[dict[Column, Annotated[tuple[DatePart, ...], Field(strict=False, min_length=1)]], Field()] = Field(
        {},
        description="columns of dates, each with the features to compute; weekday: Monday is 0; days: since 1970-01-01",
    )
    date_format: DateFormat | None = Field(
        None,
        description="format of dates if the cells do not show it: as in strptime, or seconds, milliseconds (since 1970), excel",
    )


DEFAULT_MEMBERS = 8
"""Perceptrons of an ensemble; the time of a step grows in proportion. The paper uses 32. On 20,000 flights, 4 lowered the
log loss from 0.483 to 0.479, 8 lowered it to 0.474, and 16 were no better.
"""


class MlpSpec(WithWeights):
    """A multilayer perceptron over embedded numbers and categories, an ensemble of perceptrons, or a linear model.

    A perceptron has linear layers with ReLU and dropout.
    """

    name: Literal["mlp", "tabm", "linear"] = Field(
        "mlp",
        description="tabm: the average of several perceptrons that share their weights except factors of each layer's inputs and "
        "outputs (TabM); linear: the sum of one piecewise linear function of each column, solved in seconds; its only setting is "
        "bins",
    )
    members: Annotated[int, Field(ge=2, le=256)] = Field(
        DEFAULT_MEMBERS, description="perceptrons of tabm; the time of a step grows with them"
    )
    hidden: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = Field(
        (256, 256), description="units of each hidden layer"
    )
    embedding: Count = Field(8, description="embedding size of a category")
    bins: Annotated[int, Field(ge=0, le=1000)] = Field(
        32,
        description="bins per number with equally many training rows; the embedding is linear within each bin; 0 for none",
    )
    number_embedding: Count = Field(16, description="embedding size of a number with bins")
    dropout: Fraction = Field(0.1, description="dropout after each hidden layer")
    skip: bool = Field(
        False,
        description="adds a linear model of the columns to the outputs of mlp and tabm. It is solved in place of the first epoch, "
        "which the next ones continue: with few rows a network alone loses to it",
    )


TableModel = Annotated[
    Annotated[MlpSpec, Tag("built-in")] | Annotated[EarlierRun, Tag("run")] | Annotated[CustomModel, Tag("own")],
    Discriminator(choose_model_kind),
    accept_name(),
]


class TableJob(Job):
    """Keys that both table tasks share."""

    data: TableData = Field(description="the training and validation data")
    model: TableModel = Field(MlpSpec(), description="the network")

    def problems(self) -> Iterator[Problem]:
        """Yield formats of dates without dates, and columns that are not features."""
        yield from self._check_dates()
        data: Any = self.data
        for option in ("numeric", "categorical", "dates"):
            missing = [name for name in getattr(data, option) or () if data.features and name not in data.features]
            if missing:
                yield self.problem(
                    ("data", option),
                    f"has {missing[0]!r}, which data.features does not have",
                    "columns that are features",
                    "add it to data.features, or remove it",
                )
        yield from self._check_model()

    def _check_model(self) -> Iterator[Problem]:
        """Yield settings that the built-in network cannot use."""
        model = self.model
        if not isinstance(model, MlpSpec):
            return
        if model.bins == 1:
            yield self.problem(("model", "bins"), "is 1", "0 for no bins, or 2 and more", "use 0 or 32")
        unused = {
            "linear": ("hidden", "embedding", "number_embedding", "dropout", "members", "skip"),
            "mlp": ("members",),
        }
        possible = "a linear model has bins" if model.name == "linear" else "name: tabm has members"
        yield from self.refuse_idle_keys(unused.get(model.name, ()), possible)

    def _check_dates(self) -> Iterator[Problem]:
        data = self.data
        if data.date_format and not data.dates:
            yield self.problem(
                ("data", "date_format"), "is given without data.dates", "both", "add dates, or remove it"
            )


class TableClassificationJob(TableJob):
    """Classification of table rows: one of several classes, or several independent labels (multi-label)."""

    METRICS = CLASS_METRICS
    BEST = "f1"

    task: Literal["tabular-classification"]

    def scores(self) -> tuple[str, ...]:
        """Return the metrics of labels if there are several target columns, else the metrics of classes."""
        return LABEL_METRICS if len(self.data.target) > 1 else self.METRICS

    def losses(self) -> tuple[str, ...]:
        """Return the losses that fit the number of target columns."""
        return ("bce",) if len(self.data.target) > 1 else ("cross-entropy", "focal")


class TableRegressionJob(TableJob):
    """Regression on table rows, with one or several numbers."""

    PREDICTS_NUMBERS = True
    METRICS = NUMBER_METRICS
    BEST = "rmse"
    LOSSES = ("mse", "huber")

    task: Literal["tabular-regression"]

    def number_columns(self) -> tuple[str, ...]:
        """Return the target columns."""
        return self.data.target
