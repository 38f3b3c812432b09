"""Documents: what YAML 1.2 core values mean, where they stand, and that `dump` is read back as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest

from drivetrain.errors import SpecError
from drivetrain.job import dot_key
from drivetrain.job.formatting import format_value, printable
from drivetrain.job_spec.yaml_file import dump, parse, read, set_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("tRUE", "tRUE"),
        ("null", None),
        ("~", None),
        ("", None),
        ("Null", None),
        ("none", "none"),
        ("3", 3),
        ("-3", -3),
        ("+3", 3),
        ("007", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1e-4", 1e-4),
        ("1E3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5e+3", -1500.0),
        ("1e", "1e"),
        (".", "."),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("inf", "inf"),
        ("nan", "nan"),
        ("2:30", "2:30"),
        ("190:20:30", "190:20:30"),
        ("2024-05-31", "2024-05-31"),
        ("1.2.3", "1.2.3"),
        ("'3'", "3"),
        ('"true"', "true"),
        ("!!str 3", "3"),
        ("!!int 3", 3),
        ("!!float 3", 3.0),
        ("!!null ''", None),
        ("=", "="),
        ("<<", "<<"),
        ("4g", "4g"),
        ("validation/f1", "validation/f1"),
        ("é 😀", "é 😀"),
        ("[1, [a, null]]", [1, ["a", None]]),
        ("{a: {b: 1e-4}}", {"a": {"b": 1e-4}}),
        ("|\n  a\n  b", "a\nb\n"),
        (">-\n  a\n  b", "a b"),
    ],
)
def test_the_meaning_of_a_value(text: str, value: Any) -> None:
    parsed = parse(f"key: {text}\n", "f").data["key"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(parse("key: .nan", "f").data["key"])


def test_every_key_and_item_has_its_place() -> None:
    document = parse("a: 1\nb:\n  c: [x, {d: 2}]\n  'e f': 3\n", "job.yaml")
    assert document.places == {
        (): "job.yaml:1:1",
        ("a",): "job.yaml:1:1",
        ("b",): "job.yaml:2:1",
        ("b", "c"): "job.yaml:3:3",
        ("b", "c", 0): "job.yaml:3:7",
        ("b", "c", 1): "job.yaml:3:10",
        ("b", "c", 1, "d"): "job.yaml:3:11",
        ("b", "e f"): "job.yaml:4:3",
    }
    assert document.has(("b", "c", 1))
    assert not document.has(("b", "x"))
    assert document.nearest(("b", "c", 1, "x", "y")) == ("b", "c", 1)
    assert document.place(("b", "x", "y")) == "job.yaml:2:1"
    assert document.place(("x",)) == "job.yaml:1:1"


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"# comment\n", b"---\n", b"%YAML 1.2\n---\n"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_text_around_a_yaml_document(start: bytes, end: bytes) -> None:
    assert parse(start + b"a: 1" + end + b"b: [2]" + end, "f").data == {"a": 1, "b": [2]}


def test_an_alias_is_a_copy() -> None:
    document = parse("a: &x {n: [1]}\nb: *x\n", "f")
    set_value(document, "b.n=2")
    assert document.data == {"a": {"n": [1]}, "b": {"n": 2}}


def test_reading_goes_on_behind_what_cannot_be_read() -> None:
    document = read("a: !foo 1\nb: 2\n1: 3\nb: 4\n", "f")
    assert document.data == {"a": None, "b": 2, "1": 3}
    assert document.unread == [("a",), ("1",)]
    assert [(problem.place, problem.key) for problem in document.problems] == [
        ("f:1:4", "a"),
        ("f:3:1", "1"),
        ("f:4:1", "b"),
    ]
    with pytest.raises(SpecError, match=r"f:1:4: a: the tag !foo is not allowed\n"):
        parse("a: !foo 1\nb: 2\n", "f")


@pytest.mark.parametrize(
    ("assignment", "data"),
    [
        ("a=2", {"a": 2, "b": "sgd"}),
        ("c=1e-4", {"a": 1, "b": "sgd", "c": 1e-4}),
        ("c.d.e=x", {"a": 1, "b": "sgd", "c": {"d": {"e": "x"}}}),
        ("b.lr=0.1", {"a": 1, "b": {"name": "sgd", "lr": 0.1}}),
        ("a=", {"a": None, "b": "sgd"}),
        ("a=null", {"a": None, "b": "sgd"}),
        ("a=# nothing", {"a": None, "b": "sgd"}),
        ("a=no", {"a": "no", "b": "sgd"}),
        ("a=x=y", {"a": "x=y", "b": "sgd"}),
        ("a=[1, {c: 2:30}]", {"a": [1, {"c": "2:30"}], "b": "sgd"}),
        ("a={c: 1}", {"a": {"c": 1}, "b": "sgd"}),
        (" a = 3", {"a": 3, "b": "sgd"}),
    ],
)
def test_an_assignment_is_read_as_yaml(assignment: str, data: dict[str, Any]) -> None:
    document = parse("a: 1\nb: sgd\n", "f")
    set_value(document, assignment)
    assert document.data == data


def test_places_after_assignments() -> None:
    document = parse("a: {x: 1, y: 2}\nb: sgd\n", "f")
    set_value(document, "a={z: [7]}")
    set_value(document, "b.lr=3")
    assert not document.has(("a", "x"))
    assert document.place(("a", "z", 0)) == "--set a={z: [7]}:1:8"
    assert document.place(("b", "lr")) == "--set b.lr=3:1:6"
    assert document.place(("b", "name")) == "f:2:1"
    set_value(document, "b.lr=4")
    assert document.place(("b", "lr")) == "--set b.lr=4:1:6"


HARD = {
    "words": [
        "yes",
        "no",
        "on",
        "off",
        "null",
        "~",
        "true",
        "NULL",
        "",
        " ",
        "-",
        "=",
        "<<",
        "?",
        "&a",
        "*a",
        "!x",
        "#",
        "%",
    ],
    "numbers": ["1", "1e-4", "0x1F", "0o17", ".5", ".inf", ".nan", "+1", "2:30", "1_000", "2024-05-31"],
    "texts": [
        "a: b",
        "a # b",
        " lead",
        "trail ",
        "a\nb\n",
        "\ttab",
        "é\x85\u2028😀\x07",
        "word " * 60,
        "'",
        '"',
        "[",
        "{a}",
    ],
    "values": [0, -1, 10**50, 1e-8, 1e300, 5.0, -0.0, math.inf, True, False, None, [], {}, [[1, [2]], {"k": [{}]}]],
    "keys": {"<<": 1, "1": 2, "null": 3, "yes": 4, "": 5, "a b": 6, "a: b": 7, "- x": 8, "é": 9},
}


def test_what_is_dumped_is_read_back_as_it_was() -> None:
    text = dump(HARD)
    assert parse(text, "f").data == HARD
    assert dump(parse(text, "f").data) == text
    parsed_values = parse(text, "f").data["values"]
    assert [type(value) for value in parsed_values] == [type(value) for value in HARD["values"]]  # type: ignore[attr-defined]


def test_a_dump_reads_well() -> None:
    data = {"name": "a", "train": {"lr": 1e-4, "betas": [0.9, 0.999], "clip_norm": None, "on": "on"}}
    assert dump(data) == "name: a\ntrain:\n  lr: 0.0001\n  betas: [0.9, 0.999]\n  clip_norm: null\n  on: on\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        (math.inf, ".inf"),
        (-math.inf, "-.inf"),
        (math.nan, ".nan"),
        ("a", "'a'"),
        ("a\n\x1b", "'a\\n\\x1b'"),
        ({"a": 1}, "a mapping"),
        ([None, [1]], "[null, [1]]"),
        ("x" * 70, f"'{'x' * 59}…'"),
        (["x" * 50] * 3, f"['{'x' * 50}', '{'x' * 23}…"),
    ],
)
def test_values_in_messages(value: Any, text: str) -> None:
    assert format_value(value) == text


def test_key_paths_in_messages() -> None:
    assert dot_key(()) == ""
    assert dot_key(("data", "labels", 2, "x")) == "data.labels[2].x"
    assert dot_key(("a\n", 0)) == "a\\n[0]"
    assert printable("\ud800" + "x" * 80, 10) == "\\ud800xxx…"
