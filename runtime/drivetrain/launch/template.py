"""Fills the template files of `launch --on`, in which {{name}} stands for a value.

How a value is written depends on the line: in a comment as it is; alone on a line as the lines of a text, or as YAML; after
`key: ` as YAML; elsewhere as words of the shell, quoted. A line whose value is None is left out, and so is a line that
begins with ##, which is for those who fill the file by hand.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from drivetrain.errors import SpecError
from drivetrain.launch import one_line

FOLDER = Path(__file__).with_name("templates")
_NAME = re.compile(r"\{\{(\w+)\}\}")
_LINE = re.compile(r"(?P<indent> *)((?P<key>[\w.-]+): )?\{\{(?P<name>\w+)\}\}")


class _PlainDumper(yaml.SafeDumper):
    """Writes YAML that every reader takes alike: without anchors, and with quotes where an old reader sees a boolean."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every part where it stands."""
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """Write several lines as they are, for instance a job file."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)


def fill(name: str, values: Mapping[str, object]) -> str:
    """The text of a template with its values.

    Raises:
        SpecError: if a name in the template has no value, a value is not used, or one in a comment is not on one line.
    """
    lines = [line for line in (FOLDER / name).read_text(encoding="utf-8").splitlines() if not line.startswith("##")]
    if mismatches := set(_NAME.findall("\n".join(lines))) ^ values.keys():
        raise SpecError(
            f"{FOLDER / name}: {', '.join(sorted(mismatches))}",
            f"each of these once or more, and no others: {', '.join(values)}",
            "correct the template, or install drivetrain again",
        )
    return "".join(f"{text}\n" for line in lines for text in _fill_line(line, values))


def _fill_line(line: str, values: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines that a line of a template becomes."""
    names = _NAME.findall(line)
    if any(values[name] is None for name in names):
        return
    if line.lstrip().startswith("# "):
        comment = _NAME.sub(lambda match: str(values[match[1]]), line)
        one_line.check({"a comment": comment})
        yield comment
    elif match := _LINE.fullmatch(line):
        value = values[match["name"]]
        if match["key"]:
            text = _dump({match["key"]: value})
        else:
            text = value if isinstance(value, str) else _dump(value) if value else ""
        rows = text.removesuffix("\n").split("\n") if text else []
        yield from (match["indent"] + row if row else "" for row in rows)
    else:
        yield _NAME.sub(lambda match: _quote(values[match[1]]), line)


def _dump(value: object) -> str:
    return yaml.dump(value, Dumper=_PlainDumper, sort_keys=False, width=100)


def _quote(value: object) -> str:
    """A value as words of the shell."""
    return shlex.join(value) if isinstance(value, list) else shlex.quote(str(value))
