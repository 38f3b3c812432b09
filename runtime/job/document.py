"""Document: a YAML mapping as plain data with the place of every key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from runtime.errors import Problem, SpecError
from runtime.job.formatting import Path, dotted, printable, shown
from runtime.job.yaml_nodes import YamlNodeReader
from runtime.job.yaml_syntax import PREFIX, CoreLoader, compose


@dataclass
class Document:
    """Plain data and the place of every key and item in it."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    """What could not be read; the rest of the data stands."""
    unread: list[Path] = field(default_factory=list)
    """Paths of values that could not be read, and are None."""

    def place(self, path: Path) -> str:
        """`file:line:column` of `path`, or of its nearest ancestor that stands in the file."""
        return self.places.get(self.nearest(path), f"{self.name}:1:1")

    def nearest(self, path: Path) -> Path:
        """`path`, or its nearest ancestor that stands in the document."""
        while path and path not in self.places:
            path = path[:-1]
        return path

    def has(self, path: Path) -> bool:
        """Whether `path` stands in the document."""
        return path in self.places

    def set(self, assignment: str) -> None:
        """Apply one `--set key.path=value`; the value is read as YAML.

        Raises:
            SpecError: if it is not an assignment, or leads through something that is not a mapping.
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
        # Blanks in the place of the key make the columns right.
        root = compose(" " * (len(key) + 1) + text, origin)
        reader = YamlNodeReader(origin)
        value = reader.read(root, parts) if root else None
        if reader.problems:
            raise SpecError(reader.problems)
        node = self._mapping(parts, f"{origin}:1:1")
        for path in [path for path in self.places if path[: len(parts)] == parts]:
            del self.places[path]
        node[parts[-1]] = value
        self.places |= reader.places or {parts: f"{origin}:1:{len(key) + 2}"}

    def _mapping(self, parts: tuple[str, ...], origin: str) -> dict[str, Any]:
        """The mapping that holds the last of `parts`; mappings that are not there are made."""
        node: dict[str, Any] = self.data
        for depth, part in enumerate(parts[:-1], start=1):
            here = parts[:depth]
            child = node.setdefault(part, {})
            if isinstance(child, str):
                # `optimizer: sgd` is short for `optimizer: {name: sgd}`.
                child = node[part] = {"name": child}
                self.places[(*here, "name")] = self.places.pop(here, origin)
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
            self.places.setdefault(here, origin)
        return node


def parse(text: str | bytes, name: str) -> Document:
    """Read one YAML mapping.

    Raises:
        SpecError: with every problem found, each with its place.
    """
    document = read(text, name)
    if document.problems:
        raise SpecError(document.problems)
    return document


def read(text: str | bytes, name: str) -> Document:
    """Read one YAML mapping; values that cannot be read are None, and problems of the document.

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


def dump(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that `parse` reads back to the same values."""

    class _Dumper(yaml.SafeDumper):
        yaml_implicit_resolvers = CoreLoader.yaml_implicit_resolvers

    def short_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
        return dumper.represent_sequence(PREFIX + "seq", items, flow_style=True)

    _Dumper.add_representer(list, short_list)
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
