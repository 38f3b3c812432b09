"""Builds the network that a model folder describes, and tries it, since the folder may come from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import isclass, signature
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import nn

from drivetrain.errors import DrivetrainError
from drivetrain.models import dummy_inputs
from drivetrain.models.builders import BUILDERS, limit_size
from drivetrain.models.forward import without_gradients
from drivetrain.pretrained.earlier_run import WEIGHTS
from drivetrain.pretrained.model_config import config_error, describe_problem


@cache
def _make_checker(builder: str) -> type[BaseModel]:
    """Make a checker for the arguments of a builder from the types in its signature."""
    build = BUILDERS[builder]
    types = get_type_hints(build.__init__ if isclass(build) else build, include_extras=True)
    fields: dict[str, Any] = {
        name: (types[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in signature(build).parameters.items()
    }
    return create_model(builder, __config__=ConfigDict(strict=True, extra="forbid"), **fields)


def build_described(
    folder: Path, builder: str, arguments: Mapping[str, Any], preprocessing: Mapping[str, Any]
) -> nn.Module:
    """Build a network with random weights in evaluation mode, and check that it fits the preprocessing.

    Args:
        folder: folder of the model.
        builder: name of the builder in config.json.
        arguments: arguments of the builder.
        preprocessing: preprocessing of the data, which gives the shape of the inputs.

    Raises:
        CheckpointError: if there is no such builder, or if the network cannot be built or cannot compute.
    """
    if builder not in BUILDERS:
        raise config_error(folder, f"names the builder {builder!r}, this version has {', '.join(BUILDERS)}")
    try:
        _make_checker(builder).model_validate(arguments)
    except ValidationError as error:
        raise config_error(folder, describe_problem(error, "arguments")) from None
    verb = "built"
    try:
        with limit_size(folder / WEIGHTS):
            network = BUILDERS[builder](**arguments).eval()
        verb = "used"
        with without_gradients(network):
            network(*dummy_inputs.make_inputs(dict(preprocessing), 1, seed=0))
    except DrivetrainError:
        raise
    except Exception as error:  # a wrong value can make a network raise anything
        values = f"a wrong value in arguments: the network cannot be {verb}: {type(error).__name__}: {error}"
        raise config_error(folder, f"has {values}") from None
    return network
