"""Compares a network with the simple models in result.json of its run folder."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from pydantic import TypeAdapter, ValidationError

from drivetrain.job import lower_is_better
from drivetrain.job.formatting import choose_score, format_metric
from drivetrain.report.record import Record, Summary
from drivetrain.system.run_records import read_mapping, read_objects

SWITCH = "DRIVETRAIN_BASELINES"
"""Environment variable; `off` has the effect of `baselines: off` for every job."""
CONSTANT, LINEAR, TREES = "constant", "linear", "trees"
SCIKIT_LINEAR = "logistic or ridge regression of scikit-learn"
ALTERNATIVES = {
    LINEAR: f"`model: linear` for tables and texts, or {SCIKIT_LINEAR}",
    TREES: "HistGradientBoosting of scikit-learn",
}
"""How to have the simple models."""
TITLES = {CONSTANT: "constant answer", LINEAR: "linear model", TREES: "boosted trees"}


@dataclass(frozen=True)
class Baseline:
    """One simple model and its metrics."""

    name: str
    metrics: Mapping[str, float]
    rows: int
    """Training samples that it was fitted to."""
    of: int
    """Training samples that there are."""
    seconds: float
    """To fit it, reading included."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """By head, the class that the constant answer names."""
    margins: Mapping[str, float] = field(default_factory=dict)
    """By metric, half the width of the 95 % interval of its difference from the network, on the same samples."""

    def format_rows(self) -> str:
        """Format the samples that it was fitted to: `2,000 of 12,000 samples`; empty for all samples."""
        return f"{self.rows:,} of {self.of:,} samples" if self.rows < self.of else ""

    def format_title(self, *, article: bool = False) -> str:
        """Return its usual name: `boosted trees`, `always "on time"`; of a constant answer in a sentence with `article`."""
        if self.name == CONSTANT and len(self.answers) == 1:
            return f'{"the answer " if article else ""}always "{next(iter(self.answers.values()))}"'
        if self.name == CONSTANT and article:
            return "a constant answer"
        return TITLES.get(self.name, self.name)


_BASELINE = TypeAdapter(Baseline)


@dataclass(frozen=True)
class Skipped:
    """A simple model that was not fitted, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """A network and the simple models, compared by one metric."""

    metric: str
    network: float
    rows: tuple[Baseline, ...]
    samples: int | None
    """Samples of the evaluation: of the final test, or of validation."""
    is_complete: bool = True
    """Whether the linear model was fitted, or cannot be for a known reason; else there was not enough time."""
    skipped_reason: str = ""
    """Why the linear model was not fitted, if that is known."""
    network_name: str = ""
    """The `model:` of the job, such as `linear`; empty if it has no name."""
    time_order: str = ""
    """The column of times in whose order the rows are that were divided at random; empty for other splits."""
    heads: Sequence[Comparison | None] = ()
    """The comparisons of single heads, where `metric` is the loss of several."""

    def sort_rows(self) -> list[Baseline]:
        """Sort the simple models with this metric, the best first."""
        rated = [row for row in self.rows if self.metric in row.metrics]
        return sorted(rated, key=lambda row: row.metrics[self.metric], reverse=not lower_is_better(self.metric))

    def compute_lead(self) -> float | None:
        """Compute how much better the network is than the best simple model; below 0 if it is worse, None without simple models."""
        ranked = self.sort_rows()
        if not ranked:
            return None
        gap = self.network - ranked[0].metrics[self.metric]
        return -gap if lower_is_better(self.metric) else gap

    def find_margin(self) -> float | None:
        """Return half the width of the 95 % interval of the lead over the best simple model; None if it is unknown."""
        ranked = self.sort_rows()
        return ranked[0].margins.get(self.metric) if ranked else None

    def format_line(self) -> str:
        """Format all models by value: `network 0.775 · boosted trees 0.792 (2.3 s) · ...`."""
        rows = [f"network {format_metric(self.network)}"]
        for row in self.sort_rows():
            extra = [f"{row.seconds:.1f} s"] if row.name != CONSTANT else []
            remark = f" ({', '.join(filter(None, [*extra, row.format_rows()]))})" if extra else ""
            rows.append(f"{row.format_title()} {format_metric(row.metrics[self.metric])}{remark}")
        return " · ".join(rows)

    def describe_verdict(self) -> str:
        """Describe what that means, and what to do about it."""
        verdict = self._compare_with_best()
        if not verdict:
            return verdict
        # A loss adds up the heads, so one may be far worse than a simple model while the sum is better.
        if not self._is_clearly_worse():
            verdict += "".join(head.describe_better_model() for head in self.heads if head)
        if not self.time_order:
            return verdict
        return (
            f"{verdict}; but the rows are in the order of {self.time_order} and were divided at random: for later rows another model "
            "may be the best, which a file with the latest rows as data.validation or data.test tells"
        )

    def _is_clearly_worse(self) -> bool:
        """Whether the best simple model is better than the network by more than chance."""
        lead, margin = self.compute_lead(), self.find_margin()
        return lead is not None and margin is not None and lead < -margin

    def describe_better_model(self) -> str:
        """Return the end of a sentence that names a clearly better simple model; empty if there is none."""
        if not self._is_clearly_worse():
            return ""
        best = self.sort_rows()[0]
        value, network = format_metric(best.metrics[self.metric]), format_metric(self.network)
        return f"; but {self.metric}: {best.format_title()} {value}, network {network}"

    def _compare_with_best(self) -> str:
        lead, ranked = self.compute_lead(), self.sort_rows()
        if lead is None:
            return ""
        best, title, margin = ranked[0], ranked[0].format_title(), self.find_margin()
        if best.name == CONSTANT and lead <= 0:
            return (
                f"the network is no better than {best.format_title(article=True)}: it has learned nothing that counts; look at the "
                "data, the labels and the learning rate (`drivetrain bench lr`)"
            )
        is_clear = margin is not None and abs(lead) > margin
        gap = _format_gap(abs(lead)) + (f" +-{_format_gap(margin)}" if margin is not None else "")
        if best.name == CONSTANT and is_clear and (self.skipped_reason or not self.is_complete):
            reason = f": {self.skipped_reason}" if self.skipped_reason else " in time"
            return f"the network is better than {best.format_title(article=True)}; no other simple model was fitted{reason}"
        if is_clear and lead > 0:
            fitted_to = f", fitted to {best.format_rows()}" if best.format_rows() else ""
            return f"the network is better than the best simple model that was fitted ({title}{fitted_to}), by {gap}"
        if is_clear:
            if self.time_order:
                return f"the {title} {_choose_verb(best)} better, by {gap}"
            return (
                f"the {title} {_choose_verb(best)} better, by {gap}: use {'them' if best.name == TREES else 'it'} "
                f"({self._describe_alternative(best)}), or another network or learning rate (`drivetrain bench lr`)"
            )
        hint = f"; {ALTERNATIVES[LINEAR]} answers faster" if best.name == LINEAR != self.network_name else ""
        samples = f"{self.samples:,} " if self.samples else ""
        samples += f"{self.metric.split('/')[0]} samples"
        if margin is None and lead:
            better = "network has" if lead > 0 else f"{title} {'have' if best.name == TREES else 'has'}"
            loser = f" than {best.format_title(article=True)}" if lead > 0 else ""
            return (
                f"the {better} the better {self.metric.rpartition('/')[2]}{loser}, by {gap}; how much of that is chance, "
                f"{samples} do not tell{hint}"
            )
        if best.name == LINEAR == self.network_name:
            return "the network is a linear model itself, and as good as the one fitted to compare it with"
        subject = best.format_title(article=True) if best.name == CONSTANT else f"the {title}"
        if margin is None:
            return f"{subject} {_choose_verb(best)} as good: both have the same {self.metric}{hint}"
        return f"{subject} {_choose_verb(best)} as good within what {samples} can tell (+-{_format_gap(margin)}){hint}"

    def _describe_alternative(self, best: Baseline) -> str:
        """Describe how to get the simple model; a job with `model: linear` is pointed to scikit-learn's."""
        return SCIKIT_LINEAR if best.name == LINEAR == self.network_name else ALTERNATIVES.get(best.name, best.name)


