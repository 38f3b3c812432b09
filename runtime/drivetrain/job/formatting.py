"""Formats key paths and values for messages: on one line, printable, limited in length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

DETAILED_METRICS = ("balanced_accuracy", "log_loss", "brier", "ece", "average_precision", "kappa", "mape")
"""Metrics that are recorded and reported, but not shown in the lines on the terminal."""
Path = tuple[str | int, ...]
"""Keys and list indices from the root of a document."""


def dot_key(path: Path) -> str:
    """Format a path as printable text, such as `train.optimizer.lr` or `data.labels[2]`."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{printable(key)}" if text else printable(key)
    return text


def readable(name: str) -> str:
    """Return a file name with `\\udcf1` for each byte that is not UTF-8, so that it can be printed and stored."""
    return name.encode("utf-8", "backslashreplace").decode()


def printable(text: str, max_characters: int = 60) -> str:
    """Return a text on one line without control characters, truncated to `max_characters` characters."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: max_characters + 1])
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


_CREDENTIAL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/@]*@|^((?:s3|gs|az)://[^?]*\?).+", re.DOTALL)
"""Credentials in an address: everything before its @, and the query of a signed address."""


def _hide_credential(match: re.Match[str]) -> str:
    return f"{match[1]}***@" if match[1] else f"{match[2]}***"


def format_value(value: object) -> str:
    """Format a value in YAML notation, for messages."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case float() if value - value != 0:
            return f"{value}".replace("inf", ".inf").replace("nan", ".nan")
        case dict():
            return "a mapping"
        case list():
            return printable(f"[{', '.join(format_value(item) for item in value[:10])}]", 80)
        case str():
            return f"'{printable(_CREDENTIAL.sub(_hide_credential, value))}'"
    return str(value)


def format_metric(value: float) -> str:
    """Format a loss or metric: four decimals, four significant digits of a small value, six digits of a large value."""
    if abs(value) >= 1000:
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.4g}"


def choose_score(metric: str, names: Iterable[str]) -> str:
    """Return a metric that people can judge: for a loss, accuracy or else the first other score of the same output."""
    head, _, kind = metric.rpartition("/")
    scores = [name for name in names if name.rpartition("/")[0] == head]
    scores = [name for name in scores if name.rpartition("/")[2] not in ("loss", *DETAILED_METRICS)]
    if kind != "loss" or not scores:
        return metric
    return f"{head}/accuracy" if f"{head}/accuracy" in scores else scores[0]


def format_metrics(metrics: Mapping[str, float], required: str, separator: str) -> str:
    """Format names and values on one line, without detailed metrics except the `required` one."""
    visible = [name for name in metrics if name == required or name.rsplit("/", 1)[-1] not in DETAILED_METRICS]
    return separator.join(f"{name} {format_metric(metrics[name])}" for name in visible)
