"""Column names in a spec: one, or a list of distinct ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError

from drivetrain.job.values import ShortForm
from drivetrain.system.spelling import clean_text


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


Column = Annotated[str, Field(min_length=1), AfterValidator(clean_text)]
OneOrMore = Annotated[
    tuple[Column, ...], Field(strict=False, min_length=1), AfterValidator(check_distinct), _OneOrMoreNames()
]
Cells = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False), _Cells()]
