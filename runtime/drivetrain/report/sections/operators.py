"""The operators that profiled steps spent their time on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.report.blocks import Section, Table, Text, Tone
from drivetrain.report.formatting import format_json, format_number, format_share, shorten

# The first word that occurs in an operator's name counts: mkldnn contains mkl.
_LIBRARIES = {
    "mkldnn": "oneDNN",
    "onednn": "oneDNN",
    "mkl": "MKL",
    "cudnn": "cuDNN",
    "cublas": "cuBLAS",
    "triton": "Triton",
    "aten::": "torch",
}


def operators_section(trace: Mapping[str, Any]) -> Section | None:
    """The most expensive operators of the profiled steps; None if nothing was profiled."""
    try:
        steps, total = int(trace["steps"]), float(trace["total"])
        rows = tuple(_format_row(row, steps, total) for row in trace["operators"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # a damaged file, or one of no steps
        return None
    if not rows:
        return None
    where = "kernels on the GPU" if trace.get("device") == "cuda" else "operators on the CPU, in the calling thread"
    text = f"Average of {steps} steps after warm-up, {where}; time without called operators. Open trace.json.gz in Perfetto (ui.perfetto.dev)."
    table = Table(("operator", "library", "ms per step", "share", "calls per step"), rows)
    return Section("operators", "Slowest operators", (Text(text, Tone.QUIET), table))


def _format_row(row: Mapping[str, Any], steps: int, total: float) -> tuple[str, ...]:
    name, seconds = format_json(row["name"]), float(row["seconds"])
    calls = int(row["calls"]) / steps
    return (
        shorten(name, 80),
        _find_library(name),
        f"{seconds / steps * 1000:.3g}",
        format_share(seconds / total),
        format_number(round(calls)) if calls >= 1 else f"{calls:.1f}",
    )


def _find_library(name: str) -> str:
    """The library that the operator's name refers to."""
    lowered = name.lower()
    return next((library for word, library in _LIBRARIES.items() if word in lowered), "")
