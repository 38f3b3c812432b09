"""Formats numbers, durations and values for a report."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from drivetrain.plan.plan import format_value
from drivetrain.system.printable import printable_text


def shorten(text: str, size: int) -> str:
    """Cut a text to `size` characters, with an ellipsis in the middle, since names often differ at their ends."""
    end_length = size // 3
    return text if len(text) <= size else f"{text[: size - end_length - 1]}…{text[len(text) - end_length :]}"


def format_number(value: float | None) -> str:
    """Format with four significant digits, whole numbers in full."""
    if value is None:
        return "unknown"
    if not math.isfinite(value):
        return "not finite"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def align_numbers(values: Sequence[float]) -> list[str]:
    """Format numbers with the same decimals, so that the largest has four significant digits.

    Whole numbers, and numbers too small for these decimals, get the form of `format_number`.
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if not largest or all(float(value).is_integer() for value in values if math.isfinite(value)):
        return [format_number(value) for value in values]
    # A share of exactly 1 has the decimals of those below it.
    decimals = min(max(3 - math.floor(math.log10(largest if largest > 1 else 0.99 * largest)), 0), 6)
    half_digit = 0.5 * 10**-decimals
    fits = [math.isfinite(value) and (not value or abs(value) >= half_digit) for value in values]
    return [f"{x:,.{decimals}f}" if ok else format_number(x) for x, ok in zip(values, fits, strict=True)]


def format_tick(value: float) -> str:
    """Format a number for an axis: 50k, 0.25, 1e-4."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    text = f"{value:.4g}"
    return re.sub(r"e([-+])0*", lambda match: f"e{match[1].strip('+')}", text)


def format_duration(seconds: float | None) -> str:
    """Return the seconds as a readable duration."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, seconds_over = divmod(round(seconds), 60)
    hours, minutes_over = divmod(minutes, 60)
    return f"{hours} h {minutes_over:02} min" if hours else f"{minutes} min {seconds_over:02} s"


def format_share(share: float) -> str:
    """Format a fraction in percent."""
    return f"{100 * share:.1f} %".replace(".0 %", " %")


PERCENT_METRICS = ("accuracy", "f1", "micro_f1", "balanced_accuracy")
"""Last parts of the names of metrics that people say in percent."""


def format_score(metric: str, value: float) -> str:
    """Format the value of a metric, in percent where people say it so."""
    in_percent = metric.rsplit("/", 1)[-1] in PERCENT_METRICS and 0 <= value <= 1
    return format_share(value) if in_percent else format_number(value)


def format_count(count: float, noun: str) -> str:
    """Format a number with its noun, which gets an s: `1 epoch`, `2 epochs`."""
    return f"{format_number(count)} {noun}" + ("" if count == 1 else "s")


def format_json(value: object) -> str:
    """Format any JSON value for people."""
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float | str):
        return printable_text(format_value(value))
    return printable_text(json.dumps(value, ensure_ascii=False))


def to_strict_json(value: object) -> Any:
    """Return the value as strict JSON, with non-finite numbers as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): to_strict_json(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [to_strict_json(child) for child in value]
    return printable_text(value) if isinstance(value, str) else value
