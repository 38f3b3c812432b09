"""Drafts a spec for a table of texts with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from drivetrain.data.labels import list_names
from drivetrain.data.survey import first_values, table_sample
from drivetrain.data.survey.request import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import ColumnProfile, TableSample
from drivetrain.errors import DataError
from drivetrain.job.draft import Draft, Entry, quote, quote_all
from drivetrain.job.text import TextJob

TASK = "text-classification"
_PAIR_ENDINGS = (("1", "2"), ("_1", "_2"), ("_a", "_b"))
"""Endings of the names of two columns whose texts belong together."""
MOST_HEADS = 4
"""Most label columns of a text job; with more, the data is treated as a table with a text column."""
MIN_LINEAR_WORDS = 5
"""Words of the median text from which on the draft has the linear model. Its accuracy beside that of a small encoder, 1,000 to 16,000
texts: 0.68 to 0.68 and 0.46 to 0.48 with 7 words; 0.48 to 0.48 and 0.33 to 0.24 with 17; 0.68 to 0.62 and 0.54 to 0.42 with 41. It trains
in a half to a seventh of the time.
"""
LINEAR_RATE, ENCODER_RATE = "1e-3", "4e-3"
"""At the encoder's rate the linear model learns the training texts by heart in an epoch: 0.651 to 0.678 with 7 words."""
LINEAR_REASON = (
    "a bag of words and pairs, solved in seconds; encoder: a small network; pretrained: `init --pretrained FOLDER|NAME`"
)
STEPS_REASON = "these keys are for another network, or train.solve_heads: false: a linear model is solved"
NETWORK_REASON = "trained from scratch on these texts; a pretrained one: `init --pretrained FOLDER|NAME`"
_PAIRS: tuple[tuple[str, str], ...] = (
    *(("premise", "hypothesis"), ("question", "answer"), ("question", "sentence"), ("question", "passage")),
    *(("query", "passage"), ("query", "document"), ("title", "abstract"), ("title", "text"), ("title", "body")),
    *(("title", "description"), ("subject", "body"), ("premisa", "hipótesis"), ("pregunta", "respuesta")),
    *((f"{name}{one}", f"{name}{two}") for name in ("sentence", "question", "text") for one, two in _PAIR_ENDINGS),
)
"""Names of two columns whose texts belong together."""


def find_text_columns(request: SurveyRequest, sample: TableSample) -> list[ColumnProfile]:
    """Find the text columns: those of --text, else the one with the longest texts, and its partner if they are a pair.

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
    candidates = [c for c in text_columns if c.long_text or (request.task == TASK and not c.classes)]
    if not candidates:
        return []
    # A column that repeats its texts is not the one to learn from.
    longest = max(candidates, key=lambda c: c.words * (c.different > c.filled / 2))
    by_folded_name = {c.name.casefold(): c for c in text_columns}
    pairs = ([by_folded_name[name] for name in pair] for pair in _PAIRS if all(name in by_folded_name for name in pair))
    return next((pair for pair in pairs if longest in pair), [longest])


def draft_texts(request: SurveyRequest, sample: TableSample, texts: Sequence[ColumnProfile]) -> Draft | None:
    """The draft for the texts of one or several columns; None if no column has labels."""
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
    description = "; ".join(f"{column.name} holds texts, median {column.words:g} words" for column in texts)
    draft = Draft(TASK, f"column {description}")
    draft.found = [sample.size]
    for column in columns:
        counts, *single_samples = first_values.describe_classes(column.counts)
        draft.found += [f"{column.name} has {counts}", *single_samples]
    draft.choices = list(guess.choice)
    if len(guess.names) > 1:
        heads = f"one output for each of {list_names(guess.names)}"
        draft.choices.append(f"{heads}; remove columns that are not labels, or choose with --target")
    draft.data = [
        request.path_entry("train", sample.path, sample.size),
        _text_entry(texts),
        Entry("labels", guess.value, guess.reason),
        first_values.validation(sample.rows, "texts"),
        Entry("max_length", "auto", "tokens, chosen from the texts: 99% of them fit"),
        *first_values.bad_samples(sample.lost([*used[:1], *guess.names]), "lack a text or a label and are left out"),
    ]
    # With several label columns the generated texts of `drivetrain sample` say the opposite: 0.78 beside 0.89.
    is_linear = texts[0].words >= MIN_LINEAR_WORDS and len(guess.names) == 1
    network = "linear" if is_linear else "{name: encoder, layers: 1, width: 64}"
    draft.model = Entry("model", network, LINEAR_REASON if is_linear else NETWORK_REASON)
    rate = LINEAR_RATE if is_linear else ENCODER_RATE
    draft.train = first_values.training(sample.rows, 36_000, (3, 20), 32, "texts", rate)
    if is_linear:
        draft.train = [replace(entry, reason=STEPS_REASON if entry.key == "epochs" else "") for entry in draft.train]
    if len(guess.names) > 1:
        best = f"validation/{guess.names[0]}/{TextJob.BEST}"
        draft.checkpoint = [Entry("best", quote(best), "selects the weights that are kept; name another column's here")]
    return draft


def _text_entry(texts: Sequence[ColumnProfile]) -> Entry:
    first = texts[0]
    if len(texts) == 1:
        return Entry("text", quote(first.name), f"median {first.words:g} words, {first.different:,} different texts")
    reason = "encoded together, as a pair" if len(texts) == 2 else ""
    return Entry("text", quote_all([column.name for column in texts]), reason)


def _guess_labels(sample: TableSample, texts: Sequence[str]) -> table_sample.TargetGuess | None:
    """Guess the label columns: a single one with a typical name, else all with few values; None if there is none."""
    named, candidates = table_sample.find_classes(c for c in sample.columns.values() if c.name not in texts)
    if named or not candidates:
        return named
    counts = np.array([c.different for c in candidates])
    values = f"{counts[0]}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    return table_sample.TargetGuess(tuple(c.name for c in candidates), f"columns with few different values: {values}")
