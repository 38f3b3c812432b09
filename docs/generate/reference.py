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
[your-data.md](your-data.md) shows complete jobs. In parentheses: the type, and the default, or that the field is required. An
optional field is absent or `null`. A count is a whole number from 1 to 2147483647. A name that is a link has settings of its own:
`schedule: cosine` or `schedule: {name: cosine, warmup: 0.1}`.
"""
_OPTIMIZATIONS = """# Every optimization

Generated from the docstrings in `runtime/drivetrain/optimizations` by `make golden`; do not edit. The name is the key under
`optimize:` in the spec, the row in the plan and the line in the report. To add an optimization, add a file to that folder:
[adding-an-optimization.md](../../docs/adding-an-optimization.md).
"""

OPENINGS = ("Why the value is impossible, or None: ", "The values to measure: ", "The values to measure, ")
"""What a docstring begins with to say what is returned; the page has a word for it."""
LARGEST_COUNT = 2**31 - 1


def spec_page() -> str:
    """The page of the spec: tasks first, then each kind of field once, in the order in which they are met."""
    schema = job_spec.schema()
    tasks = dict(sorted(schema["discriminator"]["mapping"].items(), key=lambda task: task[0] == "custom"))
    lines = [_SPEC, *(f"- `{task}`: {_link(ref)}" for task, ref in tasks.items())]
    printed: dict[str, str] = {}
    for name in _met([ref.rsplit("/", 1)[1] for ref in tasks.values()], schema["$defs"]):
        lines += _section(name, schema["$defs"], printed)
    return re.sub("\n{3,}", "\n\n", "\n".join(lines))


def optimizations_page() -> str:
    """The page of the optimizations, in the order of their application."""
    lines = [_OPTIMIZATIONS]
    for one in optimizations.every():
        lines += [f"## {one.name}", "", one.sentence, "", *_facts(one), ""]
    return "\n".join(lines).rstrip() + "\n"


def _met(names: list[str], defs: Mapping[str, Schema]) -> Iterator[str]:
    """Names and those that they refer to, breadth first, each once."""
    known: list[str] = []
    while names:
        name = names.pop(0)
        if name not in known:
            known.append(name)
            yield name
            names += [part.split('"')[0] for part in json.dumps(defs[name]).split('"#/$defs/')[1:]]


def _section(name: str, defs: Mapping[str, Schema], printed: dict[str, str]) -> Iterator[str]:
    """A heading, the description and a line for each field; fields that an earlier section has printed are only named."""
    yield from ("", f"## {name}", "")
    one = defs[name]
    if "properties" not in one:
        yield f"{_type(one)}."
        return
    kind = [f"`{field}: {_literal(at['const'])}`." for field, at in one["properties"].items() if "const" in at]
    if text := " ".join([*kind, *one.get("description", "").split()]):
        yield from (text, "")
    repeated: dict[str, list[str]] = {}
    for field, at in one["properties"].items():
        line = _field(field, at, field in one.get("required", []), defs)
        if line in printed:
            repeated.setdefault(printed[line], []).append(f"`{field}`")
        elif "const" not in at:
            printed[line] = name
            yield line
    for section, fields in sorted(repeated.items(), key=lambda group: len(group[1])):
        complete = len(fields) > 4 and set(defs[section]["properties"]) <= set(one["properties"])
        yield f"- {'all others' if complete else ', '.join(fields)}: as in [{section}](#{section.lower()})"


def _field(field: str, one: Schema, required: bool, defs: Mapping[str, Schema]) -> str:
    """A line of the list: the name, the type, the default and the description."""
    default = one.get("default")
    parts = [part for part in one.get("anyOf", ()) if default is not None or part.get("type") != "null"]
    kind = _type({**one, "anyOf": parts} if parts else one, defs)
    if required:
        facts = f"{kind}; required"
    elif default is None:
        facts = f"{kind}; optional"
    elif isinstance(default, dict) and default:
        facts = f"{kind}; `{default['name']}`" if "name" in default else kind
    else:
        facts = f"{kind}; `{_literal(default)}`"
    return f"- **{field}** ({facts}): {one.get('description', '')}"


def _literal(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _type(one: Schema, defs: Mapping[str, Schema] = MappingProxyType({})) -> str:
    """A field's type in words; a name links to the section in `defs` that it selects."""
    if "$ref" in one:
        return _link(one["$ref"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in one:
            return _alternatives(one[key], defs)
    if "const" in one:
        return f"`{_literal(one['const'])}`"
    if "enum" in one:
        return _join([f"`{_literal(value)}`" for value in one["enum"]])
    match one.get("type"):
        case "array":
            parts = one.get("prefixItems")
            return (
                f"list of {len(parts)}: {_type(parts[0])}" if parts else f"list of {_type(one.get('items', {}), defs)}"
            )
        case "object":
            if one.get("title") == "From":
                return "`{from: FOLDER}`"
            return (
                f"mapping to {_type(one['additionalProperties'], defs)}"
                if one.get("additionalProperties")
                else "mapping"
            )
        case "null":
            return "`null`"
        case None:
            return "anything"
        case kind:
            return _number_or_text(kind, one)


def _alternatives(parts: Sequence[Schema], defs: Mapping[str, Schema]) -> str:
    """What a field may be; a name that selects a section links to it."""
    flat = list(_flatten(parts))
    sections = {f"`{name}`": one["$ref"] for one in flat if "$ref" in one for name in _names(one["$ref"], defs)}
    kinds: list[str] = []
    for one in flat:
        if "$ref" in one and one["$ref"] in sections.values():
            kinds += [name for name, ref in sections.items() if ref == one["$ref"]]
        elif "enum" in one or "const" in one:
            kinds += [f"`{_literal(value)}`" for value in one.get("enum") or [one["const"]]]
        else:
            kinds.append(_type(one, defs))
    return _join([_link(sections[kind], kind) if kind in sections else kind for kind in dict.fromkeys(kinds)])


def _join(kinds: Sequence[str]) -> str:
    """`a`, `b` or `c`; with `or` throughout where a part has a comma or an `or` of its own."""
    if any(word in kind for kind in kinds for word in (", ", " or ")):
        return " or ".join(kinds)
    return " or ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)


def _flatten(parts: Sequence[Schema]) -> Iterator[Schema]:
    """The alternatives, those of alternatives too."""
    for one in parts:
        nested = [part for key in ("anyOf", "oneOf") for part in one.get(key, ())]
        yield from _flatten(nested) if nested else (one,)


def _names(ref: str, defs: Mapping[str, Schema]) -> Sequence[str]:
    """The values of `name` that select a section."""
    name = defs.get(ref.rsplit("/", 1)[1], {}).get("properties", {}).get("name", {})
    values: Sequence[str] = name.get("enum") or ([name["const"]] if "const" in name else [])
    return values


def _number_or_text(kind: str, one: Schema) -> str:
    if kind == "integer" and one.get("maximum") == LARGEST_COUNT:
        return {0: "count or 0", 1: "count"}.get(one["minimum"], f"count, at least {one['minimum']}")
    return (
        f"{ {'string': 'text', 'integer': 'whole number', 'boolean': 'true or false'}.get(kind, kind) }{_bounds(one)}"
    )


def _bounds(one: Schema) -> str:
    if "minimum" in one and "maximum" in one:
        return f", {one['minimum']:g} to {one['maximum']:.12g}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{word} {one[key]:.12g}" for key, word in words.items() if key in one]
    return f", {', '.join(bounds)}" if bounds else ""


def _link(ref: str, text: str = "") -> str:
    name = ref.rsplit("/", 1)[1]
    return f"[{text or name}](#{name.lower()})"


def _facts(one: Optimization) -> Iterator[str]:
    """One line for each thing that a file says about itself."""
    fixed = isinstance(one.effect, partial)
    effect = f"`{one.effect(None)}`" if fixed else _said(one.effect)
    yield f"- **Values**: {_type(TypeAdapter(one.values).json_schema())}; off is `{format_value(one.off)}`"
    yield f"- **Stage**: {one.stage.name.lower()}. **Effect**: {effect}"
    yield f"- **Chosen**: {_said(one.choose)}"
    yield f"- **Refused**: {_said(one.refuse)}"
    yield f"- **Measured**: {_said(one.candidates)}"
    yield f"- **Applied**: {_said(one.apply)}"
    if one.environment.__doc__:
        yield f"- **Environment**: {_said(one.environment)}"
    yield f"- **Read back**: {_said(one.effective)}"


def _said(function: Any) -> str:
    text = " ".join((inspect.getdoc(function) or "").split())
    for opening in OPENINGS:
        text = text.removeprefix(opening)
    return text


def main() -> int:
    """Print a page."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("page", choices=("spec", "optimizations"))
    page = arguments.parse_args().page
    print({"spec": spec_page, "optimizations": optimizations_page}[page]().rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
