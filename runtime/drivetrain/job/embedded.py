"""The spec of a training from a Python program, whose network, data and loss are objects in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from drivetrain.errors import Problem
from drivetrain.job.custom import CustomTask, CustomTrain, Kind
from drivetrain.job.train import (
    Adam,
    BinaryCrossEntropy,
    BuiltOptimizer,
    Constant,
    Cosine,
    CrossEntropy,
    Focal,
    Huber,
    Linear,
    MeanSquaredError,
    OneCycle,
    Optimizer,
    Plateau,
    StepDown,
)
from drivetrain.job.values import Natural, Spec, accept_name


class EmbeddedData(Spec):
    """Data that the program passed in; a resumed run must get the same data."""

    targets: Kind = Field("auto", description="classes, labels, numbers or other; auto inspects them")
    names: tuple[str, ...] | None = Field(None, description="names of the classes, labels or numbers", strict=False)
    train: Natural = Field(0, description="training samples")
    validation: Natural = Field(0, description="validation samples")
    order: str = Field("shuffled", description="order of the training samples: shuffled, stream, or a sampler's class")
    drop_last: bool = Field(False, description="whether an epoch leaves out a smaller last batch")
    inputs: tuple[Annotated[tuple[int, ...], Field(strict=False)], ...] = Field(
        (), description="shape of each input of a sample", strict=False
    )


class EmbeddedModel(Spec):
    """A network that the program passed in."""

    kind: str = Field("", description="its class")
    parameters: Natural = Field(0, description="number of its parameters")


class EmbeddedLoss(Spec):
    """A loss that the program passed in."""

    name: Literal["own"] = Field("own", description="a callable of (outputs, targets)")
    function: str = Field(description="its name")


AnyCallersLoss = Annotated[
    Annotated[
        CrossEntropy | Focal | BinaryCrossEntropy | MeanSquaredError | Huber | EmbeddedLoss, Field(discriminator="name")
    ],
    accept_name(),
]


class EmbeddedOptimizer(Optimizer):
    """An optimizer that the program passed in."""

    name: Literal["own"] = Field("own", description="an optimizer of torch, or one like it")
    function: str = Field(description="its class")
    lr: float = Field(description="learning rate of its first parameter group")
    groups: Natural = Field(description="its parameter groups")
    settings: str = Field("", description="other settings of the first group")
    fused: bool = Field(False, description="whether all groups use a fused kernel")
    weight_decay: float = Field(0.0, description="decay of the first group")

    @property
    def kind(self) -> str:
        """Key of measurements of its speed, which hold for the same class and settings."""
        return f"{self.function} {self.settings}"


class EmbeddedSchedule(Spec):
    """A scheduler that the program passed in."""

    name: Literal["own"] = Field("own", description="a scheduler of torch.optim.lr_scheduler")
    function: str = Field(description="its class")
    every: Literal["step", "epoch"] = Field(description="when it steps")


class EmbeddedMetric(Spec):
    """A metric that the program passed in."""

    function: str = Field(description="its class")


AnyCallersOptimizer = Annotated[
    Annotated[BuiltOptimizer | EmbeddedOptimizer, Field(discriminator="name")], accept_name("adamw")
]
AnyCallersSchedule = Annotated[
    Annotated[
        OneCycle | Cosine | Linear | StepDown | Plateau | Constant | EmbeddedSchedule, Field(discriminator="name")
    ],
    accept_name("one-cycle"),
]


class EmbeddedTrain(CustomTrain):
    """Training settings of a call from Python."""

    optimizer: AnyCallersOptimizer = Field(  # type: ignore[assignment]
        Adam(), description="the optimizer and its settings", validate_default=False
    )
    schedule: AnyCallersSchedule = Field(  # type: ignore[assignment]
        OneCycle(name="one-cycle"), description="learning-rate schedule", validate_default=False
    )

    loss: AnyCallersLoss | None = Field(  # type: ignore[assignment]
        None, description="loss to minimize; if absent cross entropy, BCE or MSE, by the targets"
    )


class EmbeddedJob(CustomTask):
    """A training requested by a Python program."""

    task: Literal["python"]
    data: EmbeddedData = Field(EmbeddedData(), description="the training and validation data")  # type: ignore[assignment]
    model: EmbeddedModel = Field(EmbeddedModel(), description="the network")
    train: EmbeddedTrain = Field(EmbeddedTrain(), description="training settings")
    own_metrics: dict[str, EmbeddedMetric] = Field({}, description="metrics of the program, by name")

    def metrics(self) -> list[str]:
        """Return every metric of an evaluation, including the metrics of the program."""
        return [*super().metrics(), *(f"validation/{name}" for name in self.own_metrics)]

    def problems(self) -> Iterator[Problem]:
        """Yield also settings that a call from Python cannot follow, because it is one process of the program."""
        yield from super().problems()
        gpus, processes = self.limits.gpus, self.limits.processes
        if gpus == "all" or (isinstance(gpus, list) and len(gpus) > 1):
            yield self.problem(
                ("limits", "gpus"),
                f"is {gpus} in a call from Python, which is one process",
                "one GPU",
                "choose one; `drivetrain train` starts one process per GPU",
            )
        if processes is not None and processes > 1:
            yield self.problem(
                ("limits", "processes"),
                f"is {processes} in a call from Python, which is one process",
                "1",
                "remove it; `drivetrain train` starts several",
            )
        if self.checkpoint.copy_to is not None:
            yield self.problem(
                ("checkpoint", "copy_to"),
                f"is {self.checkpoint.copy_to!r} in a call from Python",
                "checkpoint.copy_to in a job that `drivetrain train` runs",
                "remove it",
            )
