"""The reference of the spec, and the golden file of the optimizations, are those that are made now, and leave nothing out."""

from __future__ import annotations

import re

import pytest

from docs.generate import reference
from docs.generate.reference import _type
from drivetrain import optimizations
from drivetrain.job_spec import load_job as job_spec
from tests.paths import DOCS, GOLDEN


def test_the_page_of_the_spec_is_current() -> None:
    assert (DOCS / "spec.md").read_text().rstrip() == reference.spec_page().rstrip(), "run `make reference`"


def test_the_golden_file_of_the_optimizations_is_current() -> None:
    golden = GOLDEN / "optimizations.md"
    assert golden.read_text().rstrip() == reference.optimizations_page().rstrip(), "run `make reference`"


def test_every_field_of_the_spec_has_its_meaning() -> None:
    page = reference.spec_page()
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == set(job_spec.schema()["$defs"])
    fields = [line for line in page.splitlines() if line.startswith("- **")]
    dumb = [line for line in fields if not line.split("): ", 1)[1]]
    assert fields
    assert dumb == []


def test_a_field_of_two_sections_is_explained_once() -> None:
    page = reference.spec_page()
    (section,) = re.findall(r"^## CustomTrain$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert section.endswith("- all others: as in [Train](#train)\n\n")
    assert "- `weight_decay`: as in [Adam](#adam)\n" in page
    assert "**loss**" in section
    lines = [line for line in page.splitlines() if line.startswith("- **")]
    assert len(lines) == len(set(lines))


def test_links_lead_to_sections() -> None:
    page = reference.spec_page()
    sections = {name.lower() for name in re.findall(r"^## (\w+)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= sections


def test_a_name_links_to_the_section_that_it_selects() -> None:
    defs = {"Sgd": {"properties": {"name": {"const": "sgd"}}}}
    either = {"anyOf": [{"enum": ["off", "sgd"]}, {"anyOf": [{"$ref": "#/$defs/Sgd"}, {"type": "null"}]}]}
    assert _type(either, defs) == "`off`, [`sgd`](#sgd) or `null`"


def test_every_optimization_says_what_it_does() -> None:
    page = reference.optimizations_page()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == [one.name for one in optimizations.every()]
    assert not re.search(r"\*\*: *$", page, re.MULTILINE), "a docstring is missing"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1}, "integer >=1"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number in (0,1]"),
        ({"anyOf": [{"type": "boolean"}, {"const": "auto"}]}, "true/false or `auto`"),
        ({"type": "integer", "minimum": 1, "maximum": 2**31 - 1}, "count"),
        ({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "count or 0"),
        ({"enum": ["a", 2]}, "`a` or `2`"),
        ({"enum": ["a", "b", "c"]}, "`a`, `b` or `c`"),
        ({"type": "array", "items": {"type": "string"}}, "list of text"),
        ({"$ref": "#/$defs/Adam"}, "[Adam](#adam)"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "mapping to number"),
        ({}, "anything"),
    ],
)
def test_types_in_readable_form(schema: dict[str, object], text: str) -> None:
    assert _type(schema) == text
