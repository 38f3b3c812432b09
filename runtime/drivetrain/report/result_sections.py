"""The sections on the result of a run: what to do next, scores, curves, right and wrong predictions, and their limits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from drivetrain.job.formatting import DETAILED_METRICS
from drivetrain.report.baseline_results import CONSTANT, compare_best, from_json
from drivetrain.report.blocks import Block, Chart, Details, Section, Table, Text, Tone, title_of_head
from drivetrain.report.confusion import HEADER, Confusion, LabelTable, read_confusions, read_label_tables
from drivetrain.report.formatting import format_duration, format_json, format_number, format_share, shorten
from drivetrain.report.log_series import Series, has_wide_range
from drivetrain.report.model_advice import list_advice, list_model_advice
from drivetrain.report.record import Record, Summary
from drivetrain.system.run_records import read_integer, read_mapping, read_number

METRIC_TITLES = {
    "f1": "Macro F1",
    "micro_f1": "Micro F1",
    "map": "Mean average precision",
    "auc": "Area below the ROC curve",
    "scaled_rmse": "RMSE, each column divided by its deviation",
}
_NOT_DRAWN = ("lr", "grad_norm", "scale", *DETAILED_METRICS)
"""Kinds of values without a chart; TensorBoard has them all."""
FEW_SAMPLES = 1000
"""Number of validation samples below which advice rests on few: of 1,000, a share of 0.9 is known to 0.02."""
MAX_WEAK_CLASSES = 5
MAX_MATRIX_CLASSES = 20
"""Most classes of a confusion matrix that is shown; `drivetrain evaluate` writes larger ones as CSV."""


def list_result_sections(record: Record, summary: Summary) -> Iterator[Section]:
    """Yield the sections that have content, in reading order."""
    if next_blocks := [*_list_next(record, summary)]:
        yield Section("Next", next_blocks)
    if score_blocks := [*_list_scores(record, summary)]:
        yield Section("Scores", score_blocks)
    if charts := [*_draw_curves(record, summary)]:
        yield Section("Curves", charts)
    test = read_mapping(record.result, "test").get("confusion")
    counts, samples = (
        (test, "samples of the final test") if test else (record.result.get("confusion"), "validation samples")
    )
    for confusion in read_confusions(counts):
        yield _make_confusion_section(confusion, samples)
    for table in read_label_tables(counts):
        yield _make_labels_section(table, samples)


def _list_next(record: Record, summary: Summary) -> Iterator[Block]:
    """Yield the commands that use the model of a finished run, and changes of the job that would have helped."""
    if summary.status == "done" and summary.best:
        run = shlex.quote(record.name)
        commands = {
            "predict": f"drivetrain predict {run} FILES",
            "measure it on new data with labels": f"drivetrain evaluate {run} --data PATH",
        }
        yield Table(("to", "type"), tuple(commands.items()))
    if advice := list_advice(record, summary):
        rows = tuple((row.change, row.line, row.why, row.gain) for row in advice)
        yield Table(("advice", "in the job file", "because", "expected gain"), rows)
    samples = read_integer(record.baselines, "validation_samples")
    if samples and list_model_advice(record, summary):
        few = ", which are few" if samples < FEW_SAMPLES else ""
        text = f"Advice about the model rests on the {samples:,} validation samples that chose the epoch{few}."
        yield Text(text, Tone.QUIET)


def _list_scores(record: Record, summary: Summary) -> Iterator[Block]:
    """Yield the metrics of the network beside the metrics of each simple model; detailed ones are collapsed."""
    metrics, source = summary.choose_evaluation()
    comparison = compare_best(record, summary)
    ranked = comparison.sort_rows() if comparison else []
    rows = [*ranked, *(row for row in comparison.rows if row not in ranked)] if comparison else []
    if metrics:
        # Metrics that a simple model lacks, such as those of a head without labels, have an empty cell.
        score = [name for name, _ in filter(None, [summary.find_score()]) if name in metrics]
        names = dict.fromkeys([*score, *metrics, *(name for row in rows for name in row.metrics)])
        columns = [metrics, *(row.metrics for row in rows)]
        times = ["" if row.name == CONSTANT else format_duration(row.seconds) for row in rows]
        cells = [(format_json(name), *(_format_cell(values.get(name)) for values in columns)) for name in names]
        detailed = [row for row in cells if row[0].rpartition("/")[2] in DETAILED_METRICS]
        main = [row for row in cells if row not in detailed]
        main += [("time", format_duration(summary.seconds), *times)] if rows else []
        header = ("metric", source, *(row.format_title() for row in rows))
        yield Table(header, tuple(main))
        if detailed:
            widths = [max(map(len, column)) for column in zip(header, *detailed, strict=True)]
            lines = ("  ".join(map(str.ljust, row, widths)) for row in (header, *detailed))
            yield Details(f"{len(detailed)} more metrics", "\n".join(lines))
    if summary.test:
        test = read_mapping(record.result, "test")
        samples, data = format_number(read_number(test, "samples")), format_json(test.get("data"))
        yield Text(f"Final test: {samples} samples of {data}, evaluated once, after the training.", Tone.QUIET)
    for skipped in from_json(record.baselines)[1] if comparison else ():
        yield Text(f"No {skipped.name} model: {skipped.reason}.", Tone.QUIET)
    for row in rows:
        if fitted_to := row.format_rows():
            yield Text(f"The {row.format_title()}: fitted to {fitted_to} (baselines: full takes all).", Tone.QUIET)


def _format_cell(value: float | None) -> str:
    return "" if value is None else format_number(value)


def _draw_curves(record: Record, summary: Summary) -> Iterator[Block]:
    """Yield a chart for each kind of value, over the epochs, and mark the evaluation whose weights were kept.

    Series of the same kind share a chart; values of a single evaluation are a line of text.
    """
    scale = 1.0 if record.epoch_steps is None else 1 / record.epoch_steps
    marks: list[tuple[str, float]] = []
    if (start_step := read_number(record.extension, "step")) is not None:
        marks.append((format_json(record.extension.get("run")), scale * start_step))
    if summary.best and summary.best.step is not None:
        marks.append(("kept weights", scale * summary.best.step))
    groups: dict[str, list[Series]] = {}
    single_values = []
    for key, series in record.metrics.items():
        source, _, kind = key.rpartition("/")
        if len(series) > 1 and kind not in _NOT_DRAWN:
            groups.setdefault(kind, []).append(series.scale(format_json(source or kind), scale))
        elif series and kind not in _NOT_DRAWN:
            single_values.append(f"{format_json(key)} {format_number(series.ys[0])}")
    axis = "step" if record.epoch_steps is None else "epoch"
    for kind, lines in sorted(groups.items(), key=lambda group: group[0] != "loss"):
        yield make_metric_chart(METRIC_TITLES.get(kind, format_json(kind).capitalize()), axis, kind, lines, marks)
    if single_values:
        yield Text(f"Measured once: {', '.join(single_values)}.", Tone.QUIET)


def make_metric_chart(
    title: str, axis: str, kind: str, lines: Sequence[Series], marks: Sequence[tuple[str, float]] = ()
) -> Chart:
    """Make a chart of a kind of metric; a loss with a wide range gets a logarithmic scale."""
    is_logarithmic = kind.endswith("loss") and has_wide_range(y for line in lines for y in line.ys)
    title += " (log scale)" if is_logarithmic else ""
    return Chart(title, axis, tuple(lines), marks=tuple(marks), is_logarithmic=is_logarithmic)


def _make_confusion_section(confusion: Confusion, samples: str) -> Section:
    """Return the matrix, and the weakest classes with the one that each is mistaken for."""
    right, share = f"{confusion.hits:,} of {confusion.total:,}", confusion.hits / max(1, confusion.total)
    blocks: list[Block] = [Text(f"{right} {samples} correct ({format_share(share)}).")]
    if len(confusion.classes) <= MAX_MATRIX_CLASSES:
        blocks.append(confusion)
    if weakest := confusion.list_weakest(MAX_WEAK_CLASSES):
        rows = (
            (
                *(shorten(row.name, 60), shorten(row.mistaken_for, 60)),
                *(f"{value:.3f}" for value in (row.f1, row.precision, row.recall)),
                format_number(row.samples),
            )
            for row in weakest
        )
        columns = ("weakest classes", "mistaken for", "F1", "precision", "recall", "samples")
        blocks.append(Table(columns, tuple(rows)))
    return Section(title_of_head("Confusion matrix", confusion.head), blocks)


def _make_labels_section(table: LabelTable, samples: str) -> Section:
    """Return the scores of each label, the weakest first."""
    text = (
        f"{table.samples:,} {samples}, each with any number of labels. A label is predicted from a probability of 0.5."
    )
    rows = sorted(table.rows, key=lambda row: (not row.true, row.f1, row.name))
    blocks = (Text(text), Table(HEADER, tuple(row.format_cells() for row in rows)))
    return Section(title_of_head("Labels", table.head), blocks)


def make_limits_section(record: Record, summary: Summary) -> Section:
    """Describe how far the result of a finished run can be trusted."""
    if summary.test:
        trust = "The final test was made once, with data on which nothing was chosen. Other data can give other values."
    else:
        trust = (
            "The values are those of the validation data, which also selected the weights, so they are a little too good. "
            "A final test (`data.test`) has not been made."
        )
    harm = "What the model must not be used for, and whom its mistakes can harm, only its makers know: add it here."
    return Section("Limits", (Text(trust), Text(harm)))
