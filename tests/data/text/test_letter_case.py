"""Capital letters and accents that a tokenizer drops although labels depend on them: said, and kept where the job says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.data.text.corpus import TextSplit
from drivetrain.errors import SpecError
from tests import reports
from tests.messages import omits, saying, says

WORDS = ["bomba", "motor", "eje", "gotea", "vibra", "aceite", "junta"]
SAME = {
    "capital letters": ["Polish gotea", "polish gotea"],
    "capital letters of another alphabet": ["Роман gotea", "роман gotea"],
}


def write_pairs(folder: Path, texts: list[str]) -> None:
    """Texts with different labels, among others that differ in words."""
    others = [[f"{WORDS[i % 7]} {WORDS[i // 7]}", "ab"[i % 2]] for i in range(49)]
    reports.write_table(folder / "reports.csv", others + [[text, "ab"[i]] for i, text in enumerate(texts)])


@pytest.mark.parametrize("name", SAME)
def test_texts_that_differ_in_capital_letters_are_named_and_can_be_kept_apart(tmp_path: Path, name: str) -> None:
    write_pairs(tmp_path, SAME[name])
    data = ", validation: reports.csv"
    notes = load(reports.job(tmp_path, labels="modo", data=data)).notes
    first, second = SAME[name]
    values = (1, "modo", f"reports.csv row 50: {first}", f"reports.csv row 51: {second}", "data.lower_case: false")
    assert says(notes, "texts-same-to-tokenizer", *values)
    assert omits(notes, "samples-different-labels-no-network", 1)
    cased_job = load(reports.job(tmp_path, labels="modo", data=f"{data}, lower_case: false"))
    assert not any("to this tokenizer" in note for note in cased_job.notes)
    assert "accents kept" in "\n".join(cased_job.notes)
    # The stored tokenizer keeps them for new texts.
    stored = json.loads(json.dumps(cased_job.preprocessing))
    new = load_data.load_new([tmp_path / "reports.csv"], stored, cased_job.heads, labelled=True)
    for split in (cased_job.train, new.split):
        assert isinstance(split, TextSplit)
        pair = [row[row != 0].tolist() for row in split.gather(np.array([49, 50]))[0]]
        assert pair[0] != pair[1]


def test_equal_texts_with_different_labels_have_no_way_out(tmp_path: Path) -> None:
    write_pairs(tmp_path, ["polish gotea", "polish  gotea"])
    notes = load(reports.job(tmp_path, labels="modo", data=", validation: reports.csv")).notes
    assert says(notes, "samples-different-labels-no-network", 1)
    assert not any("data.lower_case" in note for note in notes)


def test_accents_that_a_pretrained_tokenizer_strips_are_named(tmp_path: Path) -> None:
    saved = reports.save_encoder(tmp_path)
    tokenizer = json.loads((saved / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "BertNormalizer", "lowercase": True} | dict.fromkeys(
        ("clean_text", "handle_chinese_chars", "strip_accents"), True
    )
    (saved / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_pairs(tmp_path, ["papá gotea", "papa gotea"])
    model = f"{{source: transformers, name: {saved}}}"
    notes = load(reports.job(tmp_path, labels="modo", data=", validation: reports.csv", model=model)).notes
    values = (1, "modo", "reports.csv row 50: papá gotea", "reports.csv row 51: papa gotea")
    assert says(notes, "texts-same-to-pretrained-tokenizer", *values)
    with pytest.raises(SpecError, check=saying("lower-case-of-pretrained")):
        reports.job(tmp_path, labels="modo", data=", lower_case: false", model=model)


@pytest.mark.parametrize(("lower_case", "is_said"), [("true", True), ("false", False)])
def test_a_class_in_capital_letters_is_named(tmp_path: Path, lower_case: str, is_said: bool) -> None:
    texts = [f"{WORDS[i % 7]} {WORDS[i // 7 % 7]} {i}" for i in range(60)]
    rows = [[text.upper() if i % 2 else text, ("calm", "angry")[i % 2]] for i, text in enumerate(texts)]
    reports.write_table(tmp_path / "reports.csv", rows)
    notes = load(reports.job(tmp_path, labels="modo", data=f", lower_case: {lower_case}")).notes
    found = any("the share of capital letters" in note for note in notes)
    assert found == is_said
    if is_said:
        assert says(notes, "capital-letters-alone-tell", "angry, calm", "modo")
