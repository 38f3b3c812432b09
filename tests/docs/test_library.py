"""docs/library.md names every parameter of the library, and none that is not there."""

from __future__ import annotations

import inspect
import re

import drivetrain
from drivetrain.job.embedded import EmbeddedTrain
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")


def list_documented(section: str) -> set[str]:
    """The words in the first column of the tables of a section."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`(\w+)`", row)}


def test_every_parameter_of_train_is_on_the_page() -> None:
    parameters = set(inspect.signature(drivetrain.train).parameters) - {"settings"}
    assert list_documented("Parameters") == parameters | set(EmbeddedTrain.model_fields)


def test_every_value_that_a_callback_is_told_is_on_the_page() -> None:
    assert list_documented("Callbacks") == set(drivetrain.TrainingInfo.__dataclass_fields__)


def test_every_parameter_of_prepare_is_on_the_page() -> None:
    assert list_documented("A loop of your own") == set(inspect.signature(drivetrain.prepare).parameters)
