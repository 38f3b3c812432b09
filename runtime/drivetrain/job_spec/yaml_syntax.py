"""YAML 1.2 core schema on top of PyYAML: text to nodes with positions, or the first syntax error.

Only `true` and `false` are booleans; `off`, `no` and `yes` are text; `1e-4` is a number; `2:30` is text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from drivetrain.errors import Problem, SpecError
from drivetrain.job.formatting import printable

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
"""The pattern of each kind of plain scalar, and the characters it can start with."""


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


for _kind, (_pattern, _first) in SCALARS.items():
    # Compiled again with an end anchor, because PyYAML only matches at the start.
    CoreLoader.add_implicit_resolver(PREFIX + _kind, re.compile(f"(?:{_pattern.pattern})\\Z"), list(_first))
# Not a value of the core schema: its own tag makes it possible to refuse it as a key, and `dump` quotes it.
CoreLoader.add_implicit_resolver(MERGE, re.compile(r"<<\Z"), ["<"])


def compose(text: str | bytes, name: str) -> yaml.Node | None:
    """The root node; None if there is nothing but comments.

    Raises:
        SpecError: with the first syntax error, after which nothing can be read.
    """
    if len(text) > MAX_BYTES:
        action = "keep data in separate files and put their paths into the job file"
        raise syntax_error(name, 1, 1, f"more than {MAX_BYTES} bytes", f"a spec of at most {MAX_BYTES} bytes", action)
    loader = _loader(_decode(text, name), name)
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark or loader.get_mark()
        raise syntax_error(
            name,
            mark.line + 1,
            mark.column + 1,
            printable(_describe_error(error), 160),
            "YAML: `key: value`, indented by spaces",
            error.note or "fix the line; tabs and unclosed brackets are usual causes",
        ) from None
    except (ValueError, OverflowError):
        # PyYAML raises these for escapes such as "\UFFFFFFFF" and for endless version numbers.
        mark = loader.get_mark()
        raise syntax_error(
            name,
            mark.line + 1,
            mark.column + 1,
            "a number in an escape or a directive that is too large",
            "characters up to \\U0010FFFF",
            "write the character itself",
        ) from None
    finally:
        loader.dispose()


def _describe_error(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's message, and the start of the construct if that is on another line."""
    message, start, mark = error.problem or "not YAML", error.context_mark, error.problem_mark
    if not error.context:
        return message
    if not error.context.startswith("while "):
        return f"{error.context}, {message}"
    if start and mark and start.line != mark.line:
        return f"{message}, {error.context} that starts at {start.line + 1}:{start.column + 1}"
    return message


def _loader(text: str, name: str) -> CoreLoader:
    try:
        return CoreLoader(text)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        description = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise syntax_error(name, line, column, description, "printable text", "remove it") from None


def _decode(text: str | bytes, name: str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Without the byte order mark, which editors do not count either.
        before = bytes(error.object[: error.start]).decode()
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise syntax_error(
            name, line, column, "a byte that is not UTF-8", "UTF-8 text", "save the file as UTF-8"
        ) from None


def syntax_error(name: str, line: int, column: int, description: str, possible: str, action: str) -> SpecError:
    """The error at a place of the text."""
    return SpecError(Problem(f"{name}:{line}:{column}", "", description, possible, action))
