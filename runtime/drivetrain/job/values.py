"""Value types of the job spec: sizes such as `4g`, durations such as `5m`, intervals such as `200 steps`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from drivetrain.storage import remote_address
from drivetrain.system.spelling import clean_text
from drivetrain.system.units import SIZE_PATTERN, parse_bytes

_DATE_FORMAT = re.compile(".*%[A-Za-z].*|(?:milli|micro|nano)?seconds|excel")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# The number of digits is limited, so that every match is finite; at least one digit is not 0.
_DURATION = re.compile(r"(?=[0-9.]*[1-9])([0-9]{1,9}(?:\.[0-9]{1,9})?) *([smhd])")
_STEPS = re.compile(r"(?=[0-9]*[1-9])([0-9]{1,12}) *steps?")
# No user name and password, because the spec is copied into every run folder.
_ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!-\"$-~]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_REVISION = re.compile(r"(?=.{1,200}$)[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_FOLD = re.compile(r"([1-9][0-9]?|100)/([2-9]|[1-9][0-9]|100)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Spec(BaseModel):
    """A mapping in the spec: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class ShortForm:
    """Annotation that expands short forms of a value before it is checked."""

    def expand(self, value: object) -> object:
        """Return the long form of a value."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))


def accept_name(default: str | None = None) -> _NameExpansion:
    """Accept `adam` as a short form of `{name: adam}`; a mapping without a name gets `default`."""
    return _NameExpansion(default)


@dataclass(frozen=True)
class _NameExpansion(ShortForm):
    default: str | None

    def expand(self, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict | BaseModel):
            raise PydanticCustomError("named", "a name, or a mapping with `name:` and settings")
        if isinstance(value, dict) and "from" in value and not {"name", "file", "source"} & value.keys():
            value = dict(value)
            return {"source": "run", "name": value.pop("from"), **value}
        # A section that names a user file has no name.
        if self.default is not None and isinstance(value, dict) and not {"name", "file"} & value.keys():
            return {"name": self.default, **value}
        return value

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, object]:
        """Return a schema that also allows the bare name, and the default's form without a name."""
        long_form = handler(schema["schema"])
        names: list[str] = []
        short_forms: list[dict[str, object]] = []
        for member in long_form.get("oneOf", []):
            form = handler.resolve_ref_schema(member)
            name_schema = form["properties"].get("name", {})
            form_names = name_schema.get("enum", [name_schema["const"]] if "const" in name_schema else [])
            names += form_names
            if self.default in form_names:
                form["required"] = [key for key in form.get("required", []) if key != "name"]
            if form["properties"].get("source", {}).get("const") == "run":
                short_forms.append(_describe_from(form))
        return {"anyOf": [{"enum": names}, *short_forms, long_form]}


def _describe_from(form: dict[str, Any]) -> dict[str, object]:
    """Return the schema of `from: FOLDER`, the short form of `source: run` and `name: FOLDER`."""
    properties = {"from": form["properties"]["name"], **form["properties"]}
    del properties["name"], properties["source"]
    return form | {"properties": properties, "required": ["from"], "title": "From"}


@dataclass(frozen=True)
class _CheckedText:
    """Annotation for a text that passes `check`; another type of value gets the same message."""

    check: Callable[[str], object]
    pattern: str

    def validate(self, value: object) -> Any:
        # A value of another type is checked as empty text, which no check accepts.
        self.check(value if isinstance(value, str) else "")
        return value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.validate, handler(source))

    def __get_pydantic_json_schema__(self, schema: object, handler: GetJsonSchemaHandler) -> dict[str, object]:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


def check_size(text: str) -> None:
    """Check that a text is a size with a unit."""
    try:
        parse_bytes(text)
    except ValueError:
        raise PydanticCustomError("size", "a size with its unit: 256m, 4g") from None


