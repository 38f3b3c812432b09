"""Reads the YAML of a spec as a document, changes it by `--set`, and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from runtime.errors import Problem, SpecError
from runtime.job.document import Document
from runtime.job.formatting import Path, dotted, printable, shown
from runtime.job_spec.yaml_nodes import YamlNodeReader
from runtime.job_spec.yaml_syntax import PREFIX, CoreLoader, compose


def parse(text: str | bytes, name: str) -> Document:
    """Read a YAML mapping.

    Raises:
        SpecError: with all problems, each with its position.
    """
    document = read(text, name)
    if document.problems:
        raise SpecError(document.problems)
    return document


def read(text: str | bytes, name: str) -> Document:
    """Read a YAML mapping; values that cannot be read become None, with a problem in the document.

    Raises:
        SpecError: if the text is not one YAML mapping.
    """
    node = compose(text, name)
    if not isinstance(node, yaml.MappingNode):
        what = "is empty" if node is None else "is not a mapping"
        raise SpecError(
            [
                Problem(
                    f"{name}:1:1",
                    "",
                    f"the document {what}",
                    "keys and values: `task: ...`",
                    "start from one of the examples in jobs/",
                )
            ]
        )
    reader = YamlNodeReader(name)
    data = reader.read(node, ())
    if data is None:
        raise SpecError(reader.problems)
    return Document(name, data, reader.places, reader.problems, reader.unread)


def set_value(document: Document, assignment: str) -> None:
    """Apply one `--set key.path=value`; the value is read as YAML.

    Raises:
        SpecError: if it is not an assignment, or its path leads through a value that is not a mapping.
    """
    origin = f"--set {printable(assignment)}"
    key, equals, text = assignment.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not equals or not all(part and part.isprintable() for part in parts):
        raise SpecError(
            [
                Problem(
                    f"{origin}:1:1",
                    "",
                    "not an assignment",
                    "key.path=value",
                    "write for example --set train.epochs=3",
                )
            ]
        )
    # Spaces in place of the key give the right columns.
    root = compose(" " * (len(key) + 1) + text, origin)
    reader = YamlNodeReader(origin)
    value = reader.read(root, parts) if root else None
    if reader.problems:
        raise SpecError(reader.problems)
    node = _mapping(document, parts, f"{origin}:1:1")
    for path in [path for path in document.places if path[: len(parts)] == parts]:
        del document.places[path]
    node[parts[-1]] = value
    document.places |= reader.places or {parts: f"{origin}:1:{len(key) + 2}"}


def put_value(document: Document, parts: tuple[str, ...], value: Any, place: str) -> None:
    """Set the value at `parts`, which comes from `place` in the same file.

    Raises:
        SpecError: if its path leads through a value that is not a mapping.
    """
    node = _mapping(document, parts, place)
    for path in [path for path in document.places if path[: len(parts)] == parts]:
        del document.places[path]
    node[parts[-1]] = value
    document.places |= _places(parts, value, place)


def _places(path: Path, value: object, place: str) -> dict[Path, str]:
    found = {path: place}
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        found |= _places((*path, key), item, place)
    return found


def _mapping(document: Document, parts: tuple[str, ...], origin: str) -> dict[str, object]:
    """The mapping that contains the last of `parts`; missing mappings are created."""
    node: dict[str, Any] = document.data
    for depth, part in enumerate(parts[:-1], start=1):
        here = parts[:depth]
        child = node.setdefault(part, {})
        if isinstance(child, str):
            # `optimizer: sgd` is short for `optimizer: {name: sgd}`.
            child = node[part] = {"name": child}
            document.places[(*here, "name")] = document.places.pop(here, origin)
        if not isinstance(child, dict):
            raise SpecError(
                [
                    Problem(
                        origin,
                        dotted(here),
                        f"is {shown(child)}, not a mapping",
                        "a key of a mapping",
                        f"set all of {dotted(here)} instead",
                    )
                ]
            )
        node = child
        document.places.setdefault(here, origin)
    return node


def dump(data: Mapping[str, object]) -> str:
    """Write plain values as YAML that `parse` reads back to the same values."""

    class _Dumper(yaml.SafeDumper):
        yaml_implicit_resolvers = CoreLoader.yaml_implicit_resolvers

    def short_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
        return dumper.represent_sequence(PREFIX + "seq", items, flow_style=True)

    _Dumper.add_representer(list, short_list)
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
