"""A row of the tables of bad specs: what is written, and all that has to be said about it."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain import optimizations
from drivetrain.job.job import CLASS_METRICS, KAPPA, RANKING_METRICS
from drivetrain.tasks import JOBS

HEAD = "name: a\ntask: image-classification\n"
SPEC = HEAD + "data: {train: data}\n"
"""The shortest spec that is valid."""

# Lists that grow with every task, optimization and setting.
LISTS = {
    "{tasks}": ", ".join(JOBS),
    "{optimizations}": ", ".join(["measure", *(o.name for o in optimizations.every())]),
    "{top}": "name, task, data, train, optimize, limits, checkpoint, monitor, baselines, track, environment, sweep, model",
    "{train}": ", ".join(JOBS["image-classification"].model_fields["train"].annotation.model_fields),
    "{metrics}": ", ".join(f"validation/{name}" for name in (*CLASS_METRICS, *RANKING_METRICS, KAPPA)),
    "{name}": "1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
    "{store}": "s3://BUCKET/PATH, gs://BUCKET/PATH; without user, password and query",
    "{yaml}": "YAML: `key: value`, indented by spaces",
    "{fix}": "fix the line; tabs and unclosed brackets are usual causes",
}


@dataclass(frozen=True)
class Row:
    """One mistake and the three parts of its message."""

    text: str | bytes
    """A whole spec, or what comes behind `SPEC` (with a `data:` of its own, behind `HEAD`)."""
    place: str
    """line:column"""
    given: str
    possible: str
    action: str
    code: int = 2

    def spec(self) -> bytes:
        """The file."""
        if isinstance(self.text, bytes):
            return self.text
        head = "" if "task:" in self.text else HEAD if self.text.startswith("data:") else SPEC
        return (head + self.text).encode()

    def message(self, file: str) -> str:
        """What stands on stderr."""
        parts = (f"{file}:{self.place}: {self.given}", f"  possible: {self.possible}", f"  do:       {self.action}")
        return fill_lists("\n".join(parts)) + "\n"

    def name(self) -> str:
        """The id of the test."""
        text = self.text if isinstance(self.text, str) else self.text.decode("latin-1")
        last = text.splitlines()[-1] if text else "nothing"
        return f"{last[:40]} {self.given[:40]}".encode("unicode_escape").decode()


def fill_lists(text: str) -> str:
    """The text with the lists that it names."""
    for name, items in LISTS.items():
        text = text.replace(name, items)
    return text
