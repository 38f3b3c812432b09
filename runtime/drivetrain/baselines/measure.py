"""Fits simple models to the training samples of a job, and evaluates them in the same way as its network.

Their metrics with a quarter, half and all of the samples show whether more data would help.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from drivetrain.baselines import simple_models
from drivetrain.baselines.paired_errors import NetworkOutputs, PairedErrors
from drivetrain.baselines.sample_features import SampleFeatures
from drivetrain.baselines.simple_models import Predict
from drivetrain.data.class_balance import choose_best_metric
from drivetrain.data.custom.iterables import StreamSplit
from drivetrain.data.dataset import NO_LABEL, Dataset, Head, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.job import Job, lower_is_better
from drivetrain.job.formatting import choose_score, format_metric
from drivetrain.report.baseline_results import CONSTANT, LINEAR, TREES, Baseline, Skipped
from drivetrain.tasks import modality_of
from drivetrain.training import losses
from drivetrain.training.evaluation.metrics import MetricAccumulator
from drivetrain.training.head_solver import count_bytes
from drivetrain.training.losses import Objective

FIRST_ROWS = 500
"""Number of training samples of the first fit."""
ONE_THREAD_ROWS = 20_000
"""Number of training samples up to which a fit has one thread, since waiting threads cost more than they gain. On two busy
CPUs, boosted trees took 52 s for 960 rows, and 3 s with one thread; a linear model of 8,000 images took 95 s and 4 s.
"""
GROWTH = 4
"""Each fit has this many times the samples of the fit before, so all fits together take little more time than the last one."""
MEMORY_SHARE, COPIES = 1 / 4, 3
"""Share of the free memory for the columns of the training samples, and number of their copies in memory."""
EVALUATED_TOGETHER = 4_096
"""Number of samples whose outputs are computed at once."""
QUICK_FIT_SECONDS = 1.0
"""Seconds of a fit that surely ends in time, so the one before it needs no margins, which take longer than many fits."""
CURVE_SECONDS = 60.0
"""Time limit for the fits of a learning curve."""
CURVE_POINTS, CURVE_GROWTH = 3, 2
"""Number of points of a learning curve, and factor between their samples: a quarter, half and all of them."""

Outcome = Baseline | Skipped
Fit = Callable[[SampleFeatures, Split, Ids, Tensor, Head, int], Predict]
"""Function that fits one head to the targets of some training samples; the last argument is the seed."""


class EvaluatedSamples:
    """Samples that simple models are evaluated on, and compared with a network if there is one.

    The names of their metrics begin with `prefix`: `validation/` or `test/`.
    """

    def __init__(self, prefix: str, split: Split, dataset: Dataset, objective: Objective) -> None:
        self.prefix, self.split, self.heads, self.objective = prefix, split, dataset.heads, objective
        self.errors: PairedErrors | None = None

    def compare_with(self, network: NetworkOutputs) -> None:
        """Compare all further models with a network, given its outputs for some of the samples."""
        self.errors = PairedErrors(network, self.split, self.heads, self.objective, self.prefix)

    def compute_metrics(self, models: Mapping[str, Predict]) -> dict[str, float]:
        """Compute the metrics on all samples from one model for each head."""
        accumulator = MetricAccumulator(self.heads, self.objective)
        for start in range(0, len(self.split), EVALUATED_TOGETHER):
            ids = np.arange(start, min(start + EVALUATED_TOGETHER, len(self.split)), dtype=np.int64)
            targets = {name: values[torch.from_numpy(ids)] for name, values in self.split.targets.items()}
            accumulator.add({name: predict(self.split, ids) for name, predict in models.items()}, targets)
        return accumulator.metrics(self.prefix)

    def estimate_margins(self, models: Mapping[str, Predict]) -> dict[str, float]:
        """Estimate by metric how much of the difference from the network is chance; empty without a network."""
        if self.errors is None:
            return {}
        outputs = {name: predict(self.split, self.errors.ids) for name, predict in models.items()}
        return self.errors.estimate_margins(outputs)


def list_evaluated_samples(job: Job, dataset: Dataset) -> list[EvaluatedSamples]:
    """List the validation samples, and the test samples if there are any."""
    train = job.train
    objective = losses.build_objective(
        train.loss, dataset.heads, dataset.train.targets, train.class_weights, dataset.loss
    )
    splits = {"validation/": dataset.validation}
    if dataset.test:
        splits["test/"] = dataset.test.split
    return [EvaluatedSamples(prefix, split, dataset, objective) for prefix, split in splits.items()]


def fit_simple_models(
    job: Job,
    dataset: Dataset,
    seconds: float,
    first_rows: int = FIRST_ROWS,
    growth: int = GROWTH,
    free_memory: float = math.inf,
    compute_network_outputs: Callable[[], Mapping[str, NetworkOutputs]] | None = None,
) -> Iterator[Outcome]:
    """Fit and evaluate one simple model after the other; yields each model, and again if it is fitted to more samples.

    Args:
        job: job with loss, metrics and seed.
        dataset: its data, preprocessed as for its network.
        seconds: time limit for everything.
        first_rows: number of training samples of the first fit; each fit has `growth` times the samples of the fit before.
        free_memory: free bytes; only as many samples are fitted as fit into a share of them.
        compute_network_outputs: function that computes the outputs of a network to compare with, by prefix of the metrics.
    """
    end = time.monotonic() + seconds
    if not any(head.outputs for head in dataset.heads.values()):
        yield Skipped(CONSTANT, "only the job's loss knows the meaning of the targets")
        return
    if isinstance(dataset.train, StreamSplit):
        yield Skipped(CONSTANT, "the training data is an iterable, so a fair sample of it would be all of it")
        return
    evaluated = list_evaluated_samples(job, dataset)
    targets = dataset.train.targets
    constants = {name: simple_models.fit_constant(targets[name], head) for name, head in dataset.heads.items()}
    constant = FittedModel(dataset, evaluated, CONSTANT, constants, len(dataset.train))
    yield constant.evaluate(with_margins=False)
    if compute_network_outputs:
        # A slow network may use up the time, so the constant answer is already known.
        network_outputs = compute_network_outputs()
        for samples in evaluated:
            if samples.prefix in network_outputs:
                samples.compare_with(network_outputs[samples.prefix])
        yield constant.evaluate(with_margins=True)
    features: SampleFeatures | None = modality_of(job).make_features(dataset)
    if features is None:
        yield Skipped(LINEAR, "only the job's code knows the meaning of the inputs")
        return
    kinds: dict[str, Fit] = {LINEAR: simple_models.fit_linear}
    if features.suits_trees and find_spec("sklearn"):
        kinds[TREES] = simple_models.fit_trees
    elif features.suits_trees:
        yield Skipped(TREES, "scikit-learn is not installed: pip install 'drivetrain[baselines]'")
    fits = {name: partial(_fit, job, dataset, evaluated, features, name, fit) for name, fit in kinds.items()}
    order = _draw_order(job, dataset, features, free_memory)
    yield from _fit_growing(fits, order, end, first_rows, growth)


def _draw_order(job: Job, dataset: Dataset, features: SampleFeatures, free_memory: float) -> Ids:
    """Draw the samples to fit in random order, as many as fit into memory; any number of the first is a fair sample."""
    order = np.random.default_rng(job.train.seed).permutation(len(dataset.train)).astype(np.int64)
    if free_memory == math.inf:
        return order
    columns = features.read_linear(dataset.train, order[:FIRST_ROWS])
    row_bytes = COPIES * count_bytes(columns) / len(columns)
    return order[: max(FIRST_ROWS, int(MEMORY_SHARE * free_memory / max(row_bytes, 1)))]


def _fit_growing(
    fits: Mapping[str, Callable[[Ids], FittedModel]], order: Ids, end: float, first_rows: int, growth: int
) -> Iterator[Baseline]:
    """Fit each kind of model to more and more samples of `order`, as long as its next fit should end in time."""
    rows = len(order) if end == math.inf else min(len(order), first_rows)
    latest: dict[str, FittedModel] = {}
    expected_seconds = dict.fromkeys(fits, 0.0)
    while expected_seconds:
        for name in list(expected_seconds):
            earlier = latest.get(name)
            if earlier and time.monotonic() + expected_seconds[name] > end:
                # The fit before a slow one has its margins already.
                if expected_seconds.pop(name) <= QUICK_FIT_SECONDS:
                    yield earlier.evaluate(with_margins=True)
                continue
            model = latest[name] = fits[name](order[:rows])
            # A solver may need more time per sample than before.
            slower = model.seconds / earlier.seconds if earlier and earlier.seconds else 0.0
            expected_seconds[name] = model.seconds * max(slower, min(len(order), rows * growth) / rows)
            yield model.evaluate(with_margins=rows == len(order) or expected_seconds[name] > QUICK_FIT_SECONDS)
        if rows == len(order):
            return
        rows = min(len(order), rows * growth)


@dataclass(frozen=True)
class FittedModel:
    """A simple model of each head, fitted to `rows` training samples in `seconds`."""

    dataset: Dataset
    evaluated: Sequence[EvaluatedSamples]
    name: str
    models: Mapping[str, Predict]
    rows: int
    seconds: float = 0.0

    def evaluate(self, *, with_margins: bool) -> Baseline:
        """Compute the metrics, and if requested by metric how much of the difference from the network is chance."""
        metrics: dict[str, float] = {}
        margins: dict[str, float] = {}
        for samples in self.evaluated:
            metrics |= samples.compute_metrics(self.models)
            if with_margins:
                margins |= samples.estimate_margins(self.models)
        answers = _constant_answers(self.dataset) if self.name == CONSTANT else {}
        return Baseline(self.name, metrics, self.rows, len(self.dataset.train), self.seconds, answers, margins)


def _fit(
    job: Job,
    dataset: Dataset,
    evaluated: Sequence[EvaluatedSamples],
    features: SampleFeatures,
    name: str,
    fit: Fit,
    ids: Ids,
) -> FittedModel:
    """Fit one kind of model to some training samples."""
    if name == TREES:
        # The import takes seconds that the time of the first fit must not include.
        import sklearn.ensemble  # noqa: F401
    started = time.monotonic()
    targets = {head: values[torch.from_numpy(ids)] for head, values in dataset.train.targets.items()}
    with _limit_threads(1 if len(ids) <= ONE_THREAD_ROWS else None):
        models = {}
        for output, head in dataset.heads.items():
            models[output] = fit(features, dataset.train, ids, targets[output], head, job.train.seed)
    return FittedModel(dataset, evaluated, name, models, len(ids), time.monotonic() - started)


@contextlib.contextmanager
def _limit_threads(count: int | None) -> Iterator[None]:
    """Limit the number of threads in the block; None changes nothing."""
    # torch has its own setting in addition to the libraries'.
    threads = torch.get_num_threads()
    with threadpool_limits(limits=count):
        torch.set_num_threads(count or threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _constant_answers(dataset: Dataset) -> dict[str, str]:
    """Return the constant answer for each head with classes: the name of the most frequent class."""
    answers = {}
    for name, head in dataset.heads.items():
        targets = dataset.train.targets[name]
        if head.classes and not head.several:
            classes = targets.argmax(1) if targets.ndim == 2 else targets[targets != NO_LABEL]
            answers[name] = head.classes[int(torch.bincount(classes, minlength=len(head.classes)).argmax())]
    return answers


def describe_learning_curve(job: Job, dataset: Dataset) -> str:
    """Fit the simple models to more and more samples, and describe the gain of the last doubling of samples."""
    curves: dict[str, list[Baseline]] = {}
    reason = f"no simple model could be fitted to all samples in {CURVE_SECONDS:.0f} s"
    first_rows = math.ceil(len(dataset.train) / CURVE_GROWTH ** (CURVE_POINTS - 1))
    for outcome in fit_simple_models(job, dataset, CURVE_SECONDS, first_rows, CURVE_GROWTH):
        if isinstance(outcome, Skipped):
            reason = outcome.reason
        elif outcome.name != CONSTANT:
            curves.setdefault(outcome.name, []).append(outcome)
    complete = [curve for curve in curves.values() if len(curve) == CURVE_POINTS]
    if not complete:
        return f"more data: no learning curve, since {reason}"
    metric = choose_score(choose_best_metric(job, dataset), complete[0][0].metrics)
    choose = min if lower_is_better(metric) else max
    curve = choose(complete, key=lambda points: points[-1].metrics[metric])
    return f"more data: {_describe_curve(curve, metric, len(dataset.validation))}"


def _describe_curve(curve: list[Baseline], metric: str, samples: int) -> str:
    values = [row.metrics[metric] for row in curve]
    points = [f"{format_metric(row.metrics[metric])} with {row.rows:,} samples" for row in curve]
    gain = values[-2] - values[-1] if lower_is_better(metric) else values[-1] - values[-2]
    error = _estimate_error(metric, values[-1], samples)
    start = f"the {curve[0].format_title()}: {metric} {', '.join(points)}: the last doubling gained {gain:+.4f}"
    if not error:
        return f"{start}, whose uncertainty is unknown"
    verdict = "would probably help" if gain > error else "would hardly help this model"
    return f"{start} (+-{error:.4f}), so more samples {verdict}"


def _estimate_error(metric: str, value: float, samples: int) -> float:
    """Estimate the standard error of a share, or of an RMSE with normal errors; 0 for metrics with unknown spread."""
    kind = metric.rsplit("/", 1)[-1]
    if kind == "rmse":
        return value / math.sqrt(2 * samples)
    return math.sqrt(value * (1 - value) / samples) if kind in ("accuracy", "f1", "micro_f1") else 0.0
