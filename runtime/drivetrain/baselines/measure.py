"""Fits simple models to the training samples of a job and evaluates them as its network is evaluated.

What they reach with a quarter, with half and with all of the samples says whether more data would help.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from drivetrain.baselines import simple_models
from drivetrain.baselines.simple_models import Predict
from drivetrain.data.class_balance import choose_best_metric
from drivetrain.data.custom.iterables import StreamSplit
from drivetrain.data.dataset import NO_LABEL, Dataset, Head, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.job import Job, lower_is_better
from drivetrain.job.formatting import format_metric
from drivetrain.report.baseline_results import CONSTANT, LINEAR, TREES, Baseline, Comparison, Skipped
from drivetrain.training import losses
from drivetrain.training.evaluation.metrics import MetricAccumulator

if TYPE_CHECKING:
    from drivetrain.baselines.sample_features import Features

FIRST_ROWS = 500
"""Training samples of the first fit: a run of a minute leaves two seconds after the start of the process."""
ONE_THREAD_ROWS = 20_000
"""Training samples up to which a fit has one thread: threads that wait for each other cost more than they gain. On two busy
CPUs boosted trees of 960 rows took 52 s, and with one thread 3 s, a linear model of 8,000 pictures 95 s and 4 s.
"""
GROWTH = 2
"""Each further fit takes so many times the samples: what is not finished in time leaves at least the half of it."""
EVALUATED_TOGETHER = 4_096
"""Samples whose outputs are computed at once."""
CURVE_SECONDS = 60.0
"""How long the fits of a learning curve may take."""
CURVE_POINTS = 3
"""Of a learning curve: a quarter, half and all of the training samples."""

Outcome = Baseline | Skipped
Fit = Callable[["Features", Split, Ids, torch.Tensor, Head, int], Predict]
"""Fits one head to the targets of some training samples; the last argument is the seed."""


def measure(job: Job, dataset: Dataset, seconds: float, first_rows: int = 0) -> Iterator[Outcome]:
    """Fit and evaluate one simple model after the other; each is yielded as soon as it is known, and again if it was
    fitted to more samples.

    Args:
        job: the job, of which loss, metrics and seed are used.
        dataset: its data, preprocessed as for its network.
        seconds: how long all of it may take.
        first_rows: training samples of the first fit; 0 for FIRST_ROWS.
    """
    end = time.monotonic() + seconds
    if not any(head.outputs for head in dataset.heads.values()):
        yield Skipped(CONSTANT, "what the targets mean is known to the job's loss alone")
        return
    if isinstance(dataset.train, StreamSplit):
        yield Skipped(CONSTANT, "the training data is an iterable, and a fair sample of it would be all of it")
        return
    targets = dataset.train.targets
    constants = {name: simple_models.fit_constant(targets[name], head) for name, head in dataset.heads.items()}
    yield _evaluate(job, dataset, CONSTANT, constants, len(dataset.train), 0.0)
    if not find_spec("sklearn"):
        yield Skipped(LINEAR, "scikit-learn is not installed: pip install 'drivetrain[baselines]'")
        return
    import sklearn.ensemble  # noqa: F401 - it takes seconds, which the first fit must not seem to need

    from drivetrain.baselines.sample_features import choose_features

    features = choose_features(dataset)
    if features is None:
        yield Skipped(LINEAR, "what the inputs mean is known to the job's code alone")
        return
    kinds: dict[str, Fit] = {LINEAR: simple_models.fit_linear}
    if features.suits_trees:
        kinds[TREES] = simple_models.fit_trees
    yield from _fit_growing(job, dataset, features, kinds, end, first_rows or FIRST_ROWS)


def _fit_growing(
    job: Job, dataset: Dataset, features: Features, kinds: dict[str, Fit], end: float, first_rows: int
) -> Iterator[Baseline]:
    """Fit each kind of model to more and more training samples, as long as its next fit is expected to end in time."""
    # In the order of a random permutation, every first part of it is a fair sample.
    order = np.random.default_rng(job.train.seed).permutation(len(dataset.train)).astype(np.int64)
    rows = len(order) if end == math.inf else min(len(order), first_rows)
    seconds, expected = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
    while expected:
        for name in list(expected):
            started = time.monotonic()
            if started + expected[name] > end and seconds[name]:
                del expected[name]
                continue
            yield _fit(job, dataset, features, name, kinds[name], order[:rows])
            earlier_seconds, seconds[name] = seconds[name], time.monotonic() - started
            # A solver may need more than twice the time for twice the samples.
            growth = seconds[name] / earlier_seconds if earlier_seconds else 0.0
            expected[name] = seconds[name] * max(growth, min(len(order), rows * GROWTH) / rows)
        if rows == len(order):
            return
        rows = min(len(order), rows * GROWTH)


def _fit(job: Job, dataset: Dataset, features: Features, name: str, fit: Fit, ids: Ids) -> Baseline:
    """Fit one kind of model to these training samples."""
    started = time.monotonic()
    features.fit(dataset.train, ids)
    targets = {head: values[torch.from_numpy(ids)] for head, values in dataset.train.targets.items()}
    with threadpool_limits(limits=1 if len(ids) <= ONE_THREAD_ROWS else None):
        models = {
            output: fit(features, dataset.train, ids, targets[output], head, job.train.seed)
            for output, head in dataset.heads.items()
        }
        return _evaluate(job, dataset, name, models, len(ids), time.monotonic() - started)


def _evaluate(job: Job, dataset: Dataset, name: str, models: dict[str, Predict], rows: int, seconds: float) -> Baseline:
    """The metrics of one simple model on the validation samples, and on those of the final test if there is one."""
    metrics = _metrics(job, dataset, models, dataset.validation, "validation/")
    if dataset.test:
        metrics |= _metrics(job, dataset, models, dataset.test.split, "test/")
    return Baseline(
        name, metrics, rows, len(dataset.train), seconds, _constant_answers(dataset) if name == CONSTANT else {}
    )


def _metrics(job: Job, dataset: Dataset, models: dict[str, Predict], split: Split, over: str) -> dict[str, float]:
    train = job.train
    objective = losses.build_objective(
        train.loss, dataset.heads, dataset.train.targets, train.class_weights, dataset.loss
    )
    tally = MetricAccumulator(dataset.heads, objective)
    for start in range(0, len(split), EVALUATED_TOGETHER):
        ids = np.arange(start, min(start + EVALUATED_TOGETHER, len(split)), dtype=np.int64)
        outputs = {name: predict(split, ids) for name, predict in models.items()}
        targets = {name: values[torch.from_numpy(ids)] for name, values in split.targets.items()}
        tally.add(outputs, targets)
    return tally.metrics(over)


def _constant_answers(dataset: Dataset) -> dict[str, str]:
    """Return the answer of the constant baseline for each head: the name of the most frequent class."""
    answers = {}
    for name, head in dataset.heads.items():
        targets = dataset.train.targets[name]
        if head.classes and not head.several:
            classes = targets.argmax(1) if targets.ndim == 2 else targets[targets != NO_LABEL]
            answers[name] = head.classes[int(torch.bincount(classes, minlength=len(head.classes)).argmax())]
    return answers


def describe_learning_curve(job: Job, dataset: Dataset) -> str:
    """Fit the simple models to more and more samples, and say what the last doubling of the samples has gained."""
    curves: dict[str, list[Baseline]] = {}
    reason = f"{CURVE_SECONDS:.0f} s were not enough to fit a simple model to all samples"
    for outcome in measure(job, dataset, CURVE_SECONDS, first_rows=-(-len(dataset.train) // 2 ** (CURVE_POINTS - 1))):
        if isinstance(outcome, Skipped):
            reason = outcome.reason
        elif outcome.name != CONSTANT:
            curves.setdefault(outcome.name, []).append(outcome)
    complete = [rows for rows in curves.values() if len(rows) == CURVE_POINTS]
    if not complete:
        return f"more data: no learning curve, since {reason}"
    metric = choose_best_metric(job, dataset)
    accuracy = metric.removesuffix("loss") + "accuracy"  # its uncertainty is known
    metric = accuracy if metric.endswith("/loss") and accuracy in complete[0][0].metrics else metric
    sign = -1 if lower_is_better(metric) else 1
    curve = max(complete, key=lambda rows: sign * rows[-1].metrics[metric])
    return f"more data: {_describe_curve(curve, metric, sign, len(dataset.validation))}"


def _describe_curve(curve: list[Baseline], metric: str, sign: int, samples: int) -> str:
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
