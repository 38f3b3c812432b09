"""What pydantic found wrong, as problems with place, key, what was given, what is possible and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from runtime.errors import Problem, nearest
from runtime.job.document import Document, Path, dotted

_TYPES = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "text", "list": "a list",
    "tuple": "a list", "dict": "a mapping", "model": "a mapping", "none": "null", "finite_number": "a finite number",
}  # fmt: skip
_BOUNDS = {"greater_than_equal": (">=", "ge"), "greater_than": (">", "gt"), "less_than_equal": ("<=", "le"),
           "less_than": ("<", "lt")}  # fmt: skip


def problems(error: ValidationError, model: type[BaseModel], document: Document) -> list[Problem]:
    """Every error of a validation, the alternatives of one value put together."""
    found: dict[Path, list[tuple[Any, tuple[Any, ...]]]] = {}
    for item in error.errors(include_url=False):
        found.setdefault(_path(item, document), []).append((item, item["loc"]))
    return [_problem(path, items, model, document) for path, items in found.items()]


def _path(item: Any, document: Document) -> Path:
    """The part of a pydantic location that stands in the document; the rest names union members."""
    path: Path = ()
    for part in item["loc"]:
        if document.has((*path, part)):
            path = (*path, part)
    if item["type"] == "missing":
        path = (*path, item["loc"][-1])
    return path


def _problem(path: Path, items: list[Any], model: type[BaseModel], document: Document) -> Problem:
    item, loc = items[0]
    place, key = document.place(path), dotted(path)
    match item["type"]:
        case "extra_forbidden":
            known = _keys(model, loc)
            wrong = str(path[-1])
            hint = nearest(wrong, known) or "remove it, or see `drivetrain schema`"
            return Problem(place, key, "unknown key", f"known keys: {', '.join(known)}", hint)
        case "missing":
            return Problem(place, key, "is missing", "a required key", f"add `{path[-1]}:`")
        case "union_tag_not_found":
            given = "has no name" if isinstance(item["input"], dict) else f"is {item['input']!r}"
            return Problem(place, key, given, "`name:` and its settings", "give a name")
        case "union_tag_invalid":
            tags = item["ctx"]["expected_tags"].replace("'", "")
            given = str(item["ctx"]["tag"])
            return Problem(place, key, f"is {given!r}", f"one of {tags}", nearest(given, tags.split(", ")) or "pick one")
    expected = list(dict.fromkeys(text for item, _ in items for text in _expected(item)))
    value = item["input"]
    shown = "a mapping" if isinstance(value, dict) else repr(value)
    words = [word.strip("'\"") for text in expected for word in text.replace(" or ", ", ").split(", ")]
    hint = nearest(value, words) if isinstance(value, str) else ""
    return Problem(place, key, f"is {shown[:80]}", " or ".join(expected), hint or "change the value")


def _expected(item: Any) -> Iterator[str]:
    kind, context = item["type"], item.get("ctx", {})
    if kind in _BOUNDS:
        sign, name = _BOUNDS[kind]
        yield f"a number {sign} {context[name]}"
    elif kind == "literal_error":
        yield context["expected"].replace("'", "")
    elif kind in ("too_short", "too_long"):
        yield f"a list of {context.get('min_length', context.get('max_length'))}"
    elif kind == "string_pattern_mismatch":
        yield "letters, digits, dots, dashes and underscores, at most 64"
    elif kind == "value_error":
        yield str(context["error"])
    else:
        stem = next((name for name in _TYPES if kind.startswith(name)), None)
        yield _TYPES[stem] if stem else item["msg"]


def _keys(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """The keys that are known at a pydantic location."""
    here: list[type[BaseModel]] = [model]
    for part in loc[:-1]:
        step = [m for owner in here if part in owner.model_fields for m in _models(owner.model_fields[part].annotation)]
        if step:
            here = step
        elif tagged := [m for m in here if _tag_of(m, part)]:
            here = tagged
    return list(dict.fromkeys(name for owner in here for name in owner.model_fields))


def _tag_of(model: type[BaseModel], tag: Any) -> bool:
    literal = any(tag in get_args(f.annotation) for n, f in model.model_fields.items() if n in ("name", "source"))
    return literal or (tag == "own" and "file" in model.model_fields) or model.__name__ == tag


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for argument in get_args(annotation) for model in _models(argument)]
