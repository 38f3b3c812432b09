"""Drafts a spec for a table, in which one column is predicted from the others."""

from __future__ import annotations

from collections.abc import Iterator

from drivetrain.data.labels import list_names
from drivetrain.data.survey import first_values, series_draft, table_sample
from drivetrain.data.survey.request import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import DATE, ColumnProfile, TableSample, TargetGuess
from drivetrain.errors import DataError, SpecError
from drivetrain.job.draft import Draft, Entry, quote, quote_all

CLASSIFICATION, REGRESSION = "tabular-classification", "tabular-regression"
TRAINING_STEPS = 1200
"""Steps of a training. Beyond them small tables were learned by heart: on four sets 15 to 25 epochs gave what 50 gave, or more
(accuracy 0.850 and 0.854 with 15, 0.800 and 0.838 with 50 epochs, 960 rows, two seeds).
"""
LARGEST_BATCH = 256
MOST_ENSEMBLE_ROWS = 50_000
"""Rows up to which classes are drafted with tabm, whose steps take five times as long as those of one perceptron: of more rows
one perceptron learns enough.
"""
MAX_LISTED_COLUMNS = 4
"""Number of ignored columns whose reason is listed."""


def draft_table(request: SurveyRequest, sample: TableSample) -> Draft:
    """Draft a spec for the rows of a table.

    Raises:
        DataError: if there is no target, or no feature.
        SpecError: if the named target does not fit the named task.
    """
    guess, task = _choose_target(request, sample)
    targets = [sample.columns[name] for name in guess.names]
    ignored = {
        c.name: reason
        for c in sample.columns.values()
        if c.name not in guess.names and (reason := _reason_to_ignore(c))
    }
    features = [c for c in sample.columns.values() if c.name not in ignored and c.name not in guess.names]
    if not any(c.different > 1 for c in features):
        raise DataError(
            f"{KEY}: {sample.path} has no column to predict {list_names(guess.names)} from: {_list_reasons(ignored) or 'it has no other'}",
            "at least one column of numbers or categories that differ between rows",
            "add columns, or name another one with --target",
        )
    goal = f"{targets[0].different:,} different values" if len(targets) == 1 else "labels of 0 and 1"
    goal = "numbers" if task == REGRESSION else goal
    draft = Draft(task, f"{list_names(guess.names)}: {goal}")
    draft.found = [sample.size, *_describe_targets(targets, task)]
    draft.choices = [*guess.choice, *_note_unused(request, sample, guess, ignored)]
    as_numbers = [c.name for c in features if c.numeric]
    reason = "numbers, but a few cells are text; those rows are left out"
    draft.data = [
        request.path_entry("train", sample.path, sample.size),
        Entry("target", guess.value, guess.reason),
        *([Entry("ignore", quote_all(ignored), _list_reasons(ignored))] if ignored else []),
        *([Entry("numeric", quote_all(as_numbers), reason)] if as_numbers else []),
        first_values.validation(sample.rows, "rows"),
        *first_values.bad_samples(sample.lost(guess.names), f"have no {list_names(guess.names)}, and are left out"),
    ]
    count = sum(c.kind == "number" or c.numeric for c in features)
    kinds = f"{count} columns of numbers, {len(features) - count} of categories"
    network, reason = _choose_network(task, sample.rows)
    draft.model = Entry("model", f"{{name: {network}, hidden: [256, 128], dropout: 0.2}}", f"{kinds}; {reason}")
    samples_in_all = TRAINING_STEPS * int(first_values.batch_size(sample.rows, LARGEST_BATCH).value)
    draft.train = first_values.training(sample.rows, samples_in_all, (3, 25), LARGEST_BATCH, "rows", "3e-3")
    return draft


def _choose_network(task: str, rows: int) -> tuple[str, str]:
    """An ensemble where it was better, one perceptron for numbers and many rows: docs/measurements/quality-2026-11-28.md."""
    if task == CLASSIFICATION and rows <= MOST_ENSEMBLE_ROWS:
        return "tabm", "an ensemble; mlp trains several times as fast"
    return "mlp", "tabm is an ensemble, and takes longer"


