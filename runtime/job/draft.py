"""A first job spec: keys with a value and the reason for it, written as commented YAML."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import yaml

from runtime.job.formatting import printable

REASONS = 34
"""Column where reasons begin, if the value is not longer."""
LONGEST = 200
"""Characters of a comment line; more would be no help."""
_PLAIN = re.compile(r"(\.{0,2}/)?[^\W\d][\w./-]*( [\w./-]+)*")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
"""What YAML, or older readers of it, take for something else than text."""


@dataclass(frozen=True)
class Entry:
    """One key of the spec."""

    key: str
    value: str
    """As YAML."""
    reason: str = ""


@dataclass
class Draft:
    """A first spec of a task."""

    task: str
    reason: str
    """Why this task."""
    found: list[str] = field(default_factory=list)
    """What the data hold."""
    choices: list[str] = field(default_factory=list)
    """What was taken where something else was possible, and how to take that."""
    data: list[Entry] = field(default_factory=list)
    model: Entry | None = None
    train: list[Entry] = field(default_factory=list)

    def text(self, name: str, heading: Sequence[str]) -> str:
        """The YAML file, with `heading` as its first comments."""
        about = [f"Found: {line}" for line in self.found] + [f"Choice: {line}" for line in self.choices]
        lines = [f"# {printable(line, LONGEST)}" for line in (*heading, *about)]
        lines += _lines([Entry("name", scalar(name)), Entry("task", self.task, self.reason)])
        lines += ["data:", *_lines(self.data, "  ")]
        lines += _lines([self.model] if self.model else [])
        lines += ["train:", *_lines(self.train, "  ")]
        return "\n".join(lines) + "\n"


def scalar(text: str) -> str:
    """A text as YAML on one line, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and text.isprintable() and text.lower() not in _WORDS:
        return text
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 30)).strip()


def flow(texts: Iterable[str]) -> str:
    """A list of texts as YAML on one line."""
    return f"[{', '.join(map(scalar, texts))}]"


def run_name(text: str) -> str:
    """The nearest name that a spec takes: letters, digits, dots, dashes and underscores; accents are dropped."""
    spelled = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", "".join(c for c in spelled if not unicodedata.combining(c)))
    return re.sub(r"^[^A-Za-z0-9]+", "", plain)[:64].rstrip("-") or "job"


def _lines(entries: Iterable[Entry], indent: str = "") -> list[str]:
    """Each key with its reason beside it, or above it where the value is long."""
    lines = []
    for entry in entries:
        line, reason = f"{indent}{entry.key}: {entry.value}", printable(entry.reason, LONGEST)
        if not reason:
            lines.append(line)
        elif len(line) + 2 <= REASONS + 6 and len(reason) <= 100:
            lines.append(f"{line:<{REASONS}}  # {reason}")
        else:
            lines += [f"{indent}# {reason}", line]
    return lines
