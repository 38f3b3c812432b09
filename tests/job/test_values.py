"""Value types: sizes, durations, intervals, names and shares, and which texts and numbers they take."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from drivetrain.job import values
from drivetrain.job.values import parse_duration, parse_interval
from drivetrain.system.units import parse_bytes
from tests.messages import saying


@pytest.mark.parametrize(
    "text", ["", "4", "g", "0g", "0.0g", "0.0001k", "-4g", "4 gigs", "4gg", "4e3m", "٤g", "4\tg", "9" * 13 + "g"]
)
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(PydanticCustomError, check=saying("size-with-its-unit-m-g")):
        values.check_size(text)
    with pytest.raises(ValueError, match="256m or 4g"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400), ("0.5h", 1800), ("5 m", 300)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "0s", "-5m", "5M", "5min", "2:30", "1h30m", "9" * 10 + "h", "infs"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(PydanticCustomError, check=saying("duration-with-its-unit-m-h")):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("epoch", ("epoch", 1)),
        ("200 steps", ("steps", 200)),
        ("1 step", ("steps", 1)),
        ("7steps", ("steps", 7)),
        ("5m", ("seconds", 300)),
    ],
)
def test_intervals(text: str, meaning: tuple[str, float]) -> None:
    assert parse_interval(text) == meaning


@pytest.mark.parametrize(
    "text", ["", "epochs", "2 epochs", "0 steps", "-1 steps", "1.5 steps", "steps", "5", "9" * 13 + " steps"]
)
def test_invalid_intervals(text: str) -> None:
    with pytest.raises(PydanticCustomError, check=saying("epoch-steps-steps-duration", 200)):
        parse_interval(text)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            values.Name,
            ["a", "digits", "patterns-v2", "A.b_c-9", "0", "a..b", "x" * 64],
            ["", ".", "..", "a/b", "-a", "_a", "a b", "a\n", "é", "x" * 65, 3, None, ["a"]],
        ),
        (values.Size, ["4g"], [4, 4.0, None, True, ["4g"]]),
        (values.Duration, ["5m"], [5, None]),
        (values.Interval, ["epoch"], [200, None, True]),
        (
            values.Address,
            ["http://h", "https://a.b:8443/c/d?e=f", "http://169.254.169.254/x", "http://[fd00:ec2::254]/"],
            [
                "",
                "h",
                "ftp://h",
                "file:///etc/passwd",
                "HTTP://h",
                "http://",
                "http://u:p@h/",
                "http://h/a b",
                "http://h#x",
                "http://h:0",
                "http://h:99999",
                "http://[:::]/",
                "http://h/\n",
                "http://h/" + "a" * 2000,
                3,
                None,
            ],
        ),
        (values.FilePath, ["a", "a/b.csv", " "], ["", 3, None]),
        (
            values.Validation,
            [0.1, 0.999, "held/out"],
            [0, 0.0, 1, 1.5, -0.1, True, "", None, [0.1], math.nan, math.inf],
        ),
        (values.Count, [1, 2**31 - 1], [0, -1, 2**31, 10**30, 1.0, "1", True, None]),
        (values.Natural, [0, 2**31 - 1], [-1, 2**31, 0.0, False]),
        (values.Fraction, [0, 0.0, 0.999], [1, 1.0, -0.001, "0.5", True]),
        (values.Probability, [0, 1, 0.5], [1.001, -0.001]),
        (values.Positive, [1e-300, 1, 10**20], [0, 0.0, -1, True, "1"]),
        (
            values.Range,
            [[0.1, 0.2], [1, 1]],
            [[0.2, 0.1], [0, 1], [0.5, 1.1], [0.5], [0.1, 0.2, 0.3], 0.5, ["0.1", "0.2"]],
        ),
        (values.PositiveRange, [[0.75, 1.333], [2, 3]], [[3, 2], [0, 1]]),
    ],
)
def test_valid_and_invalid_values_of_each_type(kind: Any, good: list[Any], bad: list[Any]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=values.Spec.model_config)
    for value in good:
        assert adapter.validate_python(value) in (value, tuple(value) if isinstance(value, list) else value)
    for value in bad:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)
