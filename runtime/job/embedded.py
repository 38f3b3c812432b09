"""The spec of a training that a Python program requests, with its network, data and loss in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from runtime.errors import Problem
from runtime.job.custom import CustomTask, Kind
from runtime.job.train import BinaryCrossEntropy, CrossEntropy, Focal, Huber, MeanSquaredError, Train
from runtime.job.values import Natural, Spec, named


class EmbeddedData(Spec):
    """Data that the program passed in; a resumed run is checked for having the same."""

    targets: Kind = Field("auto", description="classes, labels, numbers or other; auto looks at them")
    names: tuple[str, ...] | None = Field(None, description="names of the classes, labels or numbers", strict=False)
    train: Natural = Field(0, description="training samples")
    validation: Natural = Field(0, description="validation samples")
    inputs: tuple[tuple[int, ...], ...] = Field((), description="shape of each input of a sample", strict=False)


class EmbeddedModel(Spec):
    """A network that the program passed in."""

    kind: str = Field("", description="its class")
    parameters: Natural = Field(0, description="how many it has")


class EmbeddedLoss(Spec):
    """A loss that the program passed in."""

    name: Literal["own"] = Field("own", description="a callable of (outputs, targets)")
    function: str = Field(description="its name")


AnyCallersLoss = Annotated[
    Annotated[
        CrossEntropy | Focal | BinaryCrossEntropy | MeanSquaredError | Huber | EmbeddedLoss, Field(discriminator="name")
    ],
    named(),
]


class EmbeddedTrain(Train):
    """How to train."""

    loss: AnyCallersLoss | None = Field(  # type: ignore[assignment]
        None, description="loss to minimize; if absent cross entropy, BCE or MSE, by the targets"
    )


class EmbeddedJob(CustomTask):
    """A training requested by a Python program."""

    task: Literal["python"]
    data: EmbeddedData = Field(EmbeddedData(), description="the training and validation data")  # type: ignore[assignment]
    model: EmbeddedModel = Field(EmbeddedModel(), description="the network")
    train: EmbeddedTrain = Field(EmbeddedTrain(), description="training settings")

    def problems(self) -> Iterator[Problem]:
        """Also check what needs a process of our own: SIGUSR1 may have another meaning in the host program."""
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
                "leave it out; `drivetrain train` starts several",
            )
        if self.checkpoint.notice is not None:
            yield self.problem(
                ("checkpoint", "notice"),
                f"is {self.checkpoint.notice!r} in a call from Python",
                "checkpoint.notice in a job that `drivetrain train` runs",
                "leave it out",
            )
