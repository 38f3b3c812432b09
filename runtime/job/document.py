"""A YAML document with the place of every key: YAML 1.2 core meaning on top of PyYAML's marks.

Only `true` and `false` are booleans; `off`, `no` and `yes` are text; `1e-4` is a number; `2:30` is text. Duplicate
keys, unknown tags, aliases that explode and more than one document are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from runtime.errors import Problem, SpecError

Path = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 50


class _CoreLoader(yaml.SafeLoader):
    """Scanner, parser and composer of PyYAML with the resolvers of the YAML 1.2 core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML reads it from the class

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        depth = getattr(self, "_depth", 0) + 1
        if depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(
                None, None, f"nested deeper than {MAX_DEPTH} levels", self.peek_event().start_mark
            )
        self._depth = depth
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth = depth - 1


_RESOLVERS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"null|Null|NULL|~|", "nN~\0"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
)
for _tag, _pattern, _first in _RESOLVERS:
    _CoreLoader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), [c.strip("\0") for c in _first])


@dataclass
class Document:
    """Plain data and the place of every key and item in it."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """`file:line:column` of `path`, or of its nearest ancestor that stands in the file."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, f"{self.name}:1:1")

    def has(self, path: Path) -> bool:
        """Whether `path` stands in the document."""
        return path in self.places

    def set(self, assignment: str) -> None:
        """Apply one `--set key.path=value`; the value is read as YAML.

        Raises:
            SpecError: if it is not an assignment, or leads through something that is not a mapping.
        """
        origin = f"--set {assignment}:1:1"
        key, equals, text = assignment.partition("=")
        parts = tuple(part.strip() for part in key.split("."))
        if not equals or not all(parts):
            raise SpecError([Problem(origin, "", "not an assignment", "key.path=value",
                                     "write for example --set train.epochs=3")])  # fmt: skip
        node: dict[str, Any] = self.data
        for depth, part in enumerate(parts[:-1], start=1):
            child = node.setdefault(part, {})
            if isinstance(child, str):
                child = node[part] = {"name": child}
            if not isinstance(child, dict):
                raise SpecError([Problem(origin, ".".join(parts[:depth]), f"is {child!r}, not a mapping",
                                         "a key of a mapping", "set the whole value instead")])  # fmt: skip
            node = child
            self.places.setdefault(parts[:depth], origin)
        value = parse(f"value: {text}" if text else "value: null", origin, value_only=True)
        for path in [path for path in self.places if path[: len(parts)] == parts]:
            del self.places[path]
        node[parts[-1]] = value.data["value"]
        self.places[parts] = origin
        for path in value.places:
            if len(path) > 1:
                self.places[parts + path[1:]] = origin


def parse(text: str | bytes, name: str, *, value_only: bool = False) -> Document:
    """Read one YAML mapping.

    Raises:
        SpecError: with every problem found, each with its place.
    """
    if len(text) > MAX_BYTES:
        raise SpecError([Problem(f"{name}:1:1", "", f"{len(text)} bytes", f"a spec of at most {MAX_BYTES} bytes",
                                 "point to data in files, do not put it into the spec")])  # fmt: skip
    node = _compose(_decode(text, name), name)
    if not isinstance(node, yaml.MappingNode):
        what = "is empty" if node is None else "is not a mapping"
        raise SpecError([Problem(f"{name}:1:1", "", f"the document {what}", "keys and values: `task: ...`",
                                 "start from one of the files in jobs/")])  # fmt: skip
    reader = _Reader(name, fixed=name if value_only else None)
    data = reader.read(node, ())
    if reader.problems:
        raise SpecError(reader.problems)
    return Document(name, data, reader.places)


def _decode(text: str | bytes, name: str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = text[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise SpecError([Problem(f"{name}:{line}:{column}", "", "a byte that is not UTF-8", "UTF-8 text",
                                 "save the file as UTF-8")]) from None  # fmt: skip


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        loader = _CoreLoader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        given = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise SpecError([Problem(f"{name}:{line}:{column}", "", given, "printable text", "remove it")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else f"{name}:1:1"
        what = error.problem or error.context or "not YAML"
        raise SpecError([Problem(place, "", what, "YAML: `key: value`, indented by spaces",
                                 "mend the line; tabs and unclosed brackets are usual causes")]) from None  # fmt: skip


class _Reader:
    """Turns nodes into plain data, noting places and problems."""

    def __init__(self, name: str, fixed: str | None) -> None:
        self.name, self.fixed = name, fixed
        self.places: dict[Path, str] = {}
        self.problems: list[Problem] = []
        self.nodes = 0

    def where(self, node: yaml.Node) -> str:
        if self.fixed is not None:
            return self.fixed
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def problem(self, node: yaml.Node, path: Path, given: str, possible: str, action: str) -> None:
        self.problems.append(Problem(self.where(node), dotted(path), given, possible, action))

    def read(self, node: yaml.Node, path: Path) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise SpecError([*self.problems, Problem(
                self.where(node), dotted(path), f"more than {MAX_NODES} values once aliases are expanded",
                "a short spec", "write the values out, without nested aliases",
            )])  # fmt: skip
        self.places.setdefault(path, self.where(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.read(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        if node.tag != "tag:yaml.org,2002:map":
            self._bad_tag(node, path)
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem(key_node, path, "a key that is not text", "plain keys", "write the key as a word")
                continue
            child = (*path, key)
            if key in data:
                self.problem(key_node, child, "the key stands here twice",
                             f"once (first at {self.places[child]})", "remove one of the two")  # fmt: skip
                continue
            self.places[child] = self.where(key_node)
            data[key] = self.read(value_node, child)
        return data

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "str":
                return text
            case "null" if text in ("null", "Null", "NULL", "~", ""):
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" | "float" as kind:
                return self._number(node, path, text, kind)
        return self._bad_tag(node, path)

    def _number(self, node: yaml.Node, path: Path, text: str, kind: str) -> Any:
        try:
            if kind == "int":
                base = 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10
                return int(text, base)
            return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", text.lower()))
        except ValueError:
            # Also the guard of Python against integers of thousands of digits.
            return self.problem(node, path, f"{text[:40]!r} is not a number", "a number", "write digits")

    def _bad_tag(self, node: yaml.Node, path: Path) -> None:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        self.problem(node, path, f"the tag {tag} is not allowed", "plain text, numbers, lists and mappings",
                     "remove the tag")  # fmt: skip


def dotted(path: Path) -> str:
    """`train.optimizer.lr` or `data.labels[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def dump(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that `parse` reads back to the same values."""

    class _Dumper(yaml.SafeDumper):
        yaml_implicit_resolvers = _CoreLoader.yaml_implicit_resolvers

    def short_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)

    _Dumper.add_representer(list, short_list)
    _Dumper.add_representer(tuple, short_list)
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