def _format_gap(gap: float) -> str:
    """Format a difference of metrics, with no more digits than mean something."""
    if gap < 0.0001:
        return f"{gap:.2g}"
    return f"{gap:.4f}" if gap < 1 else f"{gap:.3g}" if gap < 1000 else f"{gap:,.0f}"


def _choose_verb(row: Baseline) -> str:
    return "are" if row.name == TREES else "is"


def to_json(
    outcomes: Iterable[Baseline | Skipped],
    *,
    samples: int,
    seconds: float,
    test_samples: int | None = None,
    time_order: str = "",
) -> dict[str, object]:
    """Return the record of the simple models in result.json.

    Args:
        outcomes: fitted and skipped models; a later outcome replaces an earlier one of the same name.
        samples: number of validation samples.
        seconds: time limit for all simple models.
        test_samples: number of samples of the final test, if there is one.
        time_order: the column of times in whose order the rows are that were divided at random, if there is one.
    """
    latest = {outcome.name: outcome for outcome in outcomes}
    fitted = [asdict(outcome) for outcome in latest.values() if isinstance(outcome, Baseline)]
    skipped = [asdict(outcome) for outcome in latest.values() if isinstance(outcome, Skipped)]
    return {
        "budget": seconds if isfinite(seconds) else None,
        "validation_samples": samples,
        "test_samples": test_samples,
        "time_order": time_order,
        "baselines": fitted,
        "skipped": skipped,
    }


