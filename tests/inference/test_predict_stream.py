"""`predict RUN -` gives what the same samples give in a file, as they come, and leaves out bad lines by number."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO

import pytest

from drivetrain.cli import main
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.inference import stdin_records
from drivetrain.training.run import Run
from tests.data.text.text_pairs import CASE as PAIRS
from tests.messages import says
from tests.paths import IMPORTS, ROOT
from tests.task_cases import CASES, train_case


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("piped")


@pytest.fixture(scope="module")
def images(home: Path) -> Run:
    (home / "images").mkdir()
    return train_case(CASES["image folders"], home / "images")


@pytest.fixture(scope="module")
def text_run(home: Path) -> Run:
    (home / "texts").mkdir()
    return train_case(CASES["texts"], home / "texts")


@pytest.fixture(scope="module")
def table(home: Path) -> Run:
    (home / "table").mkdir()
    return train_case(CASES["table"], home / "table")


Piped = Callable[..., tuple[int, list[dict[str, object]], str]]


@pytest.fixture
def predict_piped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Piped]:
    """Predicts what is piped in: exit code, rows and stderr."""
    open_files: list[IO[bytes]] = []

    def call(run: Run, content: str | bytes, *options: str) -> tuple[int, list[dict[str, object]], str]:
        (tmp_path / "piped").write_bytes(content.encode() if isinstance(content, str) else content)
        open_files.append((tmp_path / "piped").open("rb"))
        monkeypatch.setattr(sys, "stdin", open_files[-1])
        code = main.main(["predict", str(run.folder), "-", "--format", "jsonl", *options])
        out, stderr = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], stderr

    yield call
    for file in open_files:
        file.close()


def from_file(run: Run, path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert main.main(["predict", str(run.folder), str(path), "--format", "jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def bare(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "sample"} for row in rows]


def test_every_task_gives_what_it_gives_for_files(
    images: Run,
    text_run: Run,
    table: Run,
    predict_piped: Piped,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdin_records, "MAX_GROUP_RECORDS", 5)
    folder = images.folder.parent / "held"
    expected = from_file(images, folder, capsys)
    assert predict_piped(images, "".join(f"{row['sample']}\n" for row in expected))[1] == expected
    for run in (text_run, table):
        table_file = run.folder.parent / "held.csv"
        expected, content = from_file(run, table_file, capsys), table_file.read_text(encoding="utf-8")
        code, answers, _ = predict_piped(run, content)
        assert (code, bare(answers)) == (0, bare(expected))
        assert [row["sample"] for row in answers] == [f"line {number}" for number in range(2, 2 + len(expected))]
        rows = csv.DictReader(content.splitlines())
        numbers = ("age", "price", "weight")
        lines = [
            json.dumps({k: (float(v) if v else None) if k in numbers else v or None for k, v in row.items()})
            for row in rows
        ]
        assert bare(predict_piped(run, "\n".join(lines))[1]) == bare(expected)


def test_a_pair_comes_in_two_columns(home: Path, predict_piped: Piped, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "pairs").mkdir()
    run = train_case(PAIRS, home / "pairs")
    validation_file = home / "pairs" / "held.csv"
    code, answers, _ = predict_piped(run, validation_file.read_text(encoding="utf-8"))
    assert (code, bare(answers)) == (0, bare(from_file(run, validation_file, capsys)))
    assert "has no column" in predict_piped(run, "first\nx\n")[2]


def test_bad_lines_are_named_and_cost_no_other(images: Run, text_run: Run, table: Run, predict_piped: Piped) -> None:
    header, first, second, *_ = (table.folder.parent / "held.csv").read_text().splitlines()
    bad = [header, first, "1,2,3", first.replace("20,", "abc,", 1), second]
    code, rows, stderr = predict_piped(table, "\n".join(bad))
    assert (code, [row["sample"] for row in rows]) == (0, ["line 2", "line 5"])
    assert says(stderr, "data-line-left-cells", 3, 3, 8)
    assert says(stderr, "data-line-left-age", 4)
    assert stderr.endswith("2 samples, 2 lines left out\n")

    lines = ['{"text": "fuga"}', "", '{"txt": 1}', '{"text": null}', "fuga", '{"text": "two\\nlines", "more": [1]}']
    code, rows, stderr = predict_piped(text_run, "\n".join(lines))
    assert [row["sample"] for row in rows] == ["line 1", "line 6"]
    assert says(stderr, "line-left-write-null", 3, "text")
    assert says(stderr, "line-left-column", 4, "text")
    assert says(stderr, "line-left-json-expecting", 5)

    _, rows, stderr = predict_piped(text_run, b'text,kind,urgent\r\n"two\r\nlines",x,no\r\n,x,no\r\nruido,x,no')
    assert [row["sample"] for row in rows] == ["line 2", "line 5"]
    assert says(stderr, "line-left-text-empty", 4)

    image_folder = images.folder.parent / "held"
    good = str(image_folder / "a" / "0.jpg")
    (image_folder.parent / "broken.jpg").touch()
    code, rows, stderr = predict_piped(
        images, f"gone.png\n{good}\n{image_folder}\n{image_folder.parent / 'broken.jpg'}\n{image_folder}.npz\n"
    )
    assert [row["sample"] for row in rows] == [good]
    assert says(stderr, "line-is-left-out-not-there", 1, "gone.png")
    assert f"line 3 is left out: {image_folder} is a folder" in stderr
    assert f"line 4 is left out: {image_folder.parent / 'broken.jpg'}: empty file\n" in stderr


@pytest.mark.parametrize(
    ("content", "code", "part"),
    [
        (b"", 3, "standard input is empty"),
        (b"a,b\n1,2\n", 3, 'data: standard input has no column "text"'),
        (b"text,b\n", 3, "standard input has no rows"),
        (b"text,b\n,2\n", 3, "none of 1 lines can be used"),
        ("text\nx\n".encode("utf-16"), 3, "iconv -f utf-16 -t utf-8"),
        (b'text,b\n"' + b"x\n" * 100_000, 3, "line 2: a quote is not closed"),
    ],
)
def test_input_that_cannot_be_used(text_run: Run, predict_piped: Piped, content: bytes, code: int, part: str) -> None:
    outcome = predict_piped(text_run, content)
    assert outcome[:2] == (code, [])
    assert part in outcome[2]


def test_a_record_with_a_cell_of_more_than_131072_characters() -> None:
    long = "La bomba gotea, mucho. " * 10_000
    content = f'text,b\n"{long}",x\n"two\nlines",y\n'.encode()
    read = stdin_records.read_table(BytesIO(content), ["text"], CsvFiles())
    assert [(record.line, len(record.content), record.problem) for record in read.records] == [
        (2, len(long) + 5, ""),
        (3, 14, ""),
    ]


def test_no_line_of_json_lines_is_skipped() -> None:
    """`--csv skip` is for lines above a header; in a file of JSON lines, no line is skipped either."""
    content = b'{"text": "x"}\n{"text": "y"}\n{"text": "z"}\n'
    read = stdin_records.read_table(BytesIO(content), ["text"], CsvFiles({"skip": "1"}))
    assert [record.line for record in read.records] == [1, 2, 3]


def test_lines_above_the_header_are_skipped() -> None:
    read = stdin_records.read_table(BytesIO(b"Informe\n\ntext,b\nx,1\ny,2\n"), ["text"], CsvFiles({"skip": "2"}))
    assert read.header == b"Informe\n\ntext,b\n"
    assert [(record.line, record.content) for record in read.records] == [(4, b"x,1\n"), (5, b"y,2\n")]


def test_windows_of_a_long_table_come_at_the_end(
    home: Path, predict_piped: Piped, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "series").mkdir()
    run = train_case(CASES["series"], home / "series")
    validation_file = run.folder.parent / "held.csv"
    code, answers, stderr = predict_piped(run, validation_file.read_bytes())
    assert (code, bare(answers)) == (0, bare(from_file(run, validation_file, capsys)))
    assert says(stderr, "reading-standard-input-end")
    assert str(answers[0]["sample"]).startswith("standard input rows")


def test_what_does_not_go_with_standard_input(
    text_run: Run, predict_piped: Piped, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "arrays").mkdir()
    run = train_case(CASES["series numbers"], home / "arrays")
    code, _, stderr = predict_piped(run, b"1\n")
    assert code == 2
    assert says(stderr, "model-kind-series-reads")
    assert main.main(["predict", str(text_run.folder), "-", "more.csv"]) == 2
    assert says(capsys.readouterr().err, "standard-input-beside-inputs")


def test_an_answer_comes_while_the_input_is_open_and_head_ends_it_quietly(table: Run) -> None:
    header, first, *_ = (table.folder.parent / "held.csv").read_text().splitlines()
    command = [sys.executable, "-m", "drivetrain", "predict", str(table.folder), "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": IMPORTS}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write(f"{header}\n{first}\n".encode())
        process.stdin.flush()
        # The input is still open: these come before its end, or never.
        assert process.stdout.readline() == b"sample,prediction,probability\n"
        assert process.stdout.readline().startswith(b"line 2,")
        process.stdout.close()
        process.stdin.write(f"{first}\n".encode())
        process.stdin.flush()
        # It ends by itself, though the input stays open.
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_groups_are_full_or_what_came() -> None:
    records = stdin_records.read_paths(BytesIO(b"/\n" * 7), ())
    assert [
        [record.line for record in group] for group in stdin_records.group_records(records, max_records=3, wait=60)
    ] == [
        [1, 2, 3],
        [4, 5, 6],
        [7],
    ]
