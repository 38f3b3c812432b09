"""Class weights in a spec: none, balanced, or numbers by the name of a class."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticKnownError

from drivetrain.job.column_names import Column
from drivetrain.job.values import Positive


def check_class_weights(value: Any) -> object:
    """Check `train.class_weights`, with one message for all its forms."""
    is_mapping_of_numbers = isinstance(value, dict) and all(
        name and isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < float("inf")
        for name, weight in value.items()
    )
    if value in ("none", "balanced") or (is_mapping_of_numbers and value):
        return value
    raise PydanticKnownError("literal_error", {"expected": "'none', 'balanced', numbers above 0 by class name"})


ClassWeights = Annotated[Literal["none", "balanced"] | dict[Column, Positive], BeforeValidator(check_class_weights)]
CLASS_WEIGHTS_DESCRIPTION = (
    "balanced: a class weighs samples / (classes * its samples), a label that can be true beside others weighs samples "
    "without it / samples with it; or numbers by class or label, such as {malignant: 5}: one that is not named has 1, and that "
    "of a label is the weight of a sample that has it"
)
