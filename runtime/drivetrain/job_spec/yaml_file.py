"""Reads the YAML of a spec as a document, changes it by `--set`, and writes it.

It implements the core schema of YAML 1.2 on top of PyYAML: only `true` and `false` are booleans; `off`, `no` and `yes` are
text; `1e-4` is a number; `2:30` is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import yaml

from drivetrain.errors import Problem, SpecError
from drivetrain.job.document import Document
from drivetrain.job.formatting import Path, dot_key, format_value, printable

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 50

PREFIX = "tag:yaml.org,2002:"
MERGE = PREFIX + "merge"
SCALARS = {
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    "null": (re.compile(r"null|Null|NULL|~|"), ["n", "N", "~", ""]),
    "int": (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), "-+0123456789"),
    "float": (
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        "-+0123456789.",
    ),
}
"""Pattern of each kind of plain scalar, and the characters that it can start with."""


class CoreLoader(yaml.SafeLoader):
    """PyYAML's scanner, parser and composer with the resolvers of the core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML reads it from the class

    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._stop(
                f"more than {MAX_NODES} values", "keep data in separate files and put their paths into the job file"
            )
        if self.depth == MAX_DEPTH:
            self._stop(
                f"nested deeper than {MAX_DEPTH} levels", "a job file needs at most six levels: close the brackets"
            )
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def _stop(self, problem: str, action: str) -> None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        raise yaml.composer.ComposerError(None, None, problem, mark, note=action)


for _kind, (_pattern, _initials) in SCALARS.items():
    # Compiled again with an end anchor, because PyYAML only matches at the start.
    CoreLoader.add_implicit_resolver(PREFIX + _kind, re.compile(f"(?:{_pattern.pattern})\\Z"), list(_initials))
# `<<` is not a value of the core schema. With its own tag it can be refused as a key, and `dump` quotes it.
CoreLoader.add_implicit_resolver(MERGE, re.compile(r"<<\Z"), ["<"])


def compose(text: str | bytes, name: str) -> yaml.Node | None:
    """Return the root node; None for an empty text or one with comments only.

    Raises:
        SpecError: with the first syntax error; the text after it cannot be read.
    """
    if len(text) > MAX_BYTES:
        action = "keep data in separate files and put their paths into the job file"
        raise syntax_error(name, 1, 1, f"more than {MAX_BYTES} bytes", f"a spec of at most {MAX_BYTES} bytes", action)
    loader = _build_loader(_decode(text, name), name)
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        position = error.problem_mark or error.context_mark or loader.get_mark()
        description, possible = printable(_describe_error(error), 160), "YAML: `key: value`, indented by spaces"
        action = error.note or "fix the line; tabs and unclosed brackets are usual causes"
        raise syntax_error(name, position.line + 1, position.column + 1, description, possible, action) from None
    except (ValueError, OverflowError):
        # PyYAML raises these for escapes such as "\UFFFFFFFF" and for endless version numbers.
        position = loader.get_mark()
        description, possible = "a number in an escape or a directive that is too large", "characters up to \\U0010FFFF"
        action = "write the character itself"
        raise syntax_error(name, position.line + 1, position.column + 1, description, possible, action) from None
    finally:
        loader.dispose()


def _describe_error(error: yaml.MarkedYAMLError) -> str:
    """Return PyYAML's message, with the start of the construct if it is on another line."""
    message, start, position = error.problem or "not YAML", error.context_mark, error.problem_mark
    if not error.context:
        return message
    if not error.context.startswith("while "):
        return f"{error.context}, {message}"
    if start and position and start.line != position.line:
        return f"{message}, {error.context} that starts at {start.line + 1}:{start.column + 1}"
    return message


def _build_loader(text: str, name: str) -> CoreLoader:
    """Build the loader of a text; raises SpecError for a character that YAML forbids."""
    try:
        return CoreLoader(text)
    except yaml.reader.ReaderError as error:
        text_before = text[: error.position]
        line, column = text_before.count("\n") + 1, error.position - text_before.rfind("\n")
        description = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise syntax_error(name, line, column, description, "printable text", "remove it") from None


def _decode(text: str | bytes, name: str) -> str:
    """Decode UTF-8 with or without a byte order mark; raises SpecError with the position of another byte."""
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Without the byte order mark, which editors do not count either.
        text_before = bytes(error.object[: error.start]).decode()
        line, column = text_before.count("\n") + 1, len(text_before) - text_before.rfind("\n")
        raise syntax_error(
            name, line, column, "a byte that is not UTF-8", "UTF-8 text", "save the file as UTF-8"
        ) from None


