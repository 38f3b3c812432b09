"""Tokens: ragged rows, the tokenizer and its vocabulary, lengths and padding."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow
import pytest

from drivetrain.data import stateless_random
from drivetrain.data.text import job_tokenizer, tokenizer
from drivetrain.data.text.encoded import Ragged
from drivetrain.errors import DataError
from jobs.samples import reports
from tests.messages import saying, says, says_only

ROWS = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9], [10, 11]]


def column(texts: list[str]) -> Any:
    return pyarrow.chunked_array([texts[: len(texts) // 2], texts[len(texts) // 2 :]], "string")


def rows(ragged: Ragged) -> list[list[int]]:
    return [ragged.flat[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]


def test_rows_come_back() -> None:
    ragged = Ragged.from_chunks([ROWS[:2], ROWS[2:]])
    assert rows(ragged) == ROWS
    assert ragged.lengths.tolist() == [3, 1, 0, 5, 2]
    assert ragged.flat.dtype == np.int32


def test_padded_to_the_longest() -> None:
    numbers, mask = Ragged.from_chunks([ROWS]).pad(np.array([4, 2, 0]), 99)
    assert numbers.tolist() == [[10, 11, 99], [99, 99, 99], [1, 2, 3]]
    assert mask.tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]


WORDS = ["La bomba GOTEA aceite", "el motor está caliente", "se oyó un chirrido", "mañana vibró el eje"] * 6


def test_the_same_texts_give_the_same_vocabulary(tmp_path: Path) -> None:
    """The library's own trainer numbers letters in the order of a hash table, which differs from call to call."""
    path = reports.write(tmp_path, 200, 0)[0]
    texts = column([line.split(".")[0] for line in path.read_text(encoding="utf-8").splitlines()])
    vocabularies = {tokenizer.learn([texts], 600).inner.to_str() for _ in range(4)}
    assert len(vocabularies) == 1


def test_lower_case_with_accents() -> None:
    word_tokenizer = tokenizer.learn([column(WORDS)], 200)
    upper, lower, plain, decomposed = (
        rows(word_tokenizer.encode([column([text, text])]).sequences())[0]
        for text in ("MAÑANA VIBRÓ", "mañana vibró", "manana vibro", "man\u0303ana vibro\u0301")
    )
    assert upper == lower == decomposed
    assert plain != lower


def test_special_tokens_stand_at_both_ends() -> None:
    word_tokenizer = tokenizer.learn([column(WORDS)], 200)
    ids = rows(word_tokenizer.encode([column(["la bomba", "xyz 漢"])]).sequences())
    assert all(row[0] == 2 and row[-1] == 3 for row in ids)
    assert (word_tokenizer.pad, word_tokenizer.unknown_token) == (0, 1)
    assert ids[1][-2] == word_tokenizer.unknown_token


@pytest.mark.parametrize("size", [100, 150, 400])
def test_a_vocabulary_is_not_larger_than_requested(tmp_path: Path, size: int) -> None:
    texts = [row[0] for row in _reports(tmp_path)]
    assert 50 < tokenizer.learn([column(texts)], size).vocabulary_size <= size


def _reports(folder: Path) -> list[list[str]]:
    with reports.write(folder, 200, 0)[0].open(encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def test_a_tokenizer_survives_json() -> None:
    word_tokenizer = tokenizer.learn([column(WORDS)], 200)
    texts = column(["el motor está muy caliente hoy", "la bomba gotea"])
    cut = word_tokenizer.encode([texts]).sequences(5)
    stored = json.loads(json.dumps(word_tokenizer.to_json(5, "right")))
    restored_tokenizer = tokenizer.from_json(stored)
    assert rows(restored_tokenizer.encode([texts]).sequences(5)) == rows(cut)
    # Alone, in another program, it truncates too.
    library_tokenizer = tokenizer.load_library().Tokenizer.from_str(stored["json"])
    assert [library_tokenizer.encode(text).ids for text in texts.to_pylist()] == rows(cut)
    assert max(map(len, rows(cut))) == 5
    assert (restored_tokenizer.pad, restored_tokenizer.vocabulary_size, restored_tokenizer.unknown_token) == (
        word_tokenizer.pad,
        word_tokenizer.vocabulary_size,
        word_tokenizer.unknown_token,
    )


TEXTS = np.array([10] * 50 + [20] * 45 + [41] * 4 + [90])


@pytest.mark.parametrize(
    ("setting", "limit", "expected", "explanation"),
    [
        ("auto", None, 48, "p99 rounded up to a multiple of 8; 1.0% of the texts are cut (1 of 100), 2.5% of all"),
        ("auto", 512, 48, "p99 rounded up to a multiple of 8"),
        ("auto", 32, 32, "the limit of this network, less than p99; 5.0% of the texts are cut (5 of 100)"),
        (90, 512, 90, "set by the job; no text is cut"),
        (16, None, 16, "set by the job; 50.0% of the texts are cut (50 of 100)"),
    ],
)
def test_max_length(setting: int | Literal["auto"], limit: int | None, expected: int, explanation: str) -> None:
    length, notes = job_tokenizer.choose_length(setting, TEXTS, limit)
    assert length == expected
    assert notes[0] == "tokens per text: p50 10, p95 20, p99 41, max 90"
    assert notes[1].startswith(f"max_length {expected}: {explanation}")


def test_auto_has_a_limit_where_the_network_has_none() -> None:
    length, notes = job_tokenizer.choose_length("auto", np.array([2000] * 10), None)
    assert length == 512
    assert says(notes[1], "most-auto-uses-less", "100.0")


def test_padding_is_counted_over_the_batches_of_an_epoch() -> None:
    sizes = np.array([3, 9, 4, 4, 8, 1, 5])
    order = sizes[stateless_random.shuffle_samples(7, 0, len(sizes))]
    filled = sum(max(part) * len(part) for part in (order[:3].tolist(), order[3:6].tolist(), order[6:].tolist()))
    note = job_tokenizer.padding(sizes, 10, 3, 7).note()
    assert says_only(
        note, "padding-batch-filled-max", f"{1 - 34 / 70:.0%}", f"{1 - 34 / filled:.0%}", 512, "optimize.unpadding"
    )


def test_sample_texts_are_skewed_and_the_same_for_a_seed(tmp_path: Path) -> None:
    first, same_seed, other_seed = (
        reports.write(tmp_path / name, 400, seed)[0].read_text(encoding="utf-8")
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == same_seed != other_seed
    report_rows = _reports(tmp_path / "a")
    word_counts = np.array([len(row[0].split()) for row in report_rows])
    assert np.percentile(word_counts, 95) > 3 * np.median(word_counts)
    for column_index, classes in ((1, 7), (2, 8), (3, 4)):
        counts = Counter(row[column_index] for row in report_rows).values()
        assert len(counts) == classes
        assert max(counts) > 2 * min(counts)


def test_a_tokenizer_that_panics_is_refused_without_its_text(capfd: pytest.CaptureFixture[str]) -> None:
    """An expression that needs exponential time for a text; what others write meanwhile is not lost."""
    library = tokenizer.load_library()
    inner = library.Tokenizer(library.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    inner.pre_tokenizer = library.pre_tokenizers.Split(library.Regex("(a+)+$"), "isolated")
    with pytest.raises(DataError, check=saying("tokenizer-split-text-onig")):
        tokenizer.Tokenizer(inner, 0).encode([pyarrow.chunked_array([["a" * 40 + "b"]])])
    assert capfd.readouterr().err == ""
    with tokenizer.refuse_panics():
        os.write(2, b"kept")
    assert capfd.readouterr().err == "kept"
