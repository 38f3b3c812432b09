"""Figures: what follows from the blocks of a race, and how a table shows it. No torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

OURS, SOL = "drivetrain", "SOL"
REFERENCE = "reference loop"
"""How a table calls SOL, the speed of light: a loop by hand that does only the work the task needs."""
CERTAIN = 0.95
FORMATS = {"float32": "fp32", "bfloat16": "bf16"}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Between which of the values the true median lies with 95 %, whatever the distribution; all of them if too few."""
    found, count = sorted(values), len(values)
    outside = 0.0
    for left in range(count // 2):
        outside += 2 * math.comb(count, left) / 2**count
        if outside > 1 - CERTAIN:
            return (found[left - 1], found[-left]) if left else (found[0], found[-1])
    return found[0], found[-1]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Paired ratios: median, and its interval."""
    pairs = [one / other for one, other in zip(ours, theirs, strict=True)]
    return [statistics.median(pairs), *interval(pairs)]


def best(contenders: dict[str, Any], form: str) -> tuple[str, list[float]] | None:
    """The other trainer in its default or tuned form that is hardest to beat, and ours against it."""
    rows = [(name, found["ratio"]) for name, found in contenders.items() if found.get("form") == form]
    return min(rows, key=lambda row: row[1][0]) if rows else None


def mean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(statistics.mean(math.log(value) for value in values))


def shown(found: Sequence[float]) -> str:
    """A ratio with its interval."""
    return f"{found[0]:.2f} [{found[1]:.2f}-{found[2]:.2f}]"


def row_table(result: dict[str, Any]) -> str:
    """All contenders of a row."""
    lines = [
        f"### {result['row']}: {result['title']}",
        "",
        f"| | {'tokens' if result['texts'] else 'samples'}/s | ours / it [95 %] | of the GEMM | peak memory | command to model | accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in result["contenders"].items():
        if "failed" in found:
            lines.append(f"| {REFERENCE if name == SOL else name} | {found['failed']} | | | | | |")
            continue
        whole, accuracy = found.get("whole"), found.get("accuracy")
        lines.append(
            " | ".join(
                (
                    f"| {REFERENCE if name == SOL else name}",
                    f"{found['rate']:,.0f}" if found["rate"] >= 100 else f"{found['rate']:.1f}",
                    "" if name == OURS else shown(found["ratio"]),
                    f"{found['efficiency']:.0%}" if found.get("efficiency") else "",
                    f"{found['peak'] / 2**30:.1f} GiB",
                    f"{whole:.1f} s" if whole else "",
                    f"{accuracy:.2f} |" if accuracy else " |",
                )
            )
        )
    gemm = ", ".join(f"{FORMATS[name]} {value / 1e9:,.0f}" for name, value in result["gemm"].items())
    lines += [
        "",
        f"{result['rounds']} rounds on {result['date']}; GEMM in GFLOP/s: {gemm}; plan settled in "
        f"{result['settled']:.0f} s; the {REFERENCE} and the tuned trainers compute in {result['precision']}. "
        f"Plan: {', '.join(f'{name} {value}' for name, value in result['plan'].items())}.",
    ]
    return "\n".join(lines)


def summary(results: Sequence[dict[str, Any]]) -> str:
    """One line a row, and the geometric means."""
    lines = [
        f"| | against the best other trainer, default settings | against the best other trainer, tuned | against the {REFERENCE} | command to model, against the fastest other trainer |",
        "|---|---|---|---|---|",
    ]
    columns: dict[str, list[float]] = {}
    for result in results:
        contenders = result["contenders"]
        cells = [f"**{result['row']}** {result['title']}"]
        for form in ("default", "tuned"):
            found = best(contenders, form)
            cells.append(f"{shown(found[1])} ({found[0]})" if found else "")
            if found:
                columns.setdefault(form, []).append(found[1][0])
        if "ratio" in contenders.get(SOL, {}):
            cells.append(shown(contenders[SOL]["ratio"]))
            columns.setdefault(SOL, []).append(contenders[SOL]["ratio"][0])
        else:
            cells.append("")
        others = {
            name: x["whole"]
            for name, x in contenders.items()
            if x.get("form") in ("default", "tuned") and x.get("whole")
        }
        own = contenders[OURS].get("whole")
        fastest = min(others, key=others.__getitem__, default=None)
        cells.append(f"{own:.0f} s, {others[fastest]:.0f} s ({fastest})" if own and fastest else "")
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{mean(columns[key]):.2f}" if key in columns else "" for key in ("default", "tuned", SOL)]
    lines.append(f"| geometric mean, rows: {len(results)} | {' | '.join(means)} | |")
    return "\n".join(lines)
