"""Drafts a spec for a table of texts with labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drivetrain.data.labels import list_names
from drivetrain.data.survey import first_values, target_guess
from drivetrain.data.survey.request import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import ColumnProfile, TableSample
from drivetrain.errors import DataError
from drivetrain.job.draft import Draft, Entry, flow, scalar
from drivetrain.job.text import TextJob

TASK = "text-classification"
_ENDS = (("1", "2"), ("_1", "_2"), ("_a", "_b"))
MOST_HEADS = 4
"""Columns with few values beside a text; more are a table, of which the text is one column."""


_PAIRS: tuple[tuple[str, str], ...] = (
    *(("premise", "hypothesis"), ("question", "answer"), ("question", "sentence"), ("question", "passage")),
    *(("query", "passage"), ("query", "document"), ("title", "abstract"), ("title", "text"), ("title", "body")),
    *(("title", "description"), ("subject", "body"), ("premisa", "hipótesis"), ("pregunta", "respuesta")),
    *((f"{name}{one}", f"{name}{two}") for name in ("sentence", "question", "text") for one, two in _ENDS),
)
"""Names of two columns whose texts belong together."""


def text_columns(request: SurveyRequest, sample: TableSample) -> list[ColumnProfile]:
    """The text columns: those of --text, else the one with the longest texts, with its partner if the two are a pair.

    Raises:
        DataError: if a named column contains no texts.
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
    able = [c for c in sample.columns.values() if c.name not in request.targets and _text(c, request)]
    if not able:
        return []
    longest = max(able, key=lambda c: c.words * (c.different > c.filled / 2))
    named = {
        c.name.casefold(): c for c in sample.columns.values() if c.kind == "text" and c.name not in request.targets
    }
    pairs = ([named[name] for name in pair] for pair in _PAIRS if all(name in named for name in pair))
    return next((pair for pair in pairs if longest in pair), [longest])


def text_draft(request: SurveyRequest, sample: TableSample, texts: Sequence[ColumnProfile]) -> Draft | None:
    """The draft for the texts of one or several columns; None if no column has labels."""
    used = [column.name for column in texts]
    guess = target_guess.find_named(request, sample) or _labels(sample, used)
    if guess is None or set(used) & set(guess.names):
        return None
    if not (request.task or request.texts or request.targets) and len(guess.names) > MOST_HEADS:
        return None
    columns = [sample.columns[name] for name in guess.names]
    wrong = [column for column in columns if not column.trainable]
    if wrong:
        raise DataError(
            f'{KEY}: column "{wrong[0].name}" of {sample.path} has {wrong[0].different:,} different values in '
            f"{wrong[0].filled:,} rows",
            "labels that come back: classes",
            "name a column of labels with --target",
        )
    description = "; ".join(f"{column.name} holds texts, median {column.words:g} words" for column in texts)
    draft = Draft(TASK, f"column {description}")
    draft.found = [sample.size]
    for column in columns:
        draft.found.append(f"{column.name} has {first_values.format_counts(column.counts)}")
        draft.found += first_values.single(column.counts)
    draft.choices = [*guess.choice, *_several(guess.names)]
    labels = flow(guess.names) if len(guess.names) > 1 else scalar(guess.names[0])
    draft.data = [
        Entry("train", scalar(request.written(sample.path)), sample.size),
        _text_entry(texts),
        Entry("labels", labels, guess.reason),
        first_values.validation(sample.rows, "texts"),
        Entry("max_length", "auto", "tokens, chosen from the texts: 99% of them fit"),
        *first_values.bad_samples(sample.lost([*used[:1], *guess.names]), "lack a text or a label and are left out"),
    ]
    draft.model = Entry("model", "{name: encoder, layers: 1, width: 64}", _NETWORK)
    weights = first_values.class_weights(columns[0].counts) if len(columns) == 1 and columns[0].counts else []
    draft.train = [
        first_values.epochs(sample.rows, 36_000, 3, 20, "texts"),
        first_values.batch_size(sample.rows, 32),
        *first_values.optimizer("4e-3", "a small encoder"),
        *weights,
    ]
    if len(guess.names) > 1:
        best = f"validation/{guess.names[0]}/{TextJob.BEST}"
        draft.checkpoint = [
            Entry("best", scalar(best), "selects the weights that are kept; name another column's here")
        ]
    return draft


_NETWORK = "trained from scratch on these texts; a pretrained one: `init --pretrained FOLDER|NAME`"


def _text(column: ColumnProfile, request: SurveyRequest) -> bool:
    return column.long_text or (request.task == TASK and column.kind == "text" and not column.classes)


def _text_entry(texts: Sequence[ColumnProfile]) -> Entry:
    first = texts[0]
    if len(texts) == 1:
        return Entry("text", scalar(first.name), f"median {first.words:g} words, {first.different:,} different texts")
    return Entry(
        "text", flow([column.name for column in texts]), ("encoded together, as a pair" if len(texts) == 2 else "")
    )


def _labels(sample: TableSample, texts: Sequence[str]) -> target_guess.TargetGuess | None:
    """A single column with a typical name, else every column with few values."""
    columns = [c for c in sample.columns.values() if c.name not in texts]
    telling = target_guess.by_name([c for c in columns if c.trainable], target_guess.CLASS_NAMES)
    able = [c for c in columns if c.classes and not target_guess.identifier(c)]
    if telling:
        return target_guess.TargetGuess((telling,), "by its name", tuple(c.name for c in able if c.name != telling))
    if not able:
        return None
    counts = np.array([c.different for c in able])
    values = f"{counts[0]}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    return target_guess.TargetGuess(tuple(c.name for c in able), f"columns with few different values: {values}")


def _several(names: tuple[str, ...]) -> list[str]:
    if len(names) == 1:
        return []
    return [f"one output for each of {list_names(names)}; remove columns that are not labels, or choose with --target"]
