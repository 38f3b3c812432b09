"""The draft of a spec: keys with values and reasons, written as commented YAML."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from drivetrain.job.formatting import printable

REASON_COLUMN = 34
"""Column at which reasons start, if the value is not longer."""
MAX_COMMENT_CHARACTERS = 200
"""Largest length of a comment line, in characters."""
_PLAIN_SCALAR = re.compile(r"(\.{0,2}/)?[^\W\d][\w./-]*( [\w./-]+)*")
_RESERVED_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
"""Words that YAML, or an older YAML reader, does not read as text."""


@dataclass(frozen=True)
class Entry:
    """A key of the spec."""

    key: str
    value: str
    """Value in YAML notation."""
    reason: str = ""


@dataclass
class Draft:
    """The draft of a spec for a task."""

    task: str
    reason: str
    """Why this task was chosen."""
    found: list[str] = field(default_factory=list)
    """Facts found in the data."""
    choices: list[str] = field(default_factory=list)
    """Choices among alternatives, and how to choose another one."""
    data: list[Entry] = field(default_factory=list)
    model: Entry | None = None
    train: list[Entry] = field(default_factory=list)
    checkpoint: list[Entry] = field(default_factory=list)

    def text(self, name: str, heading: Sequence[str]) -> str:
        """Return the YAML file, starting with `heading` as comments."""
        remarks = [f"Found: {line}" for line in self.found] + [f"Choice: {line}" for line in self.choices]
        lines = [f"# {printable(line, MAX_COMMENT_CHARACTERS)}" for line in (*heading, *remarks)]
        lines += _format_lines([Entry("name", quote(name)), Entry("task", self.task, self.reason)])
        lines += ["data:", *_format_lines(self.data, "  ")]
        lines += _format_lines([self.model] if self.model else [])
        lines += ["train:", *_format_lines(self.train, "  ")]
        lines += ["checkpoint:", *_format_lines(self.checkpoint, "  ")] if self.checkpoint else []
        return "\n".join(lines) + "\n"


def quote(text: str) -> str:
    """Return a text as a YAML scalar on one line, in quotes if needed."""
    if _PLAIN_SCALAR.fullmatch(text) and text.isprintable() and text.lower() not in _RESERVED_WORDS:
        return text
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 30)).strip()


def quote_all(texts: Iterable[str]) -> str:
    """Return texts as a YAML list on one line."""
    return f"[{', '.join(map(quote, texts))}]"


def name_job_file(data: Path) -> Path:
    """Return the job file that `init` writes for data if no name is given."""
    return Path(f"{make_run_name(Path(os.path.abspath(data)).stem)}.yaml")


def make_run_name(text: str) -> str:
    """Make the most similar valid name: letters, digits, dots, dashes and underscores; accents are removed."""
    spelled = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", "".join(c for c in spelled if not unicodedata.combining(c)))
    return re.sub(r"^[^A-Za-z0-9]+", "", plain)[:64].rstrip("-") or "job"


def _format_lines(entries: Iterable[Entry], indent: str = "") -> list[str]:
    """Format each key with its reason on the same line, or on the line above if the value is long."""
    lines = []
    for entry in entries:
        line, reason = f"{indent}{entry.key}: {entry.value}", printable(entry.reason, MAX_COMMENT_CHARACTERS)
        if not reason:
            lines.append(line)
        elif len(line) + 2 <= REASON_COLUMN + 6 and len(reason) <= 100:
            lines.append(f"{line:<{REASON_COLUMN}}  # {reason}")
        else:
            lines += [f"{indent}# {reason}", line]
    return lines
