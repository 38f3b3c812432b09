"""Every field of the spec from its schema, a page of docs/; every optimization from its docstrings, a golden file of the tests.

python -m docs.generate.reference spec > docs/spec.md
python -m docs.generate.reference optimizations > tests/golden/optimizations.md
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from drivetrain import optimizations
from drivetrain.job_spec import load_job as job_spec
from drivetrain.optimizations import Optimization
from drivetrain.plan.plan import format_value

Schema = Mapping[str, Any]
_SPEC = """# Every field of the spec

Generated from the schema by `make reference`; do not edit. Each job has a `task`, which determines its other fields. A field
without a default is required. [your-data.md](your-data.md) shows complete jobs.
"""
_OPTIMIZATIONS = """# Every optimization

Generated from the docstrings in `runtime/drivetrain/optimizations` by `make golden`; do not edit. The name is the key under
`optimize:` in the spec, the row in the plan and the line in the report. To add an optimization, add a file to that folder:
[adding-an-optimization.md](../../docs/adding-an-optimization.md).
"""

OPENINGS = ("Why the value is impossible, or None: ", "The values to measure: ", "The values to measure, ")
"""What a docstring begins with to say what is returned; the page has a word for it."""


def spec_page() -> str:
    """The page of the spec: tasks first, then each kind of field once, in the order in which they are met."""
    schema = job_spec.schema()
    tasks = schema["discriminator"]["mapping"]
    rows = [("task", "fields"), *((f"`{task}`", _link(ref)) for task, ref in tasks.items())]
    names = list(_met([ref.rsplit("/", 1)[1] for ref in tasks.values()], schema["$defs"]))
    return "\n".join(
        [_SPEC, *_table(rows), *(line for name in names for line in _section(name, schema["$defs"][name]))]
    )


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


def _section(name: str, made: Schema) -> Iterator[str]:
    yield from ("", f"## {name}", "")
    if text := made.get("description"):
        yield from (" ".join(text.split()), "")
    if "properties" not in made:
        yield f"{_type(made)}."
        return
    required = made.get("required", [])
    rows = [("field", "type", "default", "meaning")]
    for field, one in made["properties"].items():
        default = "required" if field in required else _default(one.get("default"))
        meaning = one.get("description") or ("selects this kind" if "const" in one else "")
        rows.append((f"`{field}`", _type(one), default, meaning))
    yield from _table(rows)


def _default(value: Any) -> str:
    """A default; of a whole section only its name, because the section lists its fields."""
    if isinstance(value, dict) and value:
        return f"`{value['name']}`" if "name" in value else "see there"
    return f"`{_literal(value)}`"


def _literal(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _type(one: Schema) -> str:
    """A field's type in words."""
    if "$ref" in one:
        return _link(one["$ref"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in one:
            return " or ".join(dict.fromkeys(_type(part) for part in one[key]))
    if "const" in one:
        return f"`{_literal(one['const'])}`"
    if "enum" in one:
        return " or ".join(f"`{_literal(value)}`" for value in one["enum"])
    match one.get("type"):
        case "array":
            parts = one.get("prefixItems")
            return f"list of {len(parts)}: {_type(parts[0])}" if parts else f"list of {_type(one.get('items', {}))}"
        case "object":
            if one.get("title") == "From":
                return "`{from: FOLDER}`"
            return f"mapping to {_type(one['additionalProperties'])}" if one.get("additionalProperties") else "mapping"
        case "null":
            return "`null`"
        case None:
            return "anything"
        case kind:
            return f"{ {'string': 'text', 'integer': 'whole number', 'boolean': 'true or false'}.get(kind, kind) }{_bounds(one)}"


def _bounds(one: Schema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    found = [f"{word} {one[key]:g}" for key, word in words.items() if key in one]
    return f", {', '.join(found)}" if found else ""


def _link(ref: str) -> str:
    name = ref.rsplit("/", 1)[1]
    return f"[{name}](#{name.lower()})"


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


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        if number == 0:
            yield "|" + " --- |" * len(row)


def main() -> int:
    """Print a page."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("page", choices=("spec", "optimizations"))
    page = arguments.parse_args().page
    print({"spec": spec_page, "optimizations": optimizations_page}[page]().rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
