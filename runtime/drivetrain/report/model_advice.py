"""Advice about the model: trained for too long or too briefly, a weak class.

Every rule is a function of the record alone: it checks one thing, and gives one piece of advice or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from drivetrain.job import lower_is_better
from drivetrain.job.formatting import format_metric
from drivetrain.report.confusion import read_confusions
from drivetrain.report.formatting import PERCENT_METRICS, format_share
from drivetrain.report.machine_advice import Advice, get_nested, list_machine_advice
from drivetrain.report.record import Record, Summary
from drivetrain.system.run_records import parse_number

MAX_SUGGESTIONS = 3
LOSS = "validation/loss"
MIN_EPOCHS = 5
"""Evaluations from which on a rise of the loss says something."""
MIN_RISE_SHARE = 0.05
"""Share by which the loss must have risen since its best epoch, for the training to have been too long."""
MIN_RISE = 0.03
"""The same as a number: nobody notices that a loss of 0.03 becomes one of 0.04."""
LATE_SHARE = 0.7
"""Part of the epochs after which the lowest loss may come."""
MIN_PROGRESS_SHARE = 0.02
"""Share by which the metric must have improved in the last quarter, for the training to have been too short."""
MIN_LOSS_PROGRESS_SHARE = 0.25
"""The same for the validation loss, which falls a little at the end of most schedules."""
USUAL_BATCH, MIN_EPOCH_STEPS, MIN_STEPS = 32, 10, 500
"""A batch size that suits small data; steps of an epoch and of a training below which a larger one is too large."""
MIN_FALL_SHARE, COMPARED_SHARE = 0.05, 0.1
"""Share by which the training loss must fall for a network to have learned something; part of the steps compared."""
MIN_OBLONG_SHARE, GOOD_ACCURACY = 0.5, 0.97
"""Share of images that are cropped, and the accuracy below which that may be why."""
WEAK_F1, STRONG_SHARE = 0.6, 0.8
"""F1 of a class that is weak while the others together are strong."""
MIN_CLASS_SAMPLES = 10
"""Validation samples of a class below which its F1 is chance."""
UNEVEN_RATIO = 3.0
"""Ratio of largest to smallest class from which on weights can help."""


def _advise_on_overfitting(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the validation loss rose long before the end."""
    losses = record.metrics.get(LOSS)
    if losses is None or len(losses) < MIN_EPOCHS or summary.status != "done":
        return
    values, epochs = list(losses.ys), len(losses)
    best = min(range(epochs), key=values.__getitem__) + 1
    if best > LATE_SHARE * epochs or values[-1] - values[best - 1] <= max(MIN_RISE, MIN_RISE_SHARE * values[best - 1]):
        return
    metric = summary.best.metric if summary.best else LOSS
    if _gains_later(record, metric, best + 2):
        return
    # A schedule that falls to zero needs as long again: with 12 epochs for a best of 5 an encoder was better on new texts than with
    # 8 or 40, by 0.03 to 0.05 of its accuracy in each of three seeds.
    shorter = max(best + 2, min(2 * best, (best + epochs) // 2))
    metric_note = "" if metric == LOSS else f"; {metric}, which chose the weights, gained no more than chance since"
    yield Advice(
        "train for fewer epochs",
        f"overfitting: {LOSS} was lowest after epoch {best} of {epochs} and is {format_share(values[-1] / values[best - 1] - 1)} higher "
        f"at the end{metric_note}",
        f"{format_share(1 - shorter / epochs)} less time; weight decay, dropout, augmentation or more data make the other epochs useful",
        f"train: {{within: null, epochs: {shorter}}}"
        if get_nested(record.spec, "train", "within")
        else f"train: {{epochs: {shorter}}}",
    )


def _gains_later(record: Record, metric: str, epoch: int) -> bool:
    """Return whether the metric that chooses the weights improved after this epoch, by more than chance."""
    series = record.metrics.get(metric)
    if metric == LOSS or series is None or len(series) <= epoch:
        return False
    direction = -1.0 if lower_is_better(metric) else 1.0
    values = [direction * value for value in series.ys]
    # The best of many evaluations is above the best of few by chance alone.
    return max(values[epoch:]) - max(values[:epoch]) > 2 * _compute_standard_error(record, max(values))


def _compute_standard_error(record: Record, value: float) -> float:
    """Compute the standard error of a share of the validation samples; 0 for a metric that is no share."""
    samples = sum(confusion.total for confusion in read_confusions(record.result.get("confusion")))
    return sqrt(value * (1 - value) / samples) if samples and 0 < value < 1 else 0.0


def _advise_on_more_epochs(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the metric that chooses the weights, or the validation loss, was still improving at the end."""
    best, epochs = summary.best, get_nested(record.spec, "train", "epochs")
    if best is None or summary.status != "done" or not isinstance(epochs, int):
        return
    # A perfect score cannot improve, and with `train.within` the time is the limit.
    is_perfect = best.metric.rsplit("/", 1)[-1] in PERCENT_METRICS and best.value >= 1
    if is_perfect or get_nested(record.spec, "train", "within"):
        return
    # A change of one standard error of a share is chance; a loss has no such error, and has to fall a lot.
    for metric, min_share in ((best.metric, MIN_PROGRESS_SHARE), (LOSS, MIN_LOSS_PROGRESS_SHARE)):
        series = record.metrics.get(metric)
        if series is None or len(series) < 2:
            continue
        direction = -1.0 if lower_is_better(metric) else 1.0
        values = [direction * value for value in series.ys]
        quarter = max(1, len(values) // 4)
        earlier, last = max(values[:-quarter]), values[-1]
        min_gain = max(_compute_standard_error(record, last), min_share * abs(earlier))
        if last == max(values) and last - earlier > min_gain:
            yield Advice(
                "train for more epochs",
                f"{metric} was still improving: {format_metric(direction * earlier)} until epoch {len(values) - quarter}, "
                f"{format_metric(direction * last)} at the end",
                "a better model",
                f"train: {{epochs: {2 * epochs}}}",
            )
            return


def _advise_on_few_steps(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether a large batch leaves only a handful of steps."""
    batch, epochs = get_nested(record.spec, "train", "batch_size"), summary.epochs
    # Heads that are solved see all samples at once, whatever the batch.
    is_solved = record.result.get("solved")
    if not isinstance(batch, int) or not epochs or not summary.steps or batch <= USUAL_BATCH or is_solved:
        return
    steps = summary.steps / epochs
    if steps < MIN_EPOCH_STEPS and summary.steps < MIN_STEPS:
        yield Advice(
            "train in smaller batches",
            f"an epoch has {steps:.0f} {'step' if steps < 2 else 'steps'} of {batch:,} samples, the whole training {summary.steps:,}",
            "a network learns by steps, and these are too few to learn much",
            f"train: {{batch_size: {USUAL_BATCH}}}",
        )


def _advise_on_learning_rate(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether the training loss hardly fell, which a rate far too low or far too high causes."""
    losses = record.metrics.get("train/loss")
    # The first loss of heads that are solved is a good one already.
    if losses is None or len(losses) < 2 or summary.status != "done" or record.result.get("solved"):
        return
    count = max(1, int(COMPARED_SHARE * len(losses)))
    # A rate that is too high first makes the loss worse, so its first value is the one to compare with.
    start, end = losses.ys[0], sum(losses.ys[-count:]) / count
    if end > (1 - MIN_FALL_SHARE) * start > 0:
        yield Advice(
            "measure the learning rate",
            f"the network learned almost nothing: its training loss was {format_metric(start)} at first, {format_metric(end)} at the end",
            "with a rate that is far too low or too high nothing else helps",
            "drivetrain bench lr JOB",
        )


def _advise_on_cropping(record: Record, summary: Summary) -> Iterator[Advice]:
    """Check whether most images are cropped and the result is not good."""
    is_cropped = get_nested(record.result, "facts", "oblong", "fit") == "crop"
    cropped = (parse_number(get_nested(record.result, "facts", "oblong", "share")) or 0.0) if is_cropped else 0.0
    accuracy = summary.best.metrics.get("validation/accuracy") if summary.best else None
    if cropped >= MIN_OBLONG_SHARE and accuracy is not None and accuracy < GOOD_ACCURACY:
        yield Advice(
            "show the network whole pictures",
            f"{format_share(cropped)} of the pictures are not square, and their ends are cropped",
            "what lies at the ends counts, too, if it shows the class",
            "data: {fit: pad}",
        )


def _advise_on_weak_classes(record: Record, summary: Summary) -> Iterator[Advice]:
    """Find a class with a much lower F1 than the average."""
    for confusion in read_confusions(record.result.get("confusion")):
        by_f1 = confusion.list_weakest(len(confusion.classes))
        weakest = next((row for row in by_f1 if row.samples >= MIN_CLASS_SAMPLES), None)
        if weakest is None or confusion.hits < STRONG_SHARE * confusion.total or weakest.f1 >= WEAK_F1:
            continue
        name, samples = weakest.name, weakest.samples
        sizes = [sum(row) for row in confusion.matrix if sum(row)]
        of_head = f" of {confusion.head}" if confusion.head else ""
        reason = f"{name}{of_head} has F1 {weakest.f1:.2f} (precision {weakest.precision:.2f}, recall {weakest.recall:.2f}) with {samples:,} validation samples"
        is_weighted = get_nested(record.spec, "train", "class_weights") not in (None, "none")
        if max(sizes) >= UNEVEN_RATIO * samples and not is_weighted:
            gain, line = f"more of {name} is found, at the price of more false ones", "train: {class_weights: balanced}"
        else:
            gain, line = "hard classes need examples, or a label that can be told apart", f"more samples of {name}"
        yield Advice("help the weakest class", reason, gain, line)


MODEL_RULES = (
    _advise_on_few_steps,
    _advise_on_learning_rate,
    _advise_on_cropping,
    _advise_on_overfitting,
    _advise_on_more_epochs,
    _advise_on_weak_classes,
)


def list_model_advice(record: Record, summary: Summary) -> list[Advice]:
    """List changes for a better model, or for a better estimate of its quality."""
    return [advice for rule in MODEL_RULES for advice in rule(record, summary)]


def list_advice(record: Record, summary: Summary) -> list[Advice]:
    """List at most three changes that would have helped: first for a better model, then by the time that they save."""
    return [*list_model_advice(record, summary), *list_machine_advice(record, summary)][:MAX_SUGGESTIONS]