def parse_duration(text: str) -> float:
    """Return the seconds in `90s`, `5m`, `2h`, `1d`."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise PydanticCustomError("duration", "a duration with its unit: 90s, 5m, 2h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_interval(text: str) -> tuple[str, float]:
    """Parse an interval: `epoch` is ("epoch", 1), `200 steps` is ("steps", 200), `5m` is ("seconds", 300)."""
    if text == "epoch":
        return "epoch", 1
    match = _STEPS.fullmatch(text)
    if match:
        return "steps", int(match[1])
    try:
        return "seconds", parse_duration(text)
    except PydanticCustomError:
        raise PydanticCustomError("interval", "epoch, steps such as 200 steps, or a duration such as 5m") from None


def parse_fold(text: str) -> tuple[int, int]:
    """Parse a fold: `2/5` is (2, 5)."""
    match = _FOLD.fullmatch(text)
    if not match or int(match[1]) > int(match[2]):
        raise PydanticCustomError("fold", "one of 2 to 100 folds, such as 1/5 for the first of five")
    return int(match[1]), int(match[2])


def check_gpus(value: Any) -> object:
    """Check `limits.gpus`, with one message for all its forms."""
    is_list_of_numbers = isinstance(value, list) and all(type(number) is int and 0 <= number < 256 for number in value)
    if value in ("auto", "all", "none") or (is_list_of_numbers and value and len(set(value)) == len(value)):
        return value
    raise PydanticCustomError("gpus", "auto, all, none, or the numbers of some GPUs such as [0, 1]")


def check_date_format(text: str) -> None:
    """Check the format of times."""
    if not _DATE_FORMAT.fullmatch(text):
        raise PydanticCustomError(
            "date_format",
            "a format as in strptime such as %d.%m.%Y, or seconds, milliseconds, microseconds, nanoseconds, excel",
        )


def check_run_name(text: str) -> None:
    """Check a name that becomes part of folder names."""
    if not _NAME.fullmatch(text):
        raise PydanticCustomError(
            "name", "1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        )


def check_variable_name(text: str) -> None:
    """Check the name of an environment variable, which becomes a file name."""
    if not _VARIABLE.fullmatch(text):
        raise PydanticCustomError(
            "variable", "the name of an environment variable, such as HF_TOKEN, without its value"
        )


def check_revision(text: str) -> None:
    """Check a revision on the hub, which becomes a file name."""
    if not _REVISION.fullmatch(text):
        raise PydanticCustomError("revision", "a branch, a tag, or a commit of 40 digits")


def check_fraction_or_path(value: Any) -> object:
    """Check a fraction of the training data, or the path of separate data."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (0 < value < 1 if is_number else isinstance(value, str) and value):
        raise PydanticCustomError("fraction_or_path", "a fraction between 0 and 1, or a path")
    return value


def check_share_or_size(value: Any) -> object:
    """Check a share or a size."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (0 < value <= 1 if is_number else isinstance(value, str) and SIZE_PATTERN.fullmatch(value)):
        raise PydanticCustomError("share_or_size", "a share above 0 and up to 1, or a size with its unit such as 6g")
    return value


def check_ascending(pair: tuple[float, float]) -> tuple[float, float]:
    """Check that the first number is not larger than the second."""
    if pair[0] > pair[1]:
        raise PydanticCustomError("ascending", "two numbers, the smaller one first")
    return pair


def check_share(value: object) -> object:
    """Check a share of the samples; the message explains that a number is not a count."""
    if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < 1:
        raise PydanticCustomError("share", "a share of the samples, from 0 to below 1, such as 0.05 for one in twenty")
    return value


def _is_address(text: str, pattern: re.Pattern[str]) -> bool:
    try:
        return len(text) <= 2000 and bool(pattern.fullmatch(text)) and urlsplit(text).port != 0
    except ValueError:  # port or address out of range
        return False


def check_web_address(text: str) -> None:
    """Check the URL of a server, which must not contain credentials, because the run folder stores it."""
    if not _is_address(text, _ADDRESS):
        raise PydanticCustomError("address", "a URL without user and password, such as https://mlflow.example.org")


def check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check that no name occurs twice."""
    if len(set(names)) < len(names):
        repeated = next(name for i, name in enumerate(names) if name in names[:i])
        raise PydanticCustomError("columns", "column names that differ; {twice} appears twice", {"twice": repeated})
    return names


