"""The page of `quality.py`, from the rows that are measured so far."""

from __future__ import annotations

import platform
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.quality_sets import SETS, PublicSet

Row = Mapping[str, Any]
SIMPLE_MODELS = ("constant", "linear", "trees")
POINTS = 100.0
"""Of accuracy and R2, per 1."""
TOLERANCE = 0.5
"""Points by which the default may be below the best simple model."""
HEADS = (
    "set",
    *SIMPLE_MODELS,
    "default",
    "less best simple",
    "by F1",
    "the run says",
    "`model: linear`",
    "solved",
    "seconds",
    "load",
)


def write_page(rows: Sequence[Row], path: Path, *, is_trial: bool = False) -> None:
    """Write the page; of a row that was measured twice the last one counts."""
    usable = {row["row"]: row for row in rows if "failed" not in row}
    budgets = list(dict.fromkeys(row["budget"] for row in usable.values() if row["budget"]))
    parts = [_describe_head(list(usable.values()), is_trial), _describe_sets()]
    parts += [_describe_budget(usable, budget) for budget in budgets]
    path.write_text("\n".join([*(line for part in parts for line in part), ""]), encoding="utf-8")


def _describe_head(rows: Sequence[Row], is_trial: bool) -> Iterator[str]:
    if not rows:
        return
    dates = sorted({row["date"] for row in rows})
    yield "# The default beside simple models, on twelve public sets"
    yield ""
    if is_trial:
        yield "Made with `--smoke`: the data are so few that these figures say nothing."
        yield ""
    yield (
        f"Made by `python benchmarks/quality.py`, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}: "
        f"{rows[0]['cpus']} CPUs of {rows[0]['cpu']}, torch {rows[0]['torch']}, "
        f"scikit-learn {version('scikit-learn')}, Python {platform.python_version()}."
    )
    yield ""
    yield (
        "Points of accuracy on rows that no decision used (of diamonds R2; `by F1`: of its mean over the classes), mean ± standard deviation over the seeds, each of "
        "which divides the rows anew. Simple models are fitted to all training rows, as `drivetrain bench models` does. `default` "
        "is the draft of `drivetrain init` with `train.within` in the place of its epochs. `the run says`: which model the run "
        "itself calls better by its validation rows, `equal` if it calls them as good. Seconds are those of the command, with "
        "the load of the machine before it."
    )
    yield ""


def _describe_sets() -> Iterator[str]:
    table = [["set", "kind", "what", "from", "licence"]]
    table += [[one.name, one.kind, one.content, one.source, one.license] for one in SETS]
    yield from _format_table(table)


def _describe_budget(rows: Mapping[str, Row], budget: str) -> Iterator[str]:
    yield f"## {budget}"
    yield ""
    table, passed, measured = [list(HEADS)], 0, 0
    for data in SETS:
        defaults = _select(rows, data, "default", budget)
        if not defaults:
            continue
        simple = _select(rows, data, "simple", "")
        models = {
            name: {seed: row["models"][name] for seed, row in simple.items() if name in row["models"]}
            for name in SIMPLE_MODELS
        }
        both = [(row, simple[seed]) for seed, row in defaults.items() if seed in simple]
        gaps = {row["seed"]: _compute_gap(data.metric, row, other) for row, other in both}
        gaps_of_f1 = [_compute_gap("f1", row, other) for row, other in both if data.metric == "accuracy"]
        measured += bool(gaps)
        passed += bool(gaps) and is_passed(gaps, defaults)
        table.append(
            [
                data.name,
                *(
                    _format_spread([metrics[data.metric] for metrics in models[name].values()])
                    for name in SIMPLE_MODELS
                ),
                _format_trained(data, defaults),
                _format_gap(list(gaps.values())),
                _format_gap(gaps_of_f1),
                _count_verdicts(row.get("better", "nothing") for row in defaults.values()),
                _format_trained(data, _select(rows, data, "linear", budget)),
                _format_trained(data, _select(rows, data, "solved", "")),
                f"{statistics.mean(row['seconds'] for row in defaults.values()):.0f}",
                f"{statistics.mean(row['load'] for row in defaults.values()):.1f}",
            ]
        )
    yield from _format_table(table)
    yield (
        f"**{passed} of {measured}**: the default is at most {TOLERANCE} points below the best simple model, or the run says "
        "that a simple model is better."
    )
    yield ""


def is_passed(gaps: Mapping[int, float], defaults: Mapping[int, Row]) -> bool:
    """Whether the mean difference is small enough, or the run of each seed that is worse says so."""
    worse = [seed for seed, gap in gaps.items() if gap < -TOLERANCE]
    says = all(defaults[seed].get("better") in SIMPLE_MODELS for seed in worse)
    return statistics.mean(gaps.values()) >= -TOLERANCE or says


def _select(rows: Mapping[str, Row], data: PublicSet, contender: str, budget: str) -> dict[int, Row]:
    """The rows by seed."""
    wanted_keys = {"set": data.name, "contender": contender, "budget": budget}
    return {row["seed"]: row for row in rows.values() if wanted_keys.items() <= row.items()}


def _compute_gap(metric: str, trained: Row, simple: Row) -> float:
    """Points of a run less those of the best simple model of the same seed."""
    best = max(metrics[metric] for metrics in simple["models"].values())
    return POINTS * float(trained["test"][metric] - best)


def _format_gap(gaps: Sequence[float]) -> str:
    return f"{statistics.mean(gaps):+.1f}" if gaps else ""


def _format_trained(data: PublicSet, rows: Mapping[int, Row]) -> str:
    return _format_spread([row["test"][data.metric] for row in rows.values()])


def _format_spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    spread = f" ± {POINTS * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{POINTS * statistics.mean(values):.1f}{spread}"


def _count_verdicts(verdicts: Iterator[str]) -> str:
    return ", ".join(f"{verdict} x{count}" if count > 1 else verdict for verdict, count in Counter(verdicts).items())


def _format_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in body:
        yield f"| {' | '.join(row)} |"
    yield ""
