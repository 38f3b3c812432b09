"""Drafts a spec for a table: predict one column from the others, or labels from columns of texts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from drivetrain.data.formats import times
from drivetrain.data.notes import list_names
from drivetrain.data.survey import settings, table_sample
from drivetrain.data.survey.settings import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import DATE, ColumnProfile, TableSample, TargetGuess
from drivetrain.data.tables import text_column
from drivetrain.errors import DataError
from drivetrain.job import FORECASTING
from drivetrain.job.draft import Draft, Entry, quote, quote_all
from drivetrain.job.text import TextJob
from drivetrain.tasks import MODALITIES

CLASSIFICATION, REGRESSION, TEXTS = "tabular-classification", "tabular-regression", "text-classification"
TRAINING_STEPS = 1200
"""Number of steps of a training. With more, small tables were memorized: on four sets 15 to 25 epochs were as good as
50 or better (accuracy 0.850 and 0.854 with 15, 0.800 and 0.838 with 50 epochs, 960 rows, two seeds).
"""
LARGEST_BATCH = 256
MOST_ENSEMBLE_ROWS = 50_000
"""Largest number of rows for which classes are drafted with tabm. Its steps take five times as long as the steps of one
perceptron, and with more rows one perceptron learns enough.
"""
MAX_LISTED_COLUMNS = 4
"""Largest number of ignored columns whose reason is listed."""
MOST_HEADS = 4
"""Largest number of label columns of a text job; with more, the data is treated as a table with a text column."""
MIN_LINEAR_WORDS = 5
"""Smallest number of words of the median text for which the draft has the linear model. Its accuracy next to a small
encoder's, 1,000 to 16,000 texts: 0.68 to 0.68 and 0.46 to 0.48 with 7 words; 0.48 to 0.48 and 0.33 to 0.24 with 17;
0.68 to 0.62 and 0.54 to 0.42 with 41. It trains in a half to a seventh of the time.
"""
LINEAR_RATE, ENCODER_RATE = "1e-3", "4e-3"
"""Learning rates. At the encoder's rate the linear model overfits in an epoch: 0.651 to 0.678 with 7 words."""
LINEAR_REASON = (
    "a bag of words and pairs, solved in seconds; encoder: a small network; pretrained: `init --pretrained FOLDER|NAME`"
)
STEPS_REASON = "these keys are for another network, or train.solve_heads: false: a linear model is solved"
NETWORK_REASON = "trained from scratch on these texts; a pretrained one: `init --pretrained FOLDER|NAME`"


def draft_table(request: SurveyRequest, sample: TableSample) -> Draft:
    """Draft a spec for the rows of a table.

    Raises:
        DataError: if there is no target, or no feature.
        SpecError: if the named target does not fit the named task.
    """
    guess = _guess_target(request, sample)
    targets = [sample.columns[name] for name in guess.names]
    task, kind = table_sample.choose_task(request, guess, targets, (CLASSIFICATION, REGRESSION))
    groups = table_sample.draft_groups(sample, guess.names, "rows")
    used = {*map(quote, guess.names), *(group.value for group in groups)}
    unused = [c for c in sample.columns.values() if quote(c.name) not in used]
    ignored = {c.name: reason for c in unused if (reason := _reason_to_ignore(c))}
    features = [c for c in unused if c.name not in ignored]
    if not any(c.different > 1 for c in features):
        raise DataError(
            f"{KEY}: {sample.path} has no column to predict {list_names(guess.names)} from: {_list_reasons(ignored) or 'it has no other'}",
            "at least one column of numbers or categories that differ between rows",
            FORECASTING if DATE in ignored.values() else "add columns, or name another one with --target",
        )
    goal = {"class": f"{targets[0].different:,} different values", "labels": "labels of 0 and 1", "numbers": "numbers"}
    draft = Draft(task, f"{list_names(guess.names)}: {goal[kind]}")
    draft.found = [sample.size, *table_sample.describe_targets(targets, kind)]
    draft.choices = [*guess.list_choices(sample.columns.values()), *_note_unused(request, sample, guess, ignored)]
    draft.choices += [
        line for c in sample.columns.values() if c.name not in guess.names and not c.long_text for line in c.digits
    ]
    if kind == "class":
        draft.choices += text_column.note_digit_classes(targets[0].name, targets[0].counts)
    as_numbers = [c.name for c in features if c.numeric]
    reason = "numbers, but a few cells are text; those rows are left out"
    draft.data = [
        request.path_entry("train", sample.path, sample.size),
        Entry("target", guess.value, guess.reason),
        *([Entry("ignore", quote_all(ignored), _list_reasons(ignored))] if ignored else []),
        *([Entry("numeric", quote_all(as_numbers), reason)] if as_numbers else []),
        *groups,
        settings.validation(sample.rows, "rows"),
        *settings.bad_samples(sample.lost(guess.names), f"have no {list_names(guess.names)}, and are left out"),
    ]
    count = sum(c.kind == "number" or c.numeric for c in features)
    kinds = f"{count} columns of numbers, {len(features) - count} of categories"
    network, reason = _choose_network(task, sample.rows)
    skip = ", skip: true" if sample.rows <= settings.MOST_SKIP_SAMPLES else ""
    draft.model = Entry("model", f"{{name: {network}, hidden: [256, 128], dropout: 0.2{skip}}}", f"{kinds}; {reason}")
    samples_in_all = TRAINING_STEPS * int(settings.batch_size(sample.rows, LARGEST_BATCH).value)
    draft.train = settings.training(sample.rows, samples_in_all, (3, 25), LARGEST_BATCH, "rows", "3e-3")
    return draft


