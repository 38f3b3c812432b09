"""`validate` looks at the data: files, separators and columns, with the place of the key and the nearest name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.errors import DataError
from drivetrain.job.tables import TableJob
from drivetrain.job_spec import load_job as job_spec
from tests.messages import ends_with, get_message, saying, says_each
from tests.paths import ROOT

TABLE = "name: a\ntask: tabular-classification\ndata: {{train: {train}, target: {target}}}\n"
TEXT = "name: a\ntask: text-classification\ndata: {train: rows.csv, text: descripcion, labels: {modo: 1, causa: 1}}\n"
SERIES = "name: a\ntask: series-classification\ndata: {train: rows.csv, time: t, label: state, group: g, window: 4}\n"
IMAGES = "name: a\ntask: image-classification\ndata: {train: rows.csv}\n"


def read_error_lines(folder: Path, spec: str, **files: str) -> list[str]:
    """The lines of the error of a spec beside these tables."""
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "job.yaml").write_text(spec)
    with pytest.raises(DataError) as caught:
        job_spec.load(folder / "job.yaml")
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_a_column_that_the_file_does_not_have(tmp_path: Path) -> None:
    spec = TABLE.format(train="rows.csv", target="lable")
    assert says_each(
        read_error_lines(tmp_path, spec, rows="a,b,label\n1,2,x\n"),
        [
            get_message("has-no-column-2", "job.yaml", 3, 25, "data.target", "rows.csv", "lable"),
            get_message("possible-columns-label"),
            '  do:       did you mean "label"?',
        ],
    )


def test_a_column_that_dates_would_make_again(tmp_path: Path) -> None:
    spec = TABLE.format(train="rows.csv", target="label, dates: {since: [year]}IGNORE")
    table = "since,since.year,label\n2024-05-31,2024,x\n"
    description = "job.yaml:3:8: data.train: rows.csv has a column"
    assert read_error_lines(tmp_path, spec.replace("IGNORE", ""), rows=table)[0].startswith(description)
    (tmp_path / "job.yaml").write_text(spec.replace("IGNORE", ", ignore: since.year"))
    job = job_spec.load(tmp_path / "job.yaml")
    assert isinstance(job, TableJob)
    assert job.data.ignore == ("since.year",)


@pytest.mark.parametrize(
    ("spec", "header", "lines"),
    [
        (TEXT, "descripción,modo,cuasa", ["data.text: rows.csv has no", "data.labels.causa: rows.csv has no"]),
        (SERIES, "time,state,machine", ["data.time: rows.csv has no", "data.group: rows.csv has no"]),
        (IMAGES, "file,class", ["data.path_column: rows.csv has no", "data.label_column: rows.csv has no"]),
    ],
    ids=["text", "series", "images"],
)
def test_all_columns_are_told_at_once(tmp_path: Path, spec: str, header: str, lines: list[str]) -> None:
    error_lines = read_error_lines(tmp_path, spec, rows=f"{header}\na,b,c\n")
    assert [line.split(": ", 1)[1].startswith(start) for line, start in zip(error_lines, lines, strict=False)] == [
        True
    ] * 2
    assert error_lines[2] == f"  possible: its columns: {header.replace(',', ', ')}"


def test_columns_of_the_validation_file(tmp_path: Path) -> None:
    spec = TABLE.format(train="rows.csv, validation: held.csv", target="label")
    error_lines = read_error_lines(tmp_path, spec, rows="a,label\n1,x\n", held="a,labels\n1,x\n")
    assert ends_with(error_lines[0], "has-no-column-3", "data.target", "held.csv", "label")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a,b;label\n1,5;2\n",
            "the columns of rows.csv could be separated by comma (2 columns: a | b;label) or by semicolon (2 columns: a,b "
            "| label)",
        ),
        ("", "rows.csv is empty (0 bytes)"),
        ("\n\n", "rows.csv has no rows"),
        ("a,b,label\n", "rows.csv has a header and no rows"),
    ],
)
def test_a_file_that_is_no_table_with_commas(tmp_path: Path, text: str, expected: str) -> None:
    lines = read_error_lines(tmp_path, TABLE.format(train="rows.csv", target="label"), rows=text)
    assert lines[0] == f"job.yaml:3:8: data.train: {expected}"


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffa,b,label\n1,2,x\n",
        '"a","b\nin two lines",label\n1,2,x\n',
        '\n"a, first",b,"label"\n1,2,x\n',
        "label\r\nx\r\n",
    ],
    ids=["byte order mark", "line break", "comma", "one column"],
)
def test_headers_that_are_read_as_pyarrow_does(tmp_path: Path, text: str) -> None:
    from drivetrain.data.formats import csv_layout
    from drivetrain.data.formats.csv_dialect import CsvFiles
    from drivetrain.data.formats.csv_file import CsvReader

    path = tmp_path / "rows.csv"
    path.write_text(text, newline="")
    assert csv_layout.read_names(path, "data.train", CsvFiles()) == CsvReader(path, "data.train", CsvFiles()).names()
    (tmp_path / "job.yaml").write_text(TABLE.format(train="rows.csv", target="label"))
    job_spec.load(tmp_path / "job.yaml")


@pytest.mark.parametrize("sign", [";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_a_header_in_another_dialect(tmp_path: Path, sign: str, encoding: str) -> None:
    (tmp_path / "rows.csv").write_bytes(f"a{sign}descripción\n1,5{sign}x\n".encode(encoding))
    spec = TABLE.format(train="rows.csv", target="descripcion")
    (tmp_path / "job.yaml").write_text(spec)
    with pytest.raises(DataError, check=saying("its-columns-descripci-n")):
        job_spec.load(tmp_path / "job.yaml")
    (tmp_path / "job.yaml").write_text(spec.replace("descripcion", "descripción"))
    job_spec.load(tmp_path / "job.yaml")


def test_a_spreadsheet_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    (tmp_path / "job.yaml").write_text(TABLE.format(train="rows.xlsx", target="a"))
    with pytest.raises(DataError, match="libreoffice --headless") as caught:
        job_spec.load(tmp_path / "job.yaml")
    assert "job.yaml:3:8: data.train" in str(caught.value)


@pytest.mark.parametrize(
    ("spec_path", "nearest_path"),
    [
        ("dta/rows.csv", "data/rows.csv"),
        ("data/row.csv", "data/rows.csv"),
        ("{folder}/data/row.csv", "{folder}/data/rows.csv"),
        ("nothing/like/it.csv", None),
        ("a.csv", None),  # it said .ci
    ],
)
def test_the_nearest_file(tmp_path: Path, spec_path: str, nearest_path: str | None) -> None:
    tmp_path = tmp_path / "nothing" / "near"  # beside it are files of other tests
    tmp_path.mkdir(parents=True)
    (tmp_path / ".ci").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").write_text("a,label\n1,x\n")
    (tmp_path / "job.yaml").write_text(TABLE.format(train=spec_path.format(folder=tmp_path), target="label"))
    with pytest.raises(DataError) as caught:
        job_spec.load(tmp_path / "job.yaml")
    expected = f'did you mean "{nearest_path.format(folder=tmp_path)}"?' if nearest_path else "check the spelling"
    assert caught.value.action.startswith(expected)


def test_a_start_with_wrong_columns_leaves_no_run_folder(tmp_path: Path) -> None:
    """It cost a container, and left a folder that the next start called resumed."""
    (tmp_path / "rows.csv").write_text("a,b,kind\n1,2,x\n")
    (tmp_path / "job.yaml").write_text(TABLE.format(train="rows.csv", target="label"))
    runs = tmp_path / "runs"
    assert main.main(["train", str(tmp_path / "job.yaml"), "--runs", str(runs)]) == DataError.exit_code
    assert not runs.exists()


def test_validate_of_a_folder_loads_neither_numpy_nor_pyarrow(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "0.png").touch()
    (tmp_path / "job.yaml").write_text("name: a\ntask: image-classification\ndata: {train: data}\n")
    code = (
        "import sys; from drivetrain.cli import main; "
        f"code = main.main(['validate', {str(tmp_path / 'job.yaml')!r}]); "
        "print(code, [name for name in ('torch', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