def from_json(data: Mapping[str, Any]) -> tuple[tuple[Baseline, ...], tuple[Skipped, ...]]:
    """Read the rows that `to_json` wrote; unreadable ones are skipped."""
    rows: list[Baseline] = []
    for row in read_objects(data, "baselines"):
        with contextlib.suppress(ValidationError):
            rows.append(_BASELINE.validate_python(row))
    return tuple(rows), tuple(
        Skipped(str(row.get("name")), str(row.get("reason"))) for row in read_objects(data, "skipped")
    )


def compare_network(
    data: Mapping[str, Any], metric: str, metrics: Mapping[str, float], network_name: str = ""
) -> Comparison | None:
    """Return the comparison of a network with the simple models of its run; None if there are none.

    Args:
        data: the record that `to_json` makes.
        metric: the metric that chose the network's weights. A score takes the place of a loss: people can judge its
            differences. The final test, if there was one, takes the place of the validation: its samples did not choose
            the weights, which favors the network.
        metrics: metrics of the network's chosen weights, on the validation samples and in the final test.
        network_name: the `model:` of the job, such as `linear`.
    """
    rows, skipped = from_json(data)
    head_losses = [name for name in metrics if re.fullmatch("validation/.+/loss", name) and metric == "validation/loss"]
    heads = [compare_network(data, name, metrics, network_name) for name in head_losses]
    metric = choose_score(metric, metrics)
    if not rows or metric not in metrics:
        return None
    samples, test_metric = data.get("validation_samples"), metric.replace("validation/", "test/", 1)
    is_tested = test_metric in metrics and any(test_metric in row.metrics for row in rows)
    if is_tested and isinstance(data.get("test_samples"), int):
        metric, samples = test_metric, data["test_samples"]
    skipped_reasons = {model.name: model.reason for model in skipped}
    is_complete = LINEAR in skipped_reasons or any(row.name == LINEAR for row in rows)
    reason = skipped_reasons.get(LINEAR, "")
    sample_count = samples if isinstance(samples, int) else None
    time_order = str(data.get("time_order") or "") if metric.startswith("validation/") else ""
    return Comparison(metric, metrics[metric], rows, sample_count, is_complete, reason, network_name, time_order, heads)


def compare_best(record: Record, summary: Summary) -> Comparison | None:
    """Compare the best weights of a run with the simple models; None without an evaluation or without simple models."""
    best = summary.best
    if best is None:
        return None
    metrics = {best.metric: best.value, **best.metrics, **summary.test}
    return compare_network(record.baselines, best.metric, metrics, str(read_mapping(record.spec, "model").get("name")))