def syntax_error(name: str, line: int, column: int, description: str, possible: str, action: str) -> SpecError:
    """Return the error at a position of the text; lines and columns count from 1."""
    return SpecError(Problem(f"{name}:{line}:{column}", "", description, possible, action))


_MAX_NUMBER_CHARACTERS = 100
"""Largest number of characters of a number; Python could read a hexadecimal number of a million digits, but not print it."""


class _UnreadableNode(Exception):
    """A value or key that cannot be read, while its neighbors can."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class YamlNodeReader:
    """Converts the nodes of one document; fills `places`, `problems` and `unread`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: dict[Path, str] = {}
        self.problems: list[Problem] = []
        self.unread: list[Path] = []
        self._nodes = 0
        self._ancestors: set[int] = set()

    def read(self, node: yaml.Node, path: Path) -> Any:
        """Read the value of a node; None, with a problem recorded, if it cannot be read.

        Raises:
            SpecError: if expanded aliases make the document too large.
        """
        self._nodes += 1
        self.places.setdefault(path, self._position(node))
        try:
            if self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
                self._refuse_expansion(node, path)
            if isinstance(node, yaml.ScalarNode):
                return self._read_scalar(node, path)
            return self._read_collection(node, path)
        except _UnreadableNode as error:
            self.problems.append(error.problem)
            self.unread.append(path)
            return None

    def _position(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def _problem(self, node: yaml.Node, path: Path, description: str, possible: str, action: str) -> _UnreadableNode:
        return _UnreadableNode(Problem(self._position(node), dot_key(path), description, possible, action))

    def _refuse_expansion(self, node: yaml.Node, path: Path) -> NoReturn:
        excess = f"nested deeper than {MAX_DEPTH} levels" if len(path) > MAX_DEPTH else f"more than {MAX_NODES} values"
        description, action = f"{excess} once aliases are expanded", "write the values out instead of nested aliases"
        raise SpecError([*self.problems, self._problem(node, path, description, "a smaller file", action).problem])

    def _read_collection(self, node: yaml.Node, path: Path) -> dict[str, object] | list[object]:
        if id(node) in self._ancestors:
            description = "an alias that contains itself"
            raise self._problem(node, path, description, "values without cycles", "write the value out")
        self._ancestors.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == PREFIX + "map":
                return self._read_mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == PREFIX + "seq":
                return [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
        finally:
            self._ancestors.remove(id(node))
        raise self._bad_tag(node, path)

    def _read_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            try:
                key = self._read_key(key_node, path, data)
            except _UnreadableNode as error:
                self.problems.append(error.problem)
                continue
            self.places[*path, key] = self._position(key_node)
            data[key] = self.read(value_node, (*path, key))
        return data

    def _read_key(self, node: yaml.Node, path: Path, values: dict[str, object]) -> str:
        """Read a key of a mapping whose earlier keys are in `values`; raises _UnreadableNode if it cannot be used."""
        if not isinstance(node, yaml.ScalarNode):
            kind = "mapping" if isinstance(node, yaml.MappingNode) else "list"
            raise self._problem(node, path, f"a {kind} as a key", "text as keys", "write the key as a word")
        child = (*path, str(node.value))
        key = self._read_scalar(node, child)
        if not isinstance(key, str):
            action = f'write it in quotes: "{printable(node.value)}":'
            self.problems.append(self._problem(node, child, "a key that is not text", "text as keys", action).problem)
            # Read the key as text, so that it is not also reported as missing.
            self.unread.append(child)
            key = str(node.value)
        if node.tag == MERGE:
            raise self._problem(node, child, "YAML 1.2 has no merge keys", "each key written out", "copy the keys here")
        if key in values:
            possible = f"once (first at {self.places[child]})"
            raise self._problem(node, child, "the key appears twice", possible, "remove one of the two")
        return key

    def _read_scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        text, kind = str(node.value), node.tag.removeprefix(PREFIX)
        if kind in ("str", "merge"):
            return self._check_text(node, path, text)
        if kind not in SCALARS:
            raise self._bad_tag(node, path)
        if not SCALARS[kind][0].fullmatch(text):
            raise self._problem(
                node, path, f"'{printable(text)}' under the tag !!{kind}", "a value that fits the tag", "remove the tag"
            )
        if kind in ("null", "bool"):
            return text.lower() == "true" if kind == "bool" else None
        return self._read_number(node, path, text, kind)

    def _check_text(self, node: yaml.Node, path: Path, text: str) -> str:
        """Return a text that can be encoded as UTF-8; raises _UnreadableNode for half of a surrogate pair."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._problem(
                node,
                path,
                f"'{printable(text)}' contains half of a surrogate pair",
                "whole characters",
                "write the character itself instead of \\u escapes",
            ) from None
        return text

    def _read_number(self, node: yaml.Node, path: Path, text: str, kind: str) -> int | float:
        if len(text) > _MAX_NUMBER_CHARACTERS:
            possible = f"numbers of at most {_MAX_NUMBER_CHARACTERS} characters"
            raise self._problem(node, path, f"a number of {len(text)} characters", possible, "write a shorter number")
        if kind == "int":
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        # Python writes inf and nan without the dot.
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))

    def _bad_tag(self, node: yaml.Node, path: Path) -> _UnreadableNode:
        tag = printable(node.tag.replace(PREFIX, "!!"))
        return self._problem(
            node, path, f"the tag {tag} is not allowed", "plain text, numbers, lists and mappings", "remove the tag"
        )


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
    """Read a YAML mapping; a value that cannot be read becomes None, with a problem in the document.

    Raises:
        SpecError: if the text is not one YAML mapping.
    """
    node = compose(text, name)
    if not isinstance(node, yaml.MappingNode):
        description = f"the document {'is empty' if node is None else 'is not a mapping'}"
        action = "start from one of the examples in jobs/"
        raise syntax_error(name, 1, 1, description, "keys and values: `task: ...`", action)
    reader = YamlNodeReader(name)
    data = reader.read(node, ())
    if data is None:
        raise SpecError(reader.problems)
    return Document(name, data, reader.places, reader.problems, unread=reader.unread)


def set_value(document: Document, assignment: str) -> None:
    """Apply one `--set key.path=value`, whose value is read as YAML.

    Raises:
        SpecError: if it is not an assignment, or its path leads through a value that is not a mapping.
    """
    origin = f"--set {printable(assignment)}"
    key, equals, text = assignment.partition("=")
    path = tuple(name.strip() for name in key.split("."))
    if not equals or not all(name and name.isprintable() for name in path):
        action = "write for example --set train.epochs=3"
        raise syntax_error(origin, 1, 1, "not an assignment", "key.path=value", action)
    # Spaces in place of the key give the right columns.
    root = compose(" " * (len(key) + 1) + text, origin)
    reader = YamlNodeReader(origin)
    value = reader.read(root, path) if root else None
    if reader.problems:
        raise SpecError(reader.problems)
    put_value(document, path, value, f"{origin}:1:1", reader.places or {path: f"{origin}:1:{len(key) + 2}"})


def put_value(
    document: Document, path: tuple[str, ...], value: Any, location: str, places: Mapping[Path, str] | None = None
) -> None:
    """Set the value at a path.

    Args:
        document: document that is changed.
        path: keys that lead to the value; missing mappings are created.
        value: new value.
        location: position of the value, for messages.
        places: positions of the value and of all values inside it; None places all of them at `location`.

    Raises:
        SpecError: if the path leads through a value that is not a mapping.
    """
    node = _find_mapping(document, path, location)
    for replaced in [old_path for old_path in document.places if old_path[: len(path)] == path]:
        del document.places[replaced]
    node[path[-1]] = value
    document.places |= _place_values(path, value, location) if places is None else places


def _place_values(path: Path, value: object, location: str) -> dict[Path, str]:
    """Return the location for a value and for every value inside it, by path."""
    locations = {path: location}
    children: Iterable[tuple[Any, object]] = ()
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        locations |= _place_values((*path, key), child, location)
    return locations


def _find_mapping(document: Document, path: tuple[str, ...], origin: str) -> dict[str, object]:
    """Find the mapping that contains the last key of a path; missing mappings are created."""
    node: dict[str, Any] = document.data
    for depth, key in enumerate(path[:-1], start=1):
        parent = path[:depth]
        child = node.setdefault(key, {})
        if isinstance(child, str):
            # `optimizer: sgd` is short for `optimizer: {name: sgd}`.
            child = node[key] = {"name": child}
            document.places[(*parent, "name")] = document.places.pop(parent, origin)
        if not isinstance(child, dict):
            description, action = f"is {format_value(child)}, not a mapping", f"set all of {dot_key(parent)} instead"
            raise SpecError(Problem(origin, dot_key(parent), description, "a key of a mapping", action))
        node = child
        document.places.setdefault(parent, origin)
    return node


def dump(data: Mapping[str, object]) -> str:
    """Return plain values as YAML, from which `parse` reads the same values."""

    class _Dumper(yaml.SafeDumper):
        yaml_implicit_resolvers = CoreLoader.yaml_implicit_resolvers

    def short_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
        return dumper.represent_sequence(PREFIX + "seq", items, flow_style=True)

    _Dumper.add_representer(list, short_list)
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
