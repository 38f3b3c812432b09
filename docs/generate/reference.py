"""Every field of the spec from its schema, a page of docs/; every optimization from its docstrings, a golden file of the tests.

python -m docs.generate.reference spec > docs/spec.md
python -m docs.generate.reference optimizations > tests/golden/optimizations.md
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from drivetrain import optimizations
from drivetrain.job_spec import load_job as job_spec
from drivetrain.optimizations import Optimization
from drivetrain.plan.plan import format_value

Schema = Mapping[str, Any]
_SPEC = """# Every field of the spec

Generated from the schema by `make reference`; do not edit. The `task` of a job determines its other fields;
[your-data.md](your-data.md) shows complete jobs. In parentheses: the type, and the default, or that the field is required; `[0,1)` has 0 and
not 1. An optional field is absent or `null`. A count is an integer in [1,2147483647]. A name that is a link has settings of its own:
`schedule: cosine` or `schedule: {name: cosine, warmup: 0.1}`. Every field with the default `auto` takes `auto`, too: the runtime decides.
"""
_OPTIMIZATIONS = """# Every optimization

Generated from the docstrings in `runtime/drivetrain/optimizations` by `make reference`; do not edit. The name is the key under
`optimize:` in the spec, the row in the plan and the line in the report. To add an optimization, add a file to that folder:
[CONTRIBUTING.md](../../CONTRIBUTING.md#an-optimization).
"""

OPENINGS = (
    "Refuse with a reason, or return None: ",
    "List the values to measure: ",
    "List the values to measure, ",
    "Return ",
)
"""Openings of docstrings that the page leaves out: its lines begin with a word of their own."""
LARGEST_COUNT = 2**31 - 1


def spec_page() -> str:
    """The page of the spec: tasks first, then each kind of field once, in the order in which they are met."""
    schema = job_spec.schema()
    tasks = dict(sorted(schema["discriminator"]["mapping"].items(), key=lambda task: task[0] == "custom"))
    lines = [_SPEC, *(f"- `{task}`: {_format_link(ref)}" for task, ref in tasks.items())]
    printed: dict[str, str] = {}
    for name in _list_definitions([ref.rsplit("/", 1)[1] for ref in tasks.values()], schema["$defs"]):
        lines += _format_section(name, schema["$defs"], printed)
    return re.sub("\n{3,}", "\n\n", "\n".join(lines))


def optimizations_page() -> str:
    """The page of the optimizations, in the order of their application."""
    lines = [_OPTIMIZATIONS]
    for optimization in optimizations.every():
        lines += [f"## {optimization.name}", "", optimization.sentence, "", *_describe_optimization(optimization), ""]
    return "\n".join(lines).rstrip() + "\n"


def _list_definitions(names: list[str], defs: Mapping[str, Schema]) -> Iterator[str]:
    """Names of definitions and of those that they refer to, breadth first, each once."""
    listed: list[str] = []
    while names:
        name = names.pop(0)
        if name not in listed:
            listed.append(name)
            yield name
            names += [part.split('"')[0] for part in json.dumps(defs[name]).split('"#/$defs/')[1:]]


def _format_section(name: str, defs: Mapping[str, Schema], printed: dict[str, str]) -> Iterator[str]:
    """A heading, the description and a line for each field; fields that an earlier section has printed are only named."""
    yield from ("", f"## {name}", "")
    schema = defs[name]
    if "properties" not in schema:
        yield f"{_type(schema)}."
        return
    kind = [
        f"`{field}: {_format_literal(field_schema['const'])}`."
        for field, field_schema in schema["properties"].items()
        if "const" in field_schema
    ]
    if text := " ".join([*kind, *schema.get("description", "").split()]):
        yield from (text, "")
    repeated: dict[str, list[str]] = {}
    for field, field_schema in schema["properties"].items():
        line = _format_field(field, field_schema, field in schema.get("required", []), defs)
        if line in printed:
            repeated.setdefault(printed[line], []).append(f"`{field}`")
        elif "const" not in field_schema:
            printed[line] = name
            yield line
    for section, fields in sorted(repeated.items(), key=lambda group: len(group[1])):
        complete = len(fields) > 4 and set(defs[section]["properties"]) <= set(schema["properties"])
        yield f"- {'all others' if complete else ', '.join(fields)}: as in [{section}](#{section.lower()})"


def _format_field(field: str, schema: Schema, required: bool, defs: Mapping[str, Schema]) -> str:
    """A line of the list: the name, the type, the default and the description."""
    default = schema.get("default")
    parts = [part for part in schema.get("anyOf", ()) if default is not None or part.get("type") != "null"]
    kind = _type({**schema, "anyOf": parts} if parts else schema, defs)
    if default == "auto":
        kind = kind.removesuffix(" or `auto`")
    if required:
        facts = f"{kind}; required"
    elif default is None:
        facts = f"{kind}; optional"
    elif isinstance(default, dict) and default:
        facts = f"{kind}; `{default['name']}`" if "name" in default else kind
    else:
        facts = f"{kind}; `{_format_literal(default)}`"
    return f"- **{field}** ({facts}): {schema.get('description', '')}"


def _format_literal(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _type(schema: Schema, defs: Mapping[str, Schema] = MappingProxyType({})) -> str:
    """A field's type in words; a name links to the section in `defs` that it selects."""
    if "$ref" in schema:
        return _format_link(schema["$ref"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return _format_alternatives(schema[key], defs)
    if "const" in schema:
        return f"`{_format_literal(schema['const'])}`"
    if "enum" in schema:
        return _join_kinds([f"`{_format_literal(value)}`" for value in schema["enum"]])
    match schema.get("type"):
        case "array":
            parts = schema.get("prefixItems")
            return (
                f"list of {len(parts)}: {_type(parts[0])}"
                if parts
                else f"list of {_type(schema.get('items', {}), defs)}"
            )
        case "object":
            if schema.get("title") == "From":
                return "`{from: FOLDER}`"
            return (
                f"mapping to {_type(schema['additionalProperties'], defs)}"
                if schema.get("additionalProperties")
                else "mapping"
            )
        case "null":
            return "`null`"
        case None:
            return "anything"
        case kind:
            return _format_number_or_text(kind, schema)


def _format_alternatives(parts: Sequence[Schema], defs: Mapping[str, Schema]) -> str:
    """What a field may be; a name that selects a section links to it."""
    flat = list(_flatten(parts))
    sections = {
        f"`{name}`": alternative["$ref"]
        for alternative in flat
        if "$ref" in alternative
        for name in _list_names(alternative["$ref"], defs)
    }
    kinds: list[str] = []
    for alternative in flat:
        if "$ref" in alternative and alternative["$ref"] in sections.values():
            kinds += [name for name, ref in sections.items() if ref == alternative["$ref"]]
        elif "enum" in alternative or "const" in alternative:
            kinds += [f"`{_format_literal(value)}`" for value in alternative.get("enum") or [alternative["const"]]]
        else:
            kinds.append(_type(alternative, defs))
    return _join_kinds(
        [_format_link(sections[kind], kind) if kind in sections else kind for kind in dict.fromkeys(kinds)]
    )


def _join_kinds(kinds: Sequence[str]) -> str:
    """`a`, `b` or `c`; with `or` throughout where a part has a comma or an `or` of its own."""
    if list(kinds) == ["text", "list of text"]:
        return "text or list"
    if any(word in kind for kind in kinds for word in (", ", " or ")):
        return " or ".join(kinds)
    return " or ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)


def _flatten(parts: Sequence[Schema]) -> Iterator[Schema]:
    """The alternatives, those of alternatives too."""
    for part in parts:
        nested = [nested_part for key in ("anyOf", "oneOf") for nested_part in part.get(key, ())]
        yield from _flatten(nested) if nested else (part,)


def _list_names(ref: str, defs: Mapping[str, Schema]) -> Sequence[str]:
    """The values of `name` that select a section."""
    name = defs.get(ref.rsplit("/", 1)[1], {}).get("properties", {}).get("name", {})
    values: Sequence[str] = name.get("enum") or ([name["const"]] if "const" in name else [])
    return values


def _format_number_or_text(kind: str, schema: Schema) -> str:
    if kind == "integer" and schema.get("maximum") == LARGEST_COUNT:
        return {0: "count or 0", 1: "count"}.get(schema["minimum"], f"count >={schema['minimum']}")
    kind_names = {"string": "text", "integer": "integer", "boolean": "true/false"}
    return f"{kind_names.get(kind, kind)}{_format_bounds(schema)}"


def _format_bounds(schema: Schema) -> str:
    """Bounds as an interval, or as one comparison."""
    signs = {
        "minimum": (">=", "["),
        "exclusiveMinimum": (">", "("),
        "maximum": ("<=", "]"),
        "exclusiveMaximum": ("<", ")"),
    }
    bounds = [(*marks, f"{schema[key]:.12g}") for key, marks in signs.items() if key in schema]
    if len(bounds) == 2:
        (_, opening, low), (_, closing, high) = bounds
        return f" in {opening}{low},{high}{closing}"
    return "".join(f" {sign}{number}" for sign, _, number in bounds)


def _format_link(ref: str, text: str = "") -> str:
    name = ref.rsplit("/", 1)[1]
    return f"[{text or name}](#{name.lower()})"


def _describe_optimization(optimization: Optimization) -> Iterator[str]:
    """One line for each thing that a file says about itself."""
    fixed = isinstance(optimization.effect, partial)
    effect = f"`{optimization.effect(None)}`" if fixed else _read_docstring(optimization.effect)
    values = _type(TypeAdapter(optimization.values).json_schema())
    yield f"- **Values**: {values}; off is `{format_value(optimization.off)}`"
    yield f"- **Stage**: {optimization.stage.name.lower()}. **Effect**: {effect}"
    yield f"- **Chosen**: {_read_docstring(optimization.choose)}"
    yield f"- **Refused**: {_read_docstring(optimization.refuse)}"
    yield f"- **Measured**: {_read_docstring(optimization.candidates)}"
    yield f"- **Applied**: {_read_docstring(optimization.apply)}"
    if optimization.environment.__doc__:
        yield f"- **Environment**: {_read_docstring(optimization.environment)}"
    yield f"- **Read back**: {_read_docstring(optimization.effective)}"


def _read_docstring(function: Any) -> str:
    text = " ".join((inspect.getdoc(function) or "").split())
    for opening in OPENINGS:
        text = text.removeprefix(opening)
    return text


def main() -> int:
    """Print a page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("page", choices=("spec", "optimizations"))
    page = parser.parse_args().page
    print({"spec": spec_page, "optimizations": optimizations_page}[page]().rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