def _choose_network(task: str, rows: int) -> tuple[str, str]:
    """Choose an ensemble if it was better, else one perceptron: docs/measurements/quality-2026-12-01.md."""
    if task == CLASSIFICATION and rows <= MOST_ENSEMBLE_ROWS:
        return "tabm", "an ensemble; mlp trains several times as fast"
    return "mlp", "tabm is an ensemble, and takes longer"


def _guess_target(request: SurveyRequest, sample: TableSample) -> TargetGuess:
    """Guess the columns to predict, unless the user named them."""
    if guess := table_sample.find_named(request, sample):
        return guess
    columns = list(sample.columns.values())
    classes = table_sample.guess_classes(columns) if request.task != REGRESSION else None
    numbers = table_sample.guess_number(columns) if request.task != CLASSIFICATION else None
    # A number named like a target is preferred to classes that are only the last column with few values.
    if classes and (classes.reason == table_sample.BY_NAME or not numbers or numbers.reason != table_sample.BY_NAME):
        return classes
    if numbers:
        return numbers
    reasons_against = {
        c.name: _reason_to_ignore(c) or ("one value" if c.different < 2 else f"{c.different:,} different values")
        for c in columns
    }
    raise DataError(
        f"{KEY}: no column of {sample.path} can be predicted: {_list_reasons(reasons_against)}",
        "a column of classes that come back, or of numbers",
        "name it with --target COLUMN",
    )


def _reason_to_ignore(column: ColumnProfile) -> str:
    """Explain why a column is no feature; empty for a feature."""
    return column.refused or ("an identifier" if table_sample.is_identifier(column) else "")


def _list_reasons(ignored: dict[str, str]) -> str:
    lines = [f"{name} ({reason})" for name, reason in ignored.items()]
    return list_names(lines, MAX_LISTED_COLUMNS)


def _note_unused(
    request: SurveyRequest, sample: TableSample, guess: TargetGuess, ignored: dict[str, str]
) -> Iterator[str]:
    """Yield lines on long texts, dates and an order in time that the draft does not use, and on how to use them."""
    columns = sample.columns.values()
    if name := next((c.name for c in columns if c.long_text and c.name not in guess.names), ""):
        yield f"the texts in {name} are not used; to train on them: --task text-classification"
    if name := next((name for name, reason in ignored.items() if reason == DATE), ""):
        # A part whose column already exists would be refused.
        usual_parts = (
            ("hour", "minute") if times.has_clock_alone(sample.columns[name].form) else ("year", "month", "weekday")
        )
        parts = [part for part in usual_parts if f"{name}.{part}" not in sample.columns]
        if parts:
            yield f"the dates in {name} are not used; to use them: dates: {{{quote(name)}: [{', '.join(parts)}]}}"
    if request.task is None and any(c.refused == DATE for c in columns):
        suggestions = [modality.suggest(request, sample) for modality in MODALITIES.values()]
        yield from filter(None, suggestions)


