"""Reads and checks the config.json of a model folder, which may come from anybody or be edited; defines its types."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    PositiveInt,
    ValidationError,
    model_validator,
)

from drivetrain.errors import CheckpointError
from drivetrain.job.data import Fit
from drivetrain.job.tables import DatePart
from drivetrain.job.text import Truncation
from drivetrain.system.files import parse_json, to_json
from drivetrain.system.run_files import RunFiles

CONFIG, FORMAT = "config.json", 2
Texts: TypeAlias = list[str]
Numbers: TypeAlias = list[FiniteFloat]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveNumbers: TypeAlias = list[Positive]


class _Stored(BaseModel):
    """Values of strict types. Keys that only the run itself reads have no field."""

    model_config = ConfigDict(strict=True)


class _Head(_Stored):
    model_config = ConfigDict(extra="forbid")

    name: str
    classes: Texts
    several: bool
    columns: Texts
    mean: Numbers
    std: PositiveNumbers
    low: Numbers = []
    high: Numbers = []
    weight: FiniteFloat = 1.0
    class_weights: str | dict[str, FiniteFloat] | None = None
    label_smoothing: FiniteFloat | None = None
    partial: bool = False
    temperature: Positive
    thresholds: Numbers

    @model_validator(mode="after")
    def _check_lengths(self) -> _Head:
        lengths = {len(values) for values in (self.mean, self.std, self.low, self.high) if values}
        if lengths - {len(self.columns)} or (self.columns and not (self.mean and self.std)):
            raise ValueError("its columns and their scales differ in number")
        if len(self.thresholds) not in (0, 1, len(self.classes)) or len(set(self.classes)) < len(self.classes):
            raise ValueError("its classes or thresholds differ in number, or are named twice")
        return self


class _Csv(_Stored):
    delimiter: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    percent: Texts = []
    units: dict[str, str] = {}

    @model_validator(mode="after")
    def _check_form(self) -> _Csv:
        if (self.delimiter is None) != (self.encoding is None):
            raise ValueError("it has a delimiter or an encoding alone")
        return self


class _Preprocessing(_Stored):
    csv: _Csv = _Csv()
    missing: Texts = []
    time_order: str = ""


class _Targets(_Stored):
    kind: Literal["class", "labels", "numbers"]
    separator: str


class _Images(_Preprocessing):
    kind: Literal["images"]
    image_size: PositiveInt
    channels: PositiveInt
    classes: Texts
    fit: Fit
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
    crop_share: Annotated[float, Field(gt=0, le=1)]
    range_16_bit: Annotated[Numbers, Field(min_length=2, max_length=2)] = [0.0, 1.0]
    ground: str = "white"
    low: FiniteFloat
    high: FiniteFloat
    mean: Numbers
    std: Numbers
    path_column: str
    label_column: str | Annotated[Texts, Field(min_length=1)]
    targets: _Targets = _Targets(kind="class", separator="")

    @model_validator(mode="after")
    def _check_channels(self) -> _Images:
        if {len(self.mean), len(self.std)} != {self.channels} or self.low >= self.high:
            raise ValueError("its mean, std, low and high do not fit its channels")
        return self


class _Tokenizer(_Stored):
    # `json` is a method of the base class.
    text: Annotated[str, Field(alias="json")]
    pad: Annotated[int, Field(ge=0)]


class _TextData(_Preprocessing):
    kind: Literal["texts"]
    text: str | Annotated[Texts, Field(min_length=1)]
    labels: dict[str, str]
    max_length: PositiveInt
    vocabulary: PositiveInt
    tokenizer: _Tokenizer
    truncation: Truncation = "right"
    token_types: bool = False
    pooling: str = ""


class _Sampling(_Stored):
    step: Positive
    is_even: bool
    are_dates: bool


class _Series(_Preprocessing):
    kind: Literal["series"]
    classes: bool
    length: PositiveInt
    channels: PositiveInt
    mean: Numbers
    std: PositiveNumbers
    low: Numbers = []
    high: Numbers = []

    @model_validator(mode="after")
    def _check_channels(self) -> _Series:
        optional = {len(self.low), len(self.high)} - {0}
        if {len(self.mean), len(self.std), *optional} != {self.channels}:
            raise ValueError("its scales differ in number from its channels")
        return self


class _Windows(_Series):
    form: Literal["arrays"]
    axes: Literal["time-channels", "channels-time"] = "time-channels"


class _LongTable(_Series):
    form: Literal["long"]
    time: str
    features: Texts
    label: Annotated[Texts, Field(min_length=1)]
    group: str | None
    window: PositiveInt
    stride: PositiveInt
    max_gap: Positive | None
    date_format: str | None = None
    sampling: _Sampling = _Sampling(step=1.0, is_even=False, are_dates=False)

    @model_validator(mode="after")
    def _check_features(self) -> _LongTable:
        if len(self.features) != self.channels or self.window != self.length:
            raise ValueError("its features and window do not fit its channels and length")
        return self


class _Number(_Stored):
    name: str
    mean: FiniteFloat
    std: Positive
    low: FiniteFloat = 0.0
    high: FiniteFloat = 0.0
    median: FiniteFloat
    missing: bool
    edges: Numbers


class _Category(_Stored):
    name: str
    values: Texts
    missing: bool


class _Table(_Preprocessing):
    kind: Literal["table"]
    target: Annotated[Texts, Field(min_length=1)]
    classes: bool
    numeric: list[_Number]
    categorical: list[_Category]
    dates: dict[str, list[DatePart]] = {}
    date_format: str | None = None
    zones: dict[str, str] = {}
    forms: dict[str, str] = {}


class _Input(_Stored):
    shape: list[Annotated[int, Field(ge=0)]]
    type: str


class _Reader(_Stored):
    file: str
    function: str
    arguments: dict[str, JsonValue]


class _Own(_Preprocessing):
    kind: Literal["own"]
    inputs: Annotated[list[_Input], Field(min_length=1)]
    reader: _Reader | None


_Data: TypeAlias = Annotated[
    _Images | _TextData | Annotated[_Windows | _LongTable, Field(discriminator="form")] | _Table | _Own,
    Field(discriminator="kind"),
]


def _check_sizes(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse numbers above 32 bits, for which layers of torch compute wrong results or never return."""
    values: list[JsonValue] = [arguments]
    while values:
        value = values.pop()
        if isinstance(value, int) and abs(value) >> 31:
            raise ValueError(f"{value} is too large")
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value
    return arguments


