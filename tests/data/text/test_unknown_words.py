"""Text that a tokenizer does not know is measured and named wherever texts are read, and long words are no such text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import tokenizers

from drivetrain.baselines import measure
from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.data.text import tokenizer, unknown_words
from drivetrain.data.text.tokenizer import Tokenizer
from drivetrain.errors import DataError
from drivetrain.report.baseline_results import LINEAR, Baseline
from tests import reports
from tests.messages import saying, says

WORDS = ["bomba", "motor", "eje", "gotea", "vibra", "aceite"]


def column(texts: list[str]) -> Any:
    return pyarrow.chunked_array([texts], "string")


def write_sequences(folder: Path, letters: int, count: int = 120) -> None:
    """Sequences without a blank; only a motif in their middle tells the class."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        start, end = ("".join(draw.choices("ACGT", k=letters // 2)) for _ in range(2))
        rows.append([start + ("TATAAAGC", "GGCCAATC")[number % 2] * 3 + end, "ab"[number % 2]])
    reports.write_table(folder / "reports.csv", rows)


@pytest.mark.parametrize("letters", [100, 101, 150, 3000])
def test_long_words_are_read(letters: int) -> None:
    """The library reads a word of more than 100 letters as one unknown token."""
    draw = random.Random(0)
    words = ["".join(draw.choices("ACGT", k=letters)) for _ in range(20)]
    learned = tokenizer.learn([column(words)], 400)
    restored = tokenizer.from_json(learned.to_json(512, "right"))
    for one in (learned, restored):
        encoded = one.encode([column(words)])
        assert unknown_words.measure(one, encoded) == unknown_words.UnknownWords(0.0, 0, 20, None)
        assert [one.inner.decode(row).replace(" ", "").replace("##", "") for row in split_rows(encoded.columns[0])] == [
            word.lower() for word in words
        ]


def split_rows(ragged: Any) -> list[list[int]]:
    return [ragged.flat[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]


LIBRARY = {
    "ours": lambda: tokenizer.learn([column([" ".join(WORDS)] * 3)], 400).inner,
    "unigram": lambda: tokenizers.Tokenizer(
        tokenizers.models.Unigram([("<unk>", 0.0), *((letter, -1.0) for letter in "abcdefghijmortvx ")], 0, False)
    ),
    "letters are dropped": lambda: tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: number for number, letter in enumerate("abcdefghijmortvx ")}, [])
    ),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_every_kind_of_tokenizer_is_measured(name: str) -> None:
    text_tokenizer = Tokenizer(LIBRARY[name](), 0)
    texts = [column(["bomba", "ЖЖЖ", "motor"]), column(["eje", "ЩЩ", "gotea"])]
    found = unknown_words.measure(text_tokenizer, text_tokenizer.encode([texts[0]]))
    assert (found.unread, found.texts, found.example) == (1, 3, 1)
    notes = unknown_words.describe(found, text_tokenizer, texts[:1], "texts", lambda row: f"row {row + 1}")
    assert "1 of 3 texts" in notes[0]
    assert "row 2" in notes[0]


def test_all_columns_of_a_text_count_without_special_tokens() -> None:
    ours = tokenizer.learn([column([" ".join(WORDS)] * 3)], 400)
    encoded = ours.encode([column(["bomba", "ЖЖЖ eje"]), column(["ЩЩ", "ЖЖЖ"])])
    assert unknown_words.measure(ours, encoded) == unknown_words.UnknownWords(3 / 5, 0, 2, 0)


NEW = {
    "capitals with a dot": ("İLGİNÇ", "ilginç"),
    "vowel signs": ("مُمتازٌ", "ممتاز"),
    "another script": ("насос", "pump"),
}


@pytest.mark.parametrize("name", NEW)
def test_new_and_validation_texts_are_measured(tmp_path: Path, name: str) -> None:
    new, known = NEW[name]
    reports.write_table(tmp_path / "reports.csv", [[f"{known} {WORDS[i % 6]}", "ab"[i % 2]] for i in range(60)])
    other = reports.write_table(tmp_path / "new.csv", [["bomba motor", "a"], [new, "b"], [f"eje {new}", "a"]])
    dataset = load(reports.job(tmp_path, labels="modo", data=", validation: new.csv"))
    assert says(dataset.notes, "tokens-unknown-validation", "40.00", 1, 3, "new.csv row 2", new)
    for labelled in (False, True):
        data = load_data.load_new([other], dataset.preprocessing, dataset.heads, labelled=labelled)
        assert says(data.notes, "tokens-unknown-new", "40.00", 1, 3, "new.csv row 2", new)


def test_texts_that_a_pretrained_tokenizer_cannot_read_are_refused(tmp_path: Path) -> None:
    saved = reports.save_encoder(tmp_path)
    rows = [[f"насос {'течёт' if i % 2 else 'гудит'}", "ab"[i % 2]] for i in range(40)]
    reports.write_table(tmp_path / "reports.csv", rows)
    job = reports.job(tmp_path, labels="modo", model=f"{{source: transformers, name: {saved}}}")
    with pytest.raises(DataError, check=saying("training-texts-unknown", "100.00", 36, 36)):
        load(job)
    # As the error says.
    assert not load(reports.job(tmp_path, labels="modo", model="encoder")).facts["unknown_words"]["share"]


def test_a_simple_model_reads_letters_where_words_are_long(tmp_path: Path) -> None:
    write_sequences(tmp_path, 300)
    job = reports.job(tmp_path, labels="modo", model="{name: linear}")
    dataset = load(job)
    # Even where the tokens say nothing.
    for split in (dataset.train, dataset.validation):
        split.tokens.flat[:] = 1  # type: ignore[attr-defined]
    rows = {row.name: row for row in measure.fit_simple_models(job, dataset, np.inf) if isinstance(row, Baseline)}
    assert rows[LINEAR].metrics["validation/accuracy"] == 1.0
