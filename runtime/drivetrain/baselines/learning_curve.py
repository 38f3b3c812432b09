"""Whether more data would help: what a simple model reaches with a quarter, with half and with all of the training samples."""

from __future__ import annotations

from drivetrain.baselines.measure import measure
from drivetrain.data.class_balance import choose_best_metric
from drivetrain.data.dataset import Dataset
from drivetrain.job import Job, lower_is_better
from drivetrain.job.formatting import format_metric
from drivetrain.report.baseline_results import CONSTANT, Baseline, Comparison, Skipped

SECONDS = 60.0
POINTS = 3
"""A quarter, half, all."""


def describe_learning_curve(job: Job, dataset: Dataset) -> str:
    """Fit the simple models to more and more samples, and say what the last doubling of the samples has gained."""
    curves: dict[str, list[Baseline]] = {}
    reason = f"{SECONDS:.0f} s were not enough to fit a simple model to all samples"
    for outcome in measure(job, dataset, SECONDS, first_rows=-(-len(dataset.train) // 2 ** (POINTS - 1))):
        if isinstance(outcome, Skipped):
            reason = outcome.reason
        elif outcome.name != CONSTANT:
            curves.setdefault(outcome.name, []).append(outcome)
    complete = [rows for rows in curves.values() if len(rows) == POINTS]
    if not complete:
        return f"more data: no learning curve, since {reason}"
    metric = choose_best_metric(job, dataset)
    accuracy = metric.removesuffix("loss") + "accuracy"  # its uncertainty is known
    metric = accuracy if metric.endswith("/loss") and accuracy in complete[0][0].metrics else metric
    sign = -1 if lower_is_better(metric) else 1
    curve = max(complete, key=lambda rows: sign * rows[-1].metrics[metric])
    return f"more data: {_describe(curve, metric, sign, len(dataset.validation))}"


def _describe(curve: list[Baseline], metric: str, sign: int, samples: int) -> str:
    values = [row.metrics[metric] for row in curve]
    points = ", ".join(
        f"{format_metric(value)} of {row.rows:,} samples" for row, value in zip(curve, values, strict=True)
    )
    gain = sign * (values[-1] - values[-2])
    error = Comparison(metric, values[-1], (), samples).compute_uncertainty()
    start = f"the {curve[0].format_title()}: {metric} {points}: the last doubling gained {gain:+.4f}"
    if not error:
        return f"{start}, whose uncertainty is unknown"
    verdict = "would probably help" if gain > error else "would hardly help this model"
    return f"{start} (+-{error:.4f}), so more samples {verdict}"
