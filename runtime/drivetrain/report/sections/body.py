"""The sections of a report below its headline, in reading order."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drivetrain.job.formatting import DETAILED_METRICS
from drivetrain.report.baseline_results import baselines_section
from drivetrain.report.blocks import Block, Curves, Details, FoldedCurves, Scatter, Section, Table, Text, Tone
from drivetrain.report.confusion import HEADER, Confusion, LabelTable, read_confusions, read_label_tables
from drivetrain.report.formatting import format_duration, format_json, format_number, format_share, shorten
from drivetrain.report.log_series import Series
from drivetrain.report.record import MissingRecord, Record, Summary
from drivetrain.report.sections.advice import advice_section
from drivetrain.report.sections.machine import machine_section, operators_section, ranks_section, time_section
from drivetrain.report.sections.mistakes import explanation_sections, number_sections, worst_sections
from drivetrain.report.sections.plan import effective_section, notes_section, plan_section
from drivetrain.system.run_records import Best, RunState, read_mapping, read_number

_TITLES = {
    "loss": "Loss",
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "f1": "Macro F1",
    "micro_f1": "Micro F1",
    "map": "Mean average precision",
    "balanced_accuracy": "Balanced accuracy",
    "kappa": "Cohen's kappa, quadratic weights",
    "mape": "Mean absolute error / number",
    "auc": "Area below the ROC curve",
    "average_precision": "Average precision",
    "log_loss": "Log loss",
    "brier": "Brier score",
    "ece": "Expected calibration error",
    "scale": "fp16 loss scale",
    "scaled_rmse": "RMSE, each column divided by its deviation",
}
_FOLDED = ("lr", "grad_norm", "scale", *DETAILED_METRICS)
"""Kinds of curves that the page shows on demand."""
NOT_EVALUATED = ("lr", "grad_norm", "scale")
"""Kinds of curves of the steps, in whose plots the kept weights are not marked."""
_MAX_EVENTS = 200
_MAX_SPEC = 200_000


def list_sections(record: Record, summary: Summary) -> list[Section]:
    """List all sections that have content."""
    plan, hardware = record.plan, record.hardware
    candidates = [
        next_section(record, summary),
        advice_section(record, summary),
        curves_section(record, summary.best),
        baselines_section(record, summary),
        final_test_section(record, summary),
        *(confusion_section(confusion) for confusion in read_confusions(record.result.get("confusion"))),
        *(labels_section(table) for table in read_label_tables(record.result.get("confusion"))),
        *worst_sections(record.mistakes),
        *number_sections(record.result.get("confusion"), record.mistakes),
        *explanation_sections(record.explanation),
        limits_section(record, summary),
        plan_section(plan) if plan else None,
        effective_section(plan) if plan else None,
        notes_section(plan) if plan else None,
        data_section(record),
        machine_section(hardware) if hardware else None,
        time_section(record.telemetry, summary, hardware),
        ranks_section(record.ranks),
        operators_section(record.trace),
        events_section(record.events),
        gaps_section(record.gaps),
        provenance_section(record),
        spec_section(record),
    ]
    return [section for section in candidates if section]


def next_section(record: Record, summary: Summary) -> Section | None:
    """Return the command that uses the model of a finished run; None for another run."""
    if summary.status == "done" and summary.best:
        line = f"Predict: drivetrain predict {shlex.quote(record.name)} FILES (files, a folder, or a table)"
        return Section("next", "Next", (Text(line),))
    return None


def curves_section(record: Record, best: Best | None) -> Section | None:
    """Draw each kind of value over the steps, and mark the step of `best`, the evaluation whose weights were kept.

    Series of the same kind share a plot. A plot of single values is left out: the headline shows them.
    """
    scale = 1.0 if record.epoch_steps is None else 1 / record.epoch_steps
    start_mark: tuple[tuple[str, float], ...] = ()
    if (start_step := read_number(record.extension, "step")) is not None:
        start_mark = ((format_json(record.extension.get("run")), scale * start_step),)
    weights_mark = () if best is None or best.step is None else (("kept weights", scale * best.step),)
    groups: dict[str, list[Series]] = {}
    for key, series in record.metrics.items():
        source, _, kind = key.rpartition("/")
        if series:
            groups.setdefault(kind, []).append(series.scale(format_json(source or kind), scale))
    axis = "step" if record.epoch_steps is None else "epoch"
    plots: dict[str, Curves] = {}
    for kind, group in groups.items():
        if max(map(len, group)) > 1:
            marks = start_mark if kind in NOT_EVALUATED else (*start_mark, *weights_mark)
            plots[kind] = Curves.make_for_metric(_choose_title(kind), axis, kind, group, marks)
    visible = sorted((kind for kind in plots if kind not in _FOLDED), key=lambda kind: kind != "loss")
    folded = [kind for kind in _FOLDED if kind in plots]
    blocks: list[Block] = [plots[kind] for kind in visible]
    if folded:
        title = ", ".join(_choose_title(kind) for kind in folded)
        blocks.append(FoldedCurves(f"{len(folded)} more: {title}", tuple(plots[kind] for kind in folded)))
    return Section("curves", "Curves", tuple(blocks)) if blocks else None


def _choose_title(kind: str) -> str:
    return _TITLES.get(kind, format_json(kind).capitalize())


def confusion_section(confusion: Confusion) -> Section:
    """Return the matrix, the most frequent mistakes and, with many classes, the weakest ones."""
    share_right = confusion.hits / max(1, confusion.total)
    right = f"{format_number(confusion.hits)} of {format_number(confusion.total)} validation samples correct ({format_share(share_right)})"
    blocks: list[Block] = [Text(f"{right}. Rows: true class. Columns: predicted class."), confusion]
    mistakes = tuple(
        (shorten(truth, 60), shorten(guess, 60), format_number(count), format_share(share))
        for truth, guess, count, share in confusion.list_mistakes()
    )
    if mistakes:
        blocks.append(Table(("true class", "predicted", "count", "share of class"), mistakes))
    weakest = tuple(
        (shorten(name, 60), format_number(samples), *(f"{value:.3f}" for value in scores))
        for name, samples, *scores in confusion.list_weakest()
    )
    if weakest:
        blocks.append(Table(("lowest F1", "samples", "precision", "recall", "F1"), weakest))
    if len(confusion.reliability) > 1:
        title = "Share correct, over the probability of the prediction"
        blocks.append(Scatter(title, "probability", "samples of similar confidence", confusion.reliability))
    return Section.make_for_head("confusion", "Confusion matrix", confusion.head, blocks)


def labels_section(table: LabelTable) -> Section:
    """Return the scores of each label, the weakest first."""
    description = f"{format_number(table.samples)} validation samples, each with any number of labels. A label is predicted from a "
    rows = sorted(table.rows, key=lambda row: (not row.true, row.f1, row.name))
    blocks = (Text(f"{description}probability of 0.5."), Table(HEADER, tuple(row.format_cells() for row in rows)))
    return Section.make_for_head("labels", "Labels", table.head, blocks)


def data_section(record: Record) -> Section | None:
    """Show the notes on the data (sizes, skipped samples, lengths and padding of texts), the network and how it was trained."""
    notes, model = record.result.get("data"), record.result.get("model")
    rows = []
    for note in notes if isinstance(notes, list) else ():
        name, _, value = format_json(note).partition(": ")
        rows.append((name, value) if value else ("samples", name))
    if model:
        rows.append(("network", format_json(model)))
    train = read_mapping(record.spec, "train")
    for key in ("loss", "optimizer", "schedule"):
        setting = train.get(key)
        setting_name = setting.get("name") if isinstance(setting, Mapping) else setting
        if setting_name:
            rows.append((key, format_json(setting_name)))
    return Section("data", "Data and model", (Table(("item", "value"), tuple(rows)),)) if rows else None


def limits_section(record: Record, summary: Summary) -> Section | None:
    """Describe how far the result of a finished run can be trusted."""
    if not record.made_from:
        return None
    if summary.test:
        trust = "The final test was made once, with data on which nothing was chosen. Other data can give other values."
    else:
        trust = (
            "The values are those of the validation data, which also selected the weights, so they are a little too good. "
            "A final test (`data.test`) has not been made."
        )
    measure = (
        f"Measure it with data of the place where it will be used: `drivetrain evaluate {record.name} --data PATH`."
    )
    harm = "What the model must not be used for, and whom its mistakes can harm, only its makers know: add it here."
    return Section("limits", "Limits", (Text(trust), Text(measure), Text(harm)))


def events_section(events: list[Mapping[str, object]]) -> Section | None:
    """Show the events next to the steps: signals, retries, fallbacks."""
    if not events:
        return None
    rows = []
    for event in events:
        time = event.get("time")
        moment = format_duration(time) if isinstance(time, float) and time < 1e9 else format_json(time)
        rows.append((moment, format_json(event.get("kind")), shorten(format_json(event.get("text")), 500)))
    blocks: list[Block] = [Table(("time", "kind", "event"), tuple(rows[-_MAX_EVENTS:]))]
    if len(rows) > _MAX_EVENTS:
        text = f"The last {_MAX_EVENTS} of {len(rows)} events; events.jsonl contains all of them."
        blocks.insert(0, Text(text, Tone.QUIET))
    return Section("events", "Events", tuple(blocks))


def gaps_section(gaps: list[MissingRecord]) -> Section | None:
    """List the files that are missing or damaged."""
    rows = tuple((gap.file, gap.problem, gap.consequence) for gap in gaps)
    if not rows:
        return None
    tones = dict.fromkeys(range(len(rows)), Tone.WARN)
    return Section("gaps", "Missing or damaged files", (Table(("file", "problem", "consequence"), rows, tones),))


def spec_section(record: Record) -> Section | None:
    """Describe how the run was started, and the resolved spec, collapsed."""
    state = record.state
    keys = {
        "source": "job file",
        "set": "overrides (--set)",
        "attempts": "attempts",
        "command": "command",
        "started": "started",
        "ended": "ended",
    }
    values = ((name, state[key]) for key, name in keys.items() if state.get(key))
    rows = tuple(
        (name, format_json(shlex.join(map(str, value)) if isinstance(value, list) else value)) for name, value in values
    )
    blocks: list[Block] = [Table(("item", "value"), rows)] if rows else []
    if record.text:
        text = (
            record.text if len(record.text) <= _MAX_SPEC else record.text[:_MAX_SPEC] + "\n… see job.yaml for the rest"
        )
        blocks.append(Details("The complete job file, including all defaults", text))
    return Section("spec", "Job spec", tuple(blocks), is_folded=True) if blocks else None


def final_test_section(record: Record, summary: Summary) -> Section | None:
    """Show the metrics of the final test next to the best validation metrics; None without a test."""
    if not summary.test:
        return None
    test = record.result["test"]
    validation_metrics = read_mapping(read_mapping(record.result, "best"), "metrics")
    rows = []
    for name, value in summary.test.items():
        metric = name.removeprefix("test/")
        validation_value = read_number(validation_metrics, f"validation/{metric}")
        validation = "-" if validation_value is None else format_number(validation_value)
        rows.append((format_json(metric), format_number(value), validation))
    about = f"{format_number(read_number(test, 'samples'))} samples of {format_json(test.get('data'))}, evaluated once, after the training."
    blocks: list[Block] = [Text(about, Tone.QUIET), Table(("metric", "test", "validation"), tuple(rows))]
    blocks += read_confusions(test.get("confusion"))
    tables = read_label_tables(test.get("confusion"))
    blocks += [Table(HEADER, tuple(row.format_cells() for row in table.rows)) for table in tables]
    return Section("test", "Final test", tuple(blocks))


_MAX_CODE_FILES = 30
"""Files of code that are named."""


def provenance_section(record: Record) -> Section | None:
    """Show commits, image, versions, and the SHA-256 of data, code and weights."""
    if not record.made_from:
        return None
    run = f"runs/{record.name}"
    command = f"`drivetrain train {run}/job.yaml --plan {run}/plan.json` trains it again; `compare` says whether the bits are the same."
    table = Table(("item", "value"), tuple(_list_rows(record.made_from, RunState(record.state).commits)))
    tone = Tone.QUIET
    return Section("provenance", "Made from", (table, Text(command, tone)), is_folded=True)


def _list_rows(made_from: Mapping[str, Any], commits: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "commit of the job's folder", format_json(commits[0]) if commits else "not under git"
    yield from (("commit when it was resumed", format_json(later)) for later in commits[1:])
    image = read_mapping(made_from, "image")
    yield "image", " ".join(filter(None, (format_json(image.get(key) or "") for key in ("name", "id")))) or "none"
    versions = {name: made_from.get(name) for name in ("drivetrain", "python", "torch") if made_from.get(name)}
    yield "versions", ", ".join(f"{name} {format_json(version)}" for name, version in versions.items())
    data = read_mapping(made_from, "data")
    yield from ((f"SHA-256 of {format_json(key)}", format_json(digest)) for key, digest in data.items())
    code = list(read_mapping(made_from, "code").items())
    yield from ((f"SHA-256 of {format_json(name)}", format_json(digest)) for name, digest in code[:_MAX_CODE_FILES])
    if code[_MAX_CODE_FILES:]:
        yield "more code", f"{len(code) - _MAX_CODE_FILES} files, in state.json"
    if made_from.get("model"):
        yield "SHA-256 of the weights", format_json(made_from["model"])
