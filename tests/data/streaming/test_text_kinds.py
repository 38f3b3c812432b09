"""Shards of texts as JSON lines and as tar files: how people write them, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
import tarfile
import unicodedata
from collections.abc import Mapping
from pathlib import Path

import pyarrow
import pytest

from drivetrain.data.load_data import load
from drivetrain.data.streaming import stores
from drivetrain.data.streaming.shard import kind
from drivetrain.errors import DataError
from tests.data.streaming import shards, text_shards
from tests.messages import saying, says


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))


def tar(path: Path, members: Mapping[str, str | bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            shards.add_member(file, name, content.encode() if isinstance(content, str) else content)
    return path


def read_error(path: Path, train: object = "s", labels: str = "label") -> str:
    with pytest.raises(DataError) as error:
        load(text_shards.job(path, train, labels=labels))
    assert all((error.value.given, error.value.possible, error.value.action))
    return str(error.value)


def read_labelled_texts(path: Path, **keys: str) -> list[tuple[str, str]]:
    """Every text with its label, as the network gets it."""
    data = load(text_shards.job(path, "s", **keys))  # type: ignore[arg-type]
    name, head = next(iter(data.heads.items()))
    return sorted(
        (split.title(index).partition(": ")[2], head.classes[int(split.targets[name][index])])
        for split in (data.train, data.validation)
        for index in range(len(split))
    )


def make_samples(count: int = 8) -> dict[str, dict[str, str]]:
    """Samples by name: their members."""
    return {f"{n:03}": {"txt": f"text number {n % 4}", "cls": ("no\n", " yes")[n % 2]} for n in range(count)}


def members(samples: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {f"{name}.{ending}": text for name, sample in samples.items() for ending, text in sample.items()}


def test_the_members_of_a_sample_may_stand_anywhere(tmp_path: Path) -> None:
    """`tar --sort=name` and `find | tar` put them in other orders; other members are not read."""
    one = members(make_samples())
    other = dict(sorted(one.items(), key=lambda member: member[0].rpartition(".")[2])) | {
        "000.jpg": b"x",
        "readme": "hi",
    }
    tar(tmp_path / "one/s/0.tar", one), tar(tmp_path / "one/s/1.tar", one)
    tar(tmp_path / "other/s/0.tar", other), tar(tmp_path / "other/s/1.tar", other)
    texts = read_labelled_texts(tmp_path / "one", labels="label")
    assert len(texts) == 16
    assert {label for _, label in texts} == {"no", "yes"}
    assert read_labelled_texts(tmp_path / "other", labels="label") == texts


def test_columns_of_a_tar_by_their_names(tmp_path: Path) -> None:
    for number in range(2):
        tar(
            tmp_path / f"s/{number}.tar",
            {
                "a.title.txt": "first title",
                "a.txt": "first text",
                "a.cls": "good",
                "b.json": json.dumps({"title": "second title", "text": "second text", "label": "bad"}),
                "b.txt": "is not read, since the .json has it",
            },
        )
    texts = read_labelled_texts(tmp_path, text="[text, title]", labels="label")
    assert len(texts) == 4
    assert {(text.split()[0], label) for text, label in texts} == {("first", "good"), ("second", "bad")}
    assert all(text.count("title") == 1 for text, _ in texts)


def test_lines_that_lack_a_key_or_a_text_are_left_out(tmp_path: Path) -> None:
    text_shards.write_shards(tmp_path / "s", ending=".jsonl")
    rows = [{"text": " ", "label": "good", "stars": 1}, {"text": "fine", "stars": 1}, {"text": "fine", "label": None}]
    (tmp_path / "s/0012.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    notes = "\n".join(load(text_shards.job(tmp_path, "s")).notes)
    assert "0012.jsonl sample 1: text is empty" in notes
    assert says(notes, "jsonl-sample-label-stars", "0012", 3)
    assert says(notes, "samples-used-skipped-3", 2, 120)
    # The second one trains the head that it has a label for.
    assert says(notes, "training-texts-label-count", "label", 1, 98)


def test_keys_in_another_form_of_unicode_are_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for number, form in enumerate(("NFC", "NFD")):
        rows = [{unicodedata.normalize(form, "línea"): f"word {n % 5}", "label": "ab"[n % 2]} for n in range(10)]
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        (tmp_path / f"s/{number}.jsonl").write_text(text, encoding="utf-8")
    assert len(read_labelled_texts(tmp_path, text="línea", labels="label")) == 20
    (tmp_path / "s/1.jsonl").write_text('{"l\u00ednea": "a", "li\\u0301nea": "b", "label": "a"}\n', encoding="utf-8")
    with pytest.raises(DataError, check=saying("key-in-two-spellings")):
        load(text_shards.job(tmp_path, "s", text="línea", labels="label"))


def test_numbers_are_the_same_labels_in_every_kind(tmp_path: Path) -> None:
    """Whole numbers and booleans of JSON are text, as those of a table are."""
    texts_by_ending = []
    for ending in (".parquet", ".jsonl", ".tar"):
        folder = tmp_path / ending[1:] / "s"
        folder.mkdir(parents=True)
        for number in range(2):
            rows = [
                {"id": n, "text": f"word {n % 5}", "label": n % 2 == 0} for n in range(number * 10, number * 10 + 10)
            ]
            text_shards.write_shard(folder / f"{number}{ending}", pyarrow.Table.from_pylist(rows))
        texts_by_ending.append(read_labelled_texts(folder.parent, labels="label"))
    assert texts_by_ending[0] == texts_by_ending[1] == texts_by_ending[2]
    assert {label for _, label in texts_by_ending[0]} == {"false", "true"}


@pytest.mark.parametrize(
    ("name", "content", "expected_text"),
    [
        pytest.param("1.jsonl", b'{"text": "a", "label": "b"}\n{"text": "a", "label', "line 2, column", id="cut off"),
        pytest.param("1.jsonl", b'["a", "b"]\n', "line 1 is no object", id="array"),
        pytest.param("1.jsonl", b'{"text": "a\xff", "label": "b"}\n', "line 1 is not UTF-8", id="not utf-8"),
        pytest.param("1.jsonl", b'{"text": 1.5, "label": "b"}\n', 'column "text" of shard', id="number"),
        pytest.param("1.jsonl", b'{"text": ["a"], "label": "b"}\n', "holds lists, not text", id="list"),
        pytest.param(
            "1.jsonl",
            b'{"text": "a", "label": "b"}\n{"text": 1, "label": "b"}\n',
            "holds cells of several types",
            id="mixed types",
        ),
        pytest.param("1.jsonl", b'{"text": "\\ud800", "label": "b"}\n', "surrogate", id="surrogate"),
        pytest.param("1.jsonl", b'{"body": "a", "label": "b"}\n', 'has no column "text"', id="no text column"),
        pytest.param("1.jsonl", b"[" * 100_000, "nested too deeply", id="nested too deeply"),
        pytest.param("1.jsonl", b'{"text": "a", "label": ' + b"9" * 5000 + b"}\n", "digits", id="many digits"),
        pytest.param(
            "1.jsonl.gz",
            gzip.compress(b'{"text": "a", "label": "b"}\n' * 99, mtime=0)[:-12],
            "1.jsonl.gz cannot be read",
            id="cut gzip",
        ),
        pytest.param("1.jsonl.gz", b'{"text": "a", "label": "b"}\n', "Not a gzipped file", id="no gzip"),
        pytest.param("1.jsonl.zst", b"nonsense", "1.jsonl.zst cannot be read", id="no zstandard"),
        pytest.param(
            "1.jsonl.zst",
            pyarrow.compress(b'{"text": "a", "label": "b"}\n', "zstd", asbytes=True)[:-4],
            "Truncated",
            id="cut zstandard",
        ),
    ],
)
def test_bad_lines_name_the_shard(tmp_path: Path, name: str, content: bytes, expected_text: str) -> None:
    (tmp_path / "s").mkdir()
    text_shards.write_shard(tmp_path / "s" / name.replace("1", "0", 1), text_shards.make_table(range(10)))
    (tmp_path / "s" / name).write_bytes(content)
    message = read_error(tmp_path)
    assert expected_text in message
    assert name in message


@pytest.mark.parametrize(
    ("wrong", "expected_text"),
    [
        ({"a.txt": b"\xff", "a.cls": "x"}, "a.txt is not UTF-8"),
        ({"a.json": "[1]"}, "a.json is no mapping"),
        ({"a.json": "{"}, "a.json line 1, column 2"),
        ({"a.txt": "one", "A.cls": "x"}, "has no column"),
        ({"a.txt": "one", "a.text.txt": "two", "a.cls": "x"}, "has text twice"),
        ({"a.png": b"x", "a.cls": "x"}, 'has no column "text"'),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_members_name_the_shard(tmp_path: Path, wrong: Mapping[str, str | bytes], expected_text: str) -> None:
    tar(tmp_path / "s/0.tar", members(make_samples()))
    tar(tmp_path / "s/1.tar", wrong)
    if expected_text == "has no column":
        # Two samples, since names differ; neither is whole.
        wrong = {name: text for name, text in wrong.items() if name != "A.cls"}
        tar(tmp_path / "s/1.tar", wrong)
    message = read_error(tmp_path)
    assert expected_text in message
    assert "1.tar" in message


def test_a_tar_that_is_cut_off(tmp_path: Path) -> None:
    path = tar(tmp_path / "s/0.tar", members(make_samples()))
    tar(tmp_path / "s/1.tar", members(make_samples()))
    path.write_bytes(path.read_bytes()[:2048])
    assert says(read_error(tmp_path), "tar-read-cut", 0)


def test_shards_of_several_splits_are_not_trained_on_together(tmp_path: Path) -> None:
    text_shards.write_shards(tmp_path / "s", 2, ending=".jsonl.gz")
    for number in range(2):
        (tmp_path / f"s/000{number}.jsonl.gz").rename(tmp_path / f"s/{('train', 'test')[number]}-00.jsonl.gz")
    assert says(
        read_error(tmp_path).replace("test-00.jsonl.gz, train-00.jsonl.gz", "train-00.jsonl.gz, test-00.jsonl.gz"),
        "several-splits-jsonl-gz",
        "train-00",
        "test-00",
    )


def test_words_in_the_name_of_a_data_set_are_no_splits() -> None:
    """`crash-test` is not for the final test."""
    stores.check_one_split(["crash-test-train-0.tar", "crash-test-train-1.tar"], "s3://b", "data.train")
    stores.check_one_split(["dev-kit-train.tar"], "s3://b", "data.train")
    with pytest.raises(DataError, match=r"crash-test-train-0\.tar, crash-test-val-0\.tar"):
        stores.check_one_split(["crash-test-train-0.tar", "crash-test-val-0.tar"], "s3://b", "data.train")


def test_kinds_by_names() -> None:
    assert {
        name: kind(name) for name in ("a.TAR", "a.parquet", "a.json.gz", "a.jsonl.zst", "index.json", "a.gz", "b")
    } == {
        "a.TAR": ".tar",
        "a.parquet": ".parquet",
        "a.json.gz": ".jsonl",
        "a.jsonl.zst": ".jsonl",
        "index.json": "",
        "a.gz": "",
        "b": "",
    }


@pytest.mark.parametrize("text", ["text", "[title, text]"])
@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".tar"])
def test_texts_that_are_in_both_parts_are_told_as_in_memory(tmp_path: Path, ending: str, text: str) -> None:
    """Validation scores would be too good, and nothing said so for streamed texts."""
    train, validation_texts = text_shards.make_table(range(40)), text_shards.make_table([3, 100, 7, 101, 7])
    for number in range(2):
        (tmp_path / "s").mkdir(exist_ok=True)
        text_shards.write_shard(tmp_path / f"s/{number}{ending}", train.slice(20 * number, 20))
    (tmp_path / "v").mkdir()
    # In a tar, the name of a sample is its id, which must not be there twice.
    numbered_texts = validation_texts.set_column(0, "id", pyarrow.array(range(5)))
    text_shards.write_shard(tmp_path / f"v/0{ending}", numbered_texts)
    (
        text_shards.write_shard(tmp_path / "all.parquet", train),
        text_shards.write_shard(tmp_path / "held.parquet", validation_texts),
    )
    note_text = "3 of 5 validation texts are identical to training texts"
    streamed = load(text_shards.job(tmp_path, "s", text=text, data="validation: v"))
    resident = load(text_shards.job(tmp_path, "all.parquet", text=text, stream="", data="validation: held.parquet"))
    assert note_text in resident.notes
    assert note_text in streamed.notes
    other = load(text_shards.job(tmp_path, "s", text=text))
    assert not any("identical" in note for note in other.notes)
