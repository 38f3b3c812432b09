"""The `limits:` section of the spec: resources of the container, and number of processes and machines."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from drivetrain.job.values import Count, GpuMemory, Gpus, Positive, Size, Spec


class NodeRange(Spec):
    """Bounds for the number of machines, which may differ between the starts of a run."""

    least: Count = Field(description="smallest number of machines with which the run begins or resumes")
    most: Count | None = Field(None, description="largest number of machines; no limit if absent")

    @field_validator("most")
    @classmethod
    def _not_below_least(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("least")
        if most is not None and least is not None and most < least:
            raise PydanticCustomError("most", "{least} or more, which is nodes.least", {"least": least})
        return most

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


def _check_node_count(value: Any) -> Any:
    """Check that a value is a number or a mapping, with one message for both."""
    if isinstance(value, dict | NodeRange) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise PydanticCustomError("nodes", "a whole number, or bounds such as {least: 2, most: 4}")


Nodes = Annotated[
    Annotated[Count, Tag("number")] | Annotated[NodeRange, Tag("bounds")],
    Discriminator(lambda value: "number" if isinstance(value, int) else "bounds"),
    BeforeValidator(_check_node_count),
]


class Limits(Spec):
    """Resources that the container may use. The container engine enforces them, and the plan checks them."""

    cpus: Positive | None = Field(None, description="CPUs, fractions allowed; if absent, all but one and at least 2")
    memory: Size | None = Field(
        None, description="memory without swap; if absent, the memory of the host less 4g, and at least 4g"
    )
    shm: Size | None = Field(None, description="shared memory for loader workers; 256m if absent")
    gpus: Gpus = Field("auto", description="auto: the best GPU; all: all GPUs of its kind; none; or a list of numbers")
    gpu_memory: GpuMemory | None = Field(
        None, description="GPU memory for tensors: a share such as 0.5, or a size such as 6g; all if absent"
    )
    processes: Count | None = Field(
        None,
        description="processes that train together on the CPUs of each machine, 1 if absent; on GPUs there is one per GPU",
    )
    nodes: Nodes | None = Field(
        None, description="machines that train together: a number, or bounds as in `{least: 2, most: 4}`"
    )

    def allows(self, nodes: int) -> bool:
        """Return whether this number of machines may train together."""
        if isinstance(self.nodes, NodeRange):
            return self.nodes.least <= nodes <= (self.nodes.most or nodes)
        return self.nodes in (None, nodes)

    @property
    def several_nodes(self) -> bool:
        """Whether the job names several machines."""
        return self.nodes.most != 1 if isinstance(self.nodes, NodeRange) else (self.nodes or 1) > 1
