"""The network for series: its arguments, its inputs, and how it fits an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from drivetrain.data.dataset import Dataset, Inputs
from drivetrain.job.model import WithWeights
from drivetrain.models.build import BuiltModel, build_model
from drivetrain.models.dummy_inputs import draw_normal
from drivetrain.pretrained.earlier_run import EarlierModel
from drivetrain.tasks.series.job import CnnLstmSpec, SeriesJob


def build(job: SeriesJob, dataset: Dataset) -> BuiltModel:
    """Build the network for series."""
    spec, length = job.model, dataset.preprocessing["length"]
    assert isinstance(spec, CnnLstmSpec)
    if spec.pool ** len(spec.cnn_channels) > length:
        description = (
            f"is {spec.pool}; applied {len(spec.cnn_channels)} times, it leaves nothing of a window of {length} rows"
        )
        raise job.spec_error(("model", "pool"), description, "a row or more", "a smaller pool or fewer convolutions")
    arguments: dict[str, Any] = {
        "channels": dataset.preprocessing["channels"],
        "outputs": dataset.heads[""].outputs,
        **spec.model_dump(mode="json", exclude={"name", *WithWeights.model_fields}),
    }
    return build_model("series", arguments, spec)


def draw_inputs(generator: np.random.Generator, preprocessing: dict[str, Any], samples: int) -> Inputs:
    """Draw windows of normal numbers."""
    return (draw_normal(generator, samples, preprocessing["length"], preprocessing["channels"]),)


def list_channels(preprocessing: Mapping[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """List the channels of a series, each with its place in the inputs."""
    names = preprocessing.get("features") or [f"channel {index}" for index in range(preprocessing["channels"])]
    return {str(name): [(0, index)] for index, name in enumerate(names)}


def check_window(arguments: dict[str, Any], job: SeriesJob, earlier: EarlierModel, dataset: Dataset) -> None:
    """Check that a window is not shorter than the pooling of the earlier network."""
    length = dataset.preprocessing["length"]
    min_length = earlier.arguments.get("pool", 1) ** len(earlier.arguments.get("cnn_channels", ()))
    if length < min_length:
        description = f"has windows of {length} rows; the pooling of {earlier.folder} leaves nothing of them"
        key = ("data", "train" if job.data.arrays else "window")
        earlier.refuse(description, f"{min_length} rows or more", "use longer windows, or another run", key)
