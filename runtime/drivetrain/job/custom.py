"""User code in a spec: data, network and loss from Python files next to the job file.

Every task accepts a user network; user data or a user loss need the task `custom`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from drivetrain.errors import Problem
from drivetrain.job import user_files
from drivetrain.job.formatting import format_value
from drivetrain.job.job import CLASS_METRICS, LABEL_METRICS, NUMBER_METRICS, Job
from drivetrain.job.model import CustomModel
from drivetrain.job.train import BinaryCrossEntropy, CrossEntropy, Focal, Huber, MeanSquaredError, Plateau, Train
from drivetrain.job.values import Column, Count, FilePath, Spec, accept_name, check_distinct

Kind = Literal["auto", "classes", "labels", "numbers", "other"]
OFFERED_ARGUMENTS = ("outputs", "classes", "inputs", "vocabulary", "categories")
"""Arguments that the runtime can pass to the factory of a network; it passes the ones that the signature names."""


class CustomData(Spec):
    """Your own data: a function that returns training data, validation data and, optionally, data for a final test.

    Each is a torch Dataset of (inputs, target), a TensorDataset, an iterable, or a tuple of arrays with the targets last.
    """

    file: FilePath = Field(description="Python file next to the job file")
    factory: str = Field("load", description="function in the file that returns (training data, validation data)")
    arguments: dict[str, JsonValue] = Field({}, description="keyword arguments of the function")
    targets: Kind = Field(
        "auto",
        description="classes: indices (N,); labels: 0 or 1 (N, labels); numbers: (N,) or (N, numbers); other: anything; auto: "
        "whole numbers are classes or labels",
    )
    names: Annotated[tuple[Column, ...], Field(strict=False, min_length=1), AfterValidator(check_distinct)] | None = (
        Field(None, description="names of the classes, labels or numbers, in the order of the network's outputs")
    )
    reader: str | None = Field(
        None,
        description="function in the file that turns a list of paths into data, for `predict` and `evaluate`; absent: .npz "
        "files",
    )


class CustomLossSpec(Spec):
    """Your own loss: a function that returns a callable of (outputs, targets): one term per sample, or their mean or sum."""

    name: Literal["own"] = Field("own", description="not needed with `file:`")
    file: FilePath = Field(description="Python file next to the job file")
    factory: str = Field("loss", description="function in the file that returns the loss")
    arguments: dict[str, JsonValue] = Field({}, description="keyword arguments of the function")
    weight_of: str | None = Field(
        None,
        description="function in the file that returns the divisor of the loss for some targets, which lets batches be split",
    )


def _add_name(value: object) -> object:
    """Add the name to `{file: my_loss.py}`."""
    return {"name": "own", **value} if isinstance(value, dict) and "file" in value else value


AnyCustomLoss = Annotated[
    Annotated[
        CrossEntropy | Focal | BinaryCrossEntropy | MeanSquaredError | Huber | CustomLossSpec,
        Field(discriminator="name"),
    ],
    accept_name(),
    BeforeValidator(_add_name),
]


class CustomTrain(Train):
    """How to train."""

    epoch_steps: Count | None = Field(
        None,
        description="steps of an epoch, for an iterable without length or with several processes",
    )
    loss: AnyCustomLoss | None = Field(  # type: ignore[assignment]
        None, description="loss to minimize; if absent cross entropy, BCE or MSE, by the targets"
    )


class CustomTask(Job):
    """Base of the task `custom` and of training from Python; the kind of targets determines the metrics."""

    train: CustomTrain = Field(CustomTrain(), description="training settings")
    METRICS = tuple(dict.fromkeys((*CLASS_METRICS, *LABEL_METRICS, *NUMBER_METRICS)))

    def data_paths(self) -> list[tuple[tuple[str, ...], str]]:
        """Return no path, because only the user's code knows where its data is."""
        return []

    def has_own_loss(self) -> bool:
        """Return whether the job has a user loss."""
        return getattr(self.train.loss, "name", "") == "own"

    def list_watched_metrics(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield every metric that decides something, with its key."""
        yield ("checkpoint", "best"), self.best()
        if self.train.early_stopping:
            yield ("train", "early_stopping", "metric"), self.train.early_stopping.metric
        if isinstance(self.train.schedule, Plateau):
            yield ("train", "schedule", "metric"), self.train.schedule.metric

    def problems(self) -> Iterator[Problem]:
        """Yield a problem if class weights are set together with a user loss."""
        if self.has_own_loss() and self.train.class_weights != "none":
            yield self.problem(
                ("train", "class_weights"),
                f"is {format_value(self.train.class_weights)}",
                "a built-in loss",
                "remove it, and weight the classes inside your own loss",
            )


class CustomJob(CustomTask):
    """Training with your own data, network and loss."""

    task: Literal["custom"]
    data: CustomData = Field(description="the training and validation data")  # type: ignore[assignment]
    model: CustomModel = Field(description="the network")


def list_user_functions(job: Job) -> Iterator[tuple[tuple[str, ...], user_files.UserFunction, tuple[str, ...]]]:
    """Yield the key and settings of each user function of a job, and the arguments that the runtime can pass to it."""
    model: Any = getattr(job, "model", None)
    data: Any = job.data
    loss = job.train.loss
    if isinstance(model, CustomModel):
        yield ("model",), model, OFFERED_ARGUMENTS
    if isinstance(data, CustomData):
        yield ("data",), data, ()
    if isinstance(loss, CustomLossSpec):
        yield ("train", "loss"), loss, ()


def find_problems(job: Job) -> Iterator[Problem]:
    """Yield the problems of the user's files without running them."""
    for key, settings, offered in list_user_functions(job):
        yield from user_files.find_problems(job, key, settings, offered)
        for name in ("reader", "weight_of"):
            yield from _check_function_name(job, (*key, name), settings.file, getattr(settings, name, None))


def _check_function_name(job: Job, key: tuple[str, ...], file: str, name: str | None) -> Iterator[Problem]:
    """Yield a problem if a key names a function that does not exist in the file."""
    if name is None:
        return
    functions = user_files.find_functions(job, key[:-1], file)
    if not isinstance(functions, Problem) and name not in functions and "*" not in functions:
        yield user_files.make_function_problem(job, key, name, file, functions)
