"""Makes the request of a command from its options."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast

Request = TypeVar("Request")
OPTION_NAMES = {"spec": "job", "assignments": "set", "as_json": "json", "form": "format"}
"""By field of a request: the option that it is, if that has another name."""


def make_request(kind: Callable[..., Request], options: argparse.Namespace, **values: Any) -> Request:
    """A request whose fields are the options of the same names, and these values; other fields keep their defaults.

    Args:
        kind: a dataclass.
        values: fields that are no options, or not as they are.
    """
    for field in dataclasses.fields(cast(Any, kind)):
        option = OPTION_NAMES.get(field.name, field.name)
        if field.name not in values and hasattr(options, option):
            value = getattr(options, option)
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)