@dataclass(frozen=True)
class _OneOrMoreNames(ShortForm):
    """Accepts `label` as a short form of `[label]`."""

    def expand(self, value: object) -> object:
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list | tuple):
            raise PydanticCustomError("columns", "a column name, or a list of column names")
        return value

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, object]:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(schema["schema"])]}


@dataclass(frozen=True)
class _Cells(ShortForm):
    """Accepts `-999` as a short form of `["-999"]`, and numbers as their text."""

    def expand(self, value: object) -> object:
        cells = list(value) if isinstance(value, list | tuple) else [value]
        if not cells or any(isinstance(cell, bool) or not isinstance(cell, str | int | float) for cell in cells):
            raise PydanticCustomError("cells", "a cell, or a list of cells")
        return tuple(str(cell).strip() for cell in cells)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, object]:
        cells = [{"type": "string", "minLength": 1}, {"type": "number"}]
        return {"anyOf": [*cells, {"type": "array", "items": {"anyOf": cells}, "minItems": 1}]}


STORE_PATTERN = r"^(s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]*(/[^?#@]*)?$"
"""Approximate pattern for editors; `check_store_address` decides."""


def check_store_address(value: object) -> object:
    """Check the address of a folder in an object store, which must not contain credentials: the run folder stores it."""
    try:
        is_valid = isinstance(value, str) and remote_address.parse(value).writable
    except remote_address.BadAddress:
        is_valid = False
    if not is_valid:
        raise PydanticCustomError("store", f"{remote_address.POSSIBLE}; without user, password and query")
    return value


StoreAddress = Annotated[str, BeforeValidator(check_store_address), Field(json_schema_extra={"pattern": STORE_PATTERN})]
Address = Annotated[str, _CheckedText(check_web_address, _ADDRESS.pattern)]
Name = Annotated[str, _CheckedText(check_run_name, _NAME.pattern)]
VariableName = Annotated[str, _CheckedText(check_variable_name, _VARIABLE.pattern)]
Revision = Annotated[str, _CheckedText(check_revision, _REVISION.pattern)]
Size = Annotated[str, _CheckedText(check_size, SIZE_PATTERN.pattern)]
Duration = Annotated[str, _CheckedText(parse_duration, _DURATION.pattern)]
Interval = Annotated[str, _CheckedText(parse_interval, f"epoch|{_STEPS.pattern}|{_DURATION.pattern}")]
Fold = Annotated[str, _CheckedText(parse_fold, _FOLD.pattern)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
DateFormat = Annotated[str, _CheckedText(check_date_format, _DATE_FORMAT.pattern)]
BadShare = Annotated[float, Field(ge=0, lt=1), BeforeValidator(check_share)]
Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
# torch and the counters in files have this limit.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Natural = Annotated[int, Field(ge=0, le=2**31 - 1)]
FilePath = Annotated[str, Field(min_length=1)]
Validation = Annotated[Annotated[float, Field(gt=0, lt=1)] | FilePath, BeforeValidator(check_fraction_or_path)]
Share = Annotated[float, Field(gt=0, le=1)]
GpuMemory = Annotated[Share | Size, BeforeValidator(check_share_or_size)]
Range = Annotated[tuple[Share, Share], Field(strict=False), AfterValidator(check_ascending)]
NumberRange = Annotated[tuple[float, float], Field(strict=False), AfterValidator(check_ascending)]
PositiveRange = Annotated[tuple[Positive, Positive], Field(strict=False), AfterValidator(check_ascending)]
Gpus = Annotated[
    Literal["auto", "all", "none"]
    | Annotated[
        list[Annotated[int, Field(ge=0, lt=256)]], Field(min_length=1, json_schema_extra={"uniqueItems": True})
    ],
    BeforeValidator(check_gpus),
]
Column = Annotated[str, Field(min_length=1), AfterValidator(clean_text)]
OneOrMore = Annotated[
    tuple[Column, ...], Field(strict=False, min_length=1), AfterValidator(check_distinct), _OneOrMoreNames()
]
Cells = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False), _Cells()]