def find_text_columns(request: SurveyRequest, sample: TableSample) -> list[ColumnProfile]:
    """Find the text columns: named by --text, else the longest texts, with those named alike, such as text1 and text2.

    Raises:
        DataError: if a column that --text names contains no texts.
    """
    for name in request.texts:
        column = sample.columns.get(name)
        if column is None or column.kind != "text":
            texts = [c.name for c in sample.columns.values() if c.kind == "text"]
            raise DataError(
                f'--text {name}: {sample.path} has no column "{name}" of texts',
                f"its columns of text: {list_names(texts) or 'none'}",
                "name one of these",
            )
    if request.texts:
        return [sample.columns[name] for name in request.texts]
    text_columns = [c for c in sample.columns.values() if c.kind == "text" and c.name not in request.targets]
    # Long texts or, for --task text-classification, any text that is no class.
    candidates = [c for c in text_columns if c.long_text or (request.task == TEXTS and not c.classes)]
    if not candidates:
        return []
    # A column that repeats its texts is not the column to learn from.
    longest = max(candidates, key=lambda c: c.words * (c.different > c.filled / 2))
    return [c for c in candidates if c is longest or (c.long_text and c.name[:-1] == longest.name[:-1])]


def draft_texts(request: SurveyRequest, sample: TableSample, texts: Sequence[ColumnProfile]) -> Draft | None:
    """Draft a spec for the texts of one or several columns; None if no column has labels."""
    used = [column.name for column in texts]
    guess = table_sample.find_named(request, sample) or _guess_labels(sample, used)
    # Without labels, or with a --target that is itself the text, this is no text job.
    if guess is None or set(used) & set(guess.names):
        return None
    if not (request.task or request.texts or request.targets) and len(guess.names) > MOST_HEADS:
        return None
    columns = [sample.columns[name] for name in guess.names]
    if bad := next((column for column in columns if not column.trainable), None):
        raise DataError(
            f'{KEY}: column "{bad.name}" of {sample.path} has {bad.different:,} different values in {bad.filled:,} rows',
            "labels that come back: classes",
            "name a column of labels with --target",
        )
    text_facts = "; ".join(f"median {c.words:g} words, {c.different:,} different texts" for c in texts)
    draft = Draft(TEXTS, f"{list_names(used)} {'holds' if len(used) == 1 else 'hold'} texts")
    draft.found = [sample.size, *(fact for c in columns for fact in table_sample.describe_targets([c], "class"))]
    draft.choices = guess.list_choices(sample.columns.values())
    if more_texts := [c.name for c in sample.columns.values() if c.long_text and c.name not in (*used, *guess.names)]:
        options = " ".join(f"--text {shlex.quote(name)}" for name in (*used, *more_texts))
        draft.choices.append(f"the texts in {list_names(more_texts)} are not used; to read all as one: {options}")
    if len(guess.names) > 1:
        heads = f"one output for each of {list_names(guess.names)}"
        draft.choices.append(f"{heads}; remove columns that are not labels, or choose with --target")
    draft.data = [
        request.path_entry("train", sample.path, sample.size),
        Entry("text", quote(used[0]) if len(used) == 1 else quote_all(used), text_facts),
        Entry("labels", guess.value, guess.reason),
        *table_sample.draft_groups(sample, (*used, *guess.names), "texts"),
        settings.validation(sample.rows, "texts"),
        Entry("max_length", "auto", "tokens, chosen from the texts: 99% of them fit"),
        *settings.bad_samples(sample.lost([*used[:1], *guess.names]), "lack a text or a label and are left out"),
    ]
    # With several label columns the generated texts of jobs/samples show the opposite: 0.78 instead of 0.89.
    is_linear = texts[0].words >= MIN_LINEAR_WORDS and len(guess.names) == 1
    network = "linear" if is_linear else "{name: encoder, layers: 1, width: 64}"
    draft.model = Entry("model", network, LINEAR_REASON if is_linear else NETWORK_REASON)
    rate = LINEAR_RATE if is_linear else ENCODER_RATE
    draft.train = settings.training(sample.rows, 36_000, (3, 20), 32, "texts", rate)
    if is_linear:
        draft.train = [replace(entry, reason=STEPS_REASON if entry.key == "epochs" else "") for entry in draft.train]
    if len(guess.names) > 1:
        best = f"validation/{guess.names[0]}/{TextJob.BEST}"
        draft.checkpoint = [Entry("best", quote(best), "selects the weights that are kept; name another column's here")]
    return draft


def _guess_labels(sample: TableSample, texts: Sequence[str]) -> table_sample.TargetGuess | None:
    """Guess the label columns: one with a typical name, else all columns with few values; None if there is none."""
    columns = [column for column in sample.columns.values() if column.name not in texts]
    candidates = [column for column in columns if table_sample.can_be_classes(column)]
    guess = table_sample.guess_classes(columns)
    if guess is None or guess.reason == table_sample.BY_NAME:
        return guess
    counts = np.array([c.different for c in candidates])
    values = f"{counts[0]}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    return table_sample.TargetGuess(tuple(c.name for c in candidates), f"columns with few different values: {values}")