class _Config(_Stored):
    task: str
    builder: str
    arguments: Annotated[dict[str, JsonValue], AfterValidator(_check_sizes)]
    heads: Annotated[list[_Head], Field(min_length=1)]
    preprocessing: _Data
    trained: dict[str, str | float | None]
    code: dict[str, str] = {}
    weights: str
    """SHA-256 of the weights file."""
    content: str
    """SHA-256 of all other values."""

    @model_validator(mode="after")
    def _check_fit(self) -> _Config:
        data, outputs = self.preprocessing, {head.name: len(head.classes or head.columns) for head in self.heads}
        names = set(data.labels) if isinstance(data, _TextData) else {""}
        if outputs.keys() != names or len(outputs) < len(self.heads):
            raise ValueError("the names of its heads do not fit its preprocessing")
        head = self.heads[0]
        targets = getattr(data, "target", None) or getattr(data, "label", None) or head.columns
        if head.columns and len(targets) != len(head.columns):
            raise ValueError("the columns of its head do not fit its preprocessing")
        kind = "labels" if head.several else "numbers" if head.columns else "class"
        if isinstance(data, _Images) and data.targets.kind != kind:
            raise ValueError("preprocessing.targets does not fit its head")
        if self.builder in ("own", "python"):
            return self
        expected: dict[str, object] = {"outputs": outputs if isinstance(data, _TextData) else outputs[""]}
        if isinstance(data, _Images):
            expected = {"channels": data.channels, "classes": outputs[""]}
        elif isinstance(data, _TextData):
            expected["vocabulary"] = data.vocabulary
        elif isinstance(data, _Series):
            expected["channels"] = data.channels
        elif isinstance(data, _Table):
            expected["numbers"] = sum(1 + number.missing for number in data.numeric)
            expected["categories"] = [1 + category.missing + len(category.values) for category in data.categorical]
        for key, value in expected.items():
            if key in self.arguments and self.arguments[key] != value:
                raise ValueError(f"its heads or preprocessing do not fit arguments.{key}")
        return self


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
        return f"has {f'a wrong {key}' if key else 'values that do not fit'}: {details['ctx']['error']}"
    return f"has a wrong {key}: {value if len(value) <= 60 else value[:60] + '...'} ({details['msg']})"
