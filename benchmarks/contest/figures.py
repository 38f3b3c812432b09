"""Figures computed from the blocks of a race, and their tables. No torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

OURS, SOL = "drivetrain", "SOL"
REFERENCE = "reference loop"
"""How a table calls SOL, the speed of light: a loop by hand that does only the work the task needs."""
CONFIDENCE = 0.95
FORMATS = {"float32": "fp32", "bfloat16": "bf16"}


def compute_interval(values: Sequence[float]) -> tuple[float, float]:
    """Between which of the values the true median lies with 95 %, whatever the distribution; all of them if too few."""
    ordered, count = sorted(values), len(values)
    outside = 0.0
    for cut in range(count // 2):
        outside += 2 * math.comb(count, cut) / 2**count
        if outside > 1 - CONFIDENCE:
            return (ordered[cut - 1], ordered[-cut]) if cut else (ordered[0], ordered[-1])
    return ordered[0], ordered[-1]


def compute_ratio(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Paired ratios: median, and its interval."""
    pairs = [our_rate / their_rate for our_rate, their_rate in zip(ours, theirs, strict=True)]
    return [statistics.median(pairs), *compute_interval(pairs)]


def find_best(contenders: dict[str, Any], form: str) -> tuple[str, list[float]] | None:
    """The other trainer in its default or tuned form that is hardest to beat, and ours against it."""
    rows = [(name, figures["ratio"]) for name, figures in contenders.items() if figures.get("form") == form]
    return min(rows, key=lambda row: row[1][0]) if rows else None


def compute_geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(statistics.mean(math.log(value) for value in values))


def format_ratio(ratio: Sequence[float]) -> str:
    """A ratio with its interval."""
    return f"{ratio[0]:.2f} [{ratio[1]:.2f}-{ratio[2]:.2f}]"


def format_row(result: dict[str, Any]) -> str:
    """All contenders of a row."""
    lines = [
        f"### {result['row']}: {result['title']}",
        "",
        f"| | {'tokens' if result['texts'] else 'samples'}/s | ours / it [95 %] | of the GEMM | peak memory | command to model | accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, figures in result["contenders"].items():
        if "failed" in figures:
            lines.append(f"| {REFERENCE if name == SOL else name} | {figures['failed']} | | | | | |")
            continue
        total_seconds, accuracy = figures.get("whole"), figures.get("accuracy")
        lines.append(
            " | ".join(
                (
                    f"| {REFERENCE if name == SOL else name}",
                    f"{figures['rate']:,.0f}" if figures["rate"] >= 100 else f"{figures['rate']:.1f}",
                    "" if name == OURS else format_ratio(figures["ratio"]),
                    f"{figures['efficiency']:.0%}" if figures.get("efficiency") else "",
                    f"{figures['peak'] / 2**30:.1f} GiB",
                    f"{total_seconds:.1f} s" if total_seconds else "",
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


def format_summary(results: Sequence[dict[str, Any]]) -> str:
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
            best = find_best(contenders, form)
            cells.append(f"{format_ratio(best[1])} ({best[0]})" if best else "")
            if best:
                columns.setdefault(form, []).append(best[1][0])
        if "ratio" in contenders.get(SOL, {}):
            cells.append(format_ratio(contenders[SOL]["ratio"]))
            columns.setdefault(SOL, []).append(contenders[SOL]["ratio"][0])
        else:
            cells.append("")
        their_seconds = {
            name: figures["whole"]
            for name, figures in contenders.items()
            if figures.get("form") in ("default", "tuned") and figures.get("whole")
        }
        our_seconds = contenders[OURS].get("whole")
        fastest = min(their_seconds, key=their_seconds.__getitem__, default=None)
        cells.append(
            f"{our_seconds:.0f} s, {their_seconds[fastest]:.0f} s ({fastest})" if our_seconds and fastest else ""
        )
        lines.append(f"| {' | '.join(cells)} |")
    means = [
        f"{compute_geometric_mean(columns[key]):.2f}" if key in columns else "" for key in ("default", "tuned", SOL)
    ]
    lines.append(f"| geometric mean, rows: {len(results)} | {' | '.join(means)} | |")
    return "\n".join(lines)


def format_whole_runs(results: Sequence[dict[str, Any]]) -> str:
    """A line a row: seconds to the model, and the ratio to the tuned trainer that is fastest, by the rounds' medians."""
    lines = [
        "| | Drivetrain | with simple models and report | fastest tuned trainer | theirs / ours | accuracy, ours and theirs |",
        "|---|---|---|---|---|---|",
    ]
    ratios = []
    for result in results:
        runs: dict[str, list[dict[str, float]]] = result["runs"]
        seconds = {name: [run["seconds"] for run in rounds] for name, rounds in runs.items()}
        peers = {name: statistics.median(values) for name, values in seconds.items() if name != OURS}
        fastest = min(peers, key=peers.__getitem__)
        ratio = compute_ratio(seconds[fastest], seconds[OURS])
        ratios.append(ratio[0])
        command_seconds = statistics.median(run["command_seconds"] for run in runs[OURS])
        accuracies = [statistics.median(run["accuracy"] for run in runs[name]) for name in (OURS, fastest)]
        lines.append(
            f"| **{result['row']}** {result['title']} | {_format_spread(seconds[OURS])} | {command_seconds:.1f} s | "
            f"{_format_spread(seconds[fastest])} ({fastest}) | {format_ratio(ratio)} | {accuracies[0]:.3f}, {accuracies[1]:.3f} |"
        )
    mean = compute_geometric_mean(ratios) if ratios else float("nan")
    return "\n".join([*lines, f"| geometric mean, rows: {len(results)} | | | | {mean:.2f} | |"])


def _format_spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} s [{min(seconds):.1f}-{max(seconds):.1f}]"
