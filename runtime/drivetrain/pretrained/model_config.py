"""Reads and checks the config.json of a model folder, which may come from anybody or be edited.

A digest in the file shows every edit, so its values are the ones that the training wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from drivetrain.errors import CheckpointError
from drivetrain.system.files import parse_json, to_json
from drivetrain.system.run_files import RunFiles

CONFIG, FORMAT = "config.json", 2


def _check_sizes(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse numbers above 32 bits: layers of torch compute wrong results with them, or never return."""
    values: list[JsonValue] = [arguments]
    while values:
        value = values.pop()
        if isinstance(value, int) and abs(value) >> 31:
            raise ValueError(f"{value} is too large")
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value
    return arguments


class _Config(BaseModel):
    """Types of the values. Keys that only the run itself reads have no field."""

    model_config = ConfigDict(strict=True)

    task: str
    builder: str
    arguments: Annotated[dict[str, JsonValue], AfterValidator(_check_sizes)]
    heads: Annotated[list[dict[str, JsonValue]], Field(min_length=1)]
    preprocessing: dict[str, JsonValue]
    trained: dict[str, str | float | None]
    code: dict[str, str] = {}
    weights: str
    """SHA-256 of the weights file."""
    content: str
    """SHA-256 of all other values."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check config.json of a model folder.

    Raises:
        CheckpointError: if it cannot be read, is of another format, or lacks a value or has a wrong one.
    """
    config, problem = RunFiles(folder).read_checked_object(CONFIG)
    if problem:
        raise config_error(folder, f"is {problem}")
    if config.get("format") != FORMAT:
        raise config_error(folder, f"has format {config.get('format')}, this version reads {FORMAT}")
    try:
        _Config.model_validate(config)
    except ValidationError as error:
        raise config_error(folder, describe_problem(error)) from None
    if config["content"] != digest_values(config):
        raise config_error(
            folder, "was edited: its values differ from the training, so its predictions would differ, too"
        )
    return config


def digest_values(config: Mapping[str, object]) -> str:
    """Return the SHA-256 of the values of a config.json, regardless of their order and notation."""
    values = parse_json(to_json({key: value for key, value in config.items() if key != "content"}))
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def config_error(folder: Path, problem: str) -> CheckpointError:
    """Return the error for a config.json; `problem` is the rest of a sentence that begins with the file."""
    return CheckpointError(
        f"{folder / CONFIG} {problem}",
        "a model folder as written at the end of training",
        "copy the folder again, or use the version of drivetrain that wrote it",
    )


def describe_problem(error: ValidationError, *parent_keys: str) -> str:
    """Describe the first wrong key below the parent keys, as the rest of a sentence that begins with the file."""
    details: Mapping[str, Any] = error.errors(include_url=False)[0]
    key, value = ".".join(map(str, (*parent_keys, *details["loc"]))), repr(details["input"])
    if details["type"] == "missing":
        return f"has no {key}"
    if details["type"] == "value_error":
        return f"has a wrong {key}: {details['ctx']['error']}"
    return f"has a wrong {key}: {value if len(value) <= 60 else value[:60] + '...'} ({details['msg']})"