def _choose_target(request: SurveyRequest, sample: TableSample) -> tuple[TargetGuess, str]:
    """Choose the columns to predict, and the task."""
    guess = table_sample.find_named(request, sample)
    if guess:
        return guess, _choose_task(request, [sample.columns[name] for name in guess.names])
    columns = list(sample.columns.values())
    classes = table_sample.guess_classes(columns) if request.task != REGRESSION else None
    numbers = table_sample.guess_number(columns) if request.task != CLASSIFICATION else None
    # Numbers with the name of a target go before classes that are only the last column with few values.
    is_typical_number = numbers is not None and bool(table_sample.find_named_number([sample.columns[numbers.names[0]]]))
    if classes and not (is_typical_number and classes.reason != "by its name"):
        if numbers:
            candidates = {*classes.others, *classes.names}
            other_numbers = tuple(name for name in numbers.names if name not in candidates)
            classes = TargetGuess(classes.names, classes.reason, (*other_numbers, *classes.others))
        return classes, CLASSIFICATION
    if numbers:
        other_columns = (*numbers.others, *(classes.names if classes else ()))
        return TargetGuess(numbers.names, numbers.reason, tuple(dict.fromkeys(other_columns))), REGRESSION
    reasons_against = {
        c.name: _reason_to_ignore(c) or ("one value" if c.different < 2 else f"{c.different:,} different values")
        for c in columns
    }
    raise DataError(
        f"{KEY}: no column of {sample.path} can be predicted: {_list_reasons(reasons_against)}",
        "a column of classes that come back, or of numbers",
        "name it with --target COLUMN",
    )


def _choose_task(request: SurveyRequest, targets: list[ColumnProfile]) -> str:
    """The task for the target columns: the requested one, else classes rather than numbers."""
    only_target = targets[0] if len(targets) == 1 else None
    are_numbers = all(c.kind == "number" for c in targets)
    possible = []
    if only_target.trainable if only_target else all(c.binary for c in targets):
        possible.append(CLASSIFICATION)
    if are_numbers:
        possible.append(REGRESSION)
    if only_target and are_numbers and not only_target.classes:
        possible.reverse()
    if not possible or (request.task and request.task not in possible):
        raise SpecError(
            f"{KEY}: {table_sample.describe_values(targets)}",
            "one column of classes or of numbers; several columns of 0 and 1, or several of numbers",
            "name other columns with --target",
        )
    return request.task or possible[0]


def _reason_to_ignore(column: ColumnProfile) -> str:
    """Why a column is no feature; empty if it is one."""
    return column.refused or ("an identifier" if table_sample.is_identifier(column) else "")


def _list_reasons(ignored: dict[str, str]) -> str:
    lines = [f"{name} ({reason})" for name, reason in ignored.items()]
    return list_names(lines, MAX_LISTED_COLUMNS)


def _describe_targets(targets: list[ColumnProfile], task: str) -> list[str]:
    if task == REGRESSION or len(targets) > 1:
        return [f"{c.name} has {c.different:,} different numbers" for c in targets]
    counts, *single_samples = first_values.describe_classes(targets[0].counts)
    return [f"{targets[0].name} has {counts}", *single_samples]


def _note_unused(
    request: SurveyRequest, sample: TableSample, guess: TargetGuess, ignored: dict[str, str]
) -> Iterator[str]:
    """Lines on long texts, dates and an order in time, which the draft does not use, and on what uses them."""
    columns = sample.columns.values()
    if name := next((c.name for c in columns if c.long_text and c.name not in guess.names), ""):
        yield f"the texts in {name} are not used; to train on them: --task text-classification"
    if name := next((name for name, reason in ignored.items() if reason == DATE), ""):
        # A part whose column is there already would be refused.
        parts = [part for part in ("year", "month", "weekday") if f"{name}.{part}" not in sample.columns]
        if parts:
            yield f"the dates in {name} are not used; to use them: dates: {{{quote(name)}: [{', '.join(parts)}]}}"
    has_dates = request.task is None and any(c.refused == DATE for c in columns)
    if has_dates and (timed := series_draft.find_timed_rows(request, sample)):
        task = f"--task {series_draft.REGRESSION} --target COLUMN"
        yield f"each row is a sample; to train on windows over {timed.time}: {task}"
