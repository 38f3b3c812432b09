"""`validate` reads tables as training does: what it finds, what it says it did not check, and how quick it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from drivetrain.cli import main
from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.job_spec import data_cells
from drivetrain.job_spec import load_job as job_spec
from tests.messages import says

TABLE = "name: t\ntask: tabular-classification\ndata: {train: a.csv, target: kind, numeric: [load]%s}\n"
TEXT = "name: t\ntask: text-classification\ndata: {train: a.csv, text: [text, more], labels: kind}\n"
GOOD = [f"{i / 2},n{i},{'ab'[i % 2]}" for i in range(40)]


def write(folder: Path, rows: list[str], spec: str = TABLE % "", header: str = "load,text,kind") -> Path:
    (folder / "a.csv").write_text("\n".join([header, *rows]) + "\n")
    path = folder / "job.yaml"
    path.write_text(spec)
    return path


def test_it_says_what_was_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, [*GOOD, ",empty,a", '"1,5 %",percent,b', ",,", ""])
    assert main.main(["validate", str(path)]) == 0
    assert "data.train: checked 37 training samples" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        assert main.main(["validate", str(path)]) == 0
    assert says(capsys.readouterr().out, "checked-header-rows-checked", "data.train", "a.csv")
    monkeypatch.setattr(data_cells, "MAX_CHECKED_BYTES", 10)
    assert main.main(["validate", str(path)]) == 0
    assert says(capsys.readouterr().out, "checked-header-mb-checked", "data.train", "a.csv", 0)


@pytest.mark.parametrize(
    ("batch", "expected"), [(37, ""), (38, "train.batch_size: 38 is more than the 37 training samples")]
)
def test_a_batch_that_is_larger_than_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int, expected: str
) -> None:
    rows = [*GOOD, ",empty,a", '"1,5 %",percent,b']
    assert main.main(["validate", str(write(tmp_path, rows)), "--set", f"train.batch_size={batch}"]) == 0
    out = capsys.readouterr().out
    assert expected in out
    assert ("train.batch_size" in out) == bool(expected)


@pytest.mark.parametrize(
    ("rows", "spec", "parts"),
    [
        (
            [*GOOD[:6], "soon,x,a", *GOOD[:4], "1,x,"],
            TABLE % "",
            ["2 of 12", "a.csv row 7 (line 8): load is `soon`, not a number", "row 12 (line 13): kind is empty"],
        ),
        (
            [*GOOD, '1,"two', 'lines",a', "1,a"],
            TABLE % "",
            ["rows of another length: 1", "row 42 (line 44): 2 cells, 1,a"],
        ),
        ([*GOOD, '1,say \\"hi\\",a'], TABLE % "", ["line 42: a quote is written with a backslash"]),
        (GOOD, TABLE % ", validation: b.csv", ['data.validation: classes that are not in the training data: "c" (1)']),
    ],
)
def test_bad_cells_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[str], spec: str, parts: list[str]
) -> None:
    (tmp_path / "b.csv").write_text("load,text,kind\n1,x,c\n")
    assert main.main(["validate", str(write(tmp_path, rows, spec))]) == 3
    error = capsys.readouterr().err
    assert "job.yaml:3:" in error
    assert not [part for part in parts if part not in error], error


def test_an_error_has_the_position_of_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key comes from the error, whatever its text says."""

    def refuse(job: Job) -> tuple[int, list[str]]:
        raise DataError("data.train: quoted text", "other data", "change it", key="data.numeric")

    monkeypatch.setattr(load_data, "check", refuse)
    path = write(tmp_path, GOOD)
    assert main.main(["validate", str(path)]) == 3
    column = path.read_text().splitlines()[2].index("numeric") + 1
    assert f"{path}:3:{column}: data.numeric: data.train: quoted text\n" in capsys.readouterr().err


@pytest.mark.parametrize("sign", [",", ";"])
def test_a_cell_of_more_than_131072_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str], sign: str) -> None:
    rows = [f'1{sign}"{"La bomba gotea, " * (20_000 if i == 2 else 1)}"{sign}{"ab"[i % 2]}' for i in range(20)]
    path = write(tmp_path, rows, TEXT, f"more{sign}text{sign}kind")
    assert main.main(["validate", str(path)]) == 0
    assert "data.train: checked 19 training samples" in capsys.readouterr().out


def test_few_bad_rows_are_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["validate", str(write(tmp_path, [*GOOD, "x,y,a"]))]) == 0
    out = capsys.readouterr().out
    assert says(out, "samples-used-skipped-4", 1, 41)
    assert "left out: a.csv row 41 (line 42): load is `x`, not a number" in out


def test_one_of_several_texts_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, ["x,,a", ",y,b", ",,a"], TEXT, "text,more,kind")
    assert main.main(["validate", str(path)]) == 3
    assert says(capsys.readouterr().err, "row-line-text-empty", 3, 4)


def test_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mistakes of all are shown, and what is valid."""
    good = write(tmp_path, GOOD)
    bad, worse = tmp_path / "bad.yaml", tmp_path / "worse.yaml"
    bad.write_text(good.read_text().replace("kind", "kint"))
    worse.write_text("name: [")
    assert main.main(["validate", *map(str, (bad, good, worse))]) == 3
    output = capsys.readouterr()
    assert 'did you mean "kind"?' in output.err
    assert "worse.yaml" in output.err
    assert f"{good}: valid" in output.out


def test_ten_thousand_rows_are_read_without_torch(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD * 250)
    code = (
        "import sys, time; from drivetrain.cli.main import main; start = time.process_time(); main(['validate', sys.argv[1]]); "
        "print(time.process_time() - start, *{'torch', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "of 10,000 rows are copies" in done.stdout or "among 10,000" in done.stdout
    (seconds,) = done.stdout.splitlines()[-1].split()
    assert float(seconds) < 3


PLAIN = "name: t\ntask: tabular-classification\ndata: {train: %s, target: y}\n"
ROWS = [f"{i * 0.37 % 5:.3f},{i * 0.71 % 3:.2f},{['sí', 'no'][i % 2]}" for i in range(100)]
REFUSED = {
    "two columns of one name": ("a.csv", ["z,z,y", *ROWS], "has several columns named z"),
    "a column without a name": ("a.csv", ["z,,y", *ROWS], "column 2 of a.csv has no name"),
    "a row of units": (
        "a.csv",
        ["z,w,y", "m,s,-", *ROWS],
        'column "z" of a.csv are numbers but 1: row 1 (line 2) has `m`',
    ),
    "a row of totals": ("a.csv", ["z,w,y", *ROWS, "TOTAL,5,sí"], "are numbers but 1: row 101 (line 102) has `TOTAL`"),
    "units in some rows": (
        "a.csv",
        ["z,w,y", *ROWS, *[f"12 °C,{i},sí" for i in range(3)]],
        'column "z" of a.csv are numbers but 3: row 101 (line 102) has `12 °C`',
    ),
    "a list in a .json": ("a.json", ['[{"z": 1, "y": "a"}]'], "a.json is JSON of any layout"),
    "dates as text": (
        "a.csv",
        ["z,y", *[f"{1 + i % 28}.02.2024,{'ab'[i % 2]}" for i in range(60)]],
        "is a date (text such as 1.02.2024)",
    ),
    "times of day": (
        "a.csv",
        ["z,y", *[f"{i % 24}:{i % 60:02},{'ab'[i % 2]}" for i in range(60)]],
        "{z: [hour, minute, days]}",
    ),
    "dates": ("a.csv", ["z,y", *[f"2024-02-{1 + i % 28:02},{'ab'[i % 2]}" for i in range(60)]], "is a date ("),
    "identifiers": (
        "a.csv",
        ["z,y", *[f"x{i},{'ab'[i % 2]}" for i in range(200)]],
        "has 200 different texts in 200 rows",
    ),
    "no header": ("a.csv", ROWS, "seems to have no header"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_the_reader_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    name, lines, expected = REFUSED[case]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "job.yaml").write_text(PLAIN % name)
    assert main.main(["validate", str(tmp_path / "job.yaml")]) == 3
    assert expected in capsys.readouterr().err.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("spec", "header", "rows", "part"),
    [
        (
            "series-classification\ndata: {train: a.csv, time: t, features: [x], label: y, window: 4}",
            "t,x,y",
            [*(f"2024-10-27 0{i}:30:00,{i},{'ab'[i % 2]}" for i in range(8)), "2024-10-27 02:30:00,8,a"],
            "row 3 (line 4) and row 9 (line 10)",
        ),
        (
            "tabular-classification\ndata: {train: a.csv, target: [p, q]}",
            "x,p,q",
            [f"{i * i},{i % 2},{i * 5 % 3 - 1}" for i in range(12)],
            "q is `-1`, not 0 or 1",
        ),
        (
            "tabular-classification\ndata: {train: a.csv, target: y, dates: {t: [hour, weekday]}}",
            "t,x,y",
            [f"{i % 24}:30,{i * i},{'ab'[i % 2]}" for i in range(40)],
            "data.dates",
        ),
        (
            "image-regression\ndata: {train: a.csv, label_column: p}",
            "path,p",
            [f"0.png,{'tall' if i % 2 else i}" for i in range(12)],
            "p is `tall`, not a number",
        ),
        (
            "text-classification\ndata: {train: a.csv, text: t, labels: [p, q]}\nmodel: {name: encoder}",
            "t,p,q",
            [f"text {i},{'ab'[i % 2]}," for i in range(12)],
            "q is empty in all of them",
        ),
    ],
    ids=[
        "times",
        "labels of a table",
        "weekday of a clock",
        "numbers of images",
        "head",
    ],
)
def test_what_training_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, header: str, rows: list[str], part: str
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    path = write(tmp_path, rows, f"name: t\ntask: {spec}\n", header)
    assert main.main(["validate", str(path)]) == 3
    assert part in capsys.readouterr().err
    with pytest.raises(DataError):
        load(job_spec.load(path))


def test_a_target_that_is_infinite_or_no_number_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the training said that it left such rows out."""
    spec = "name: t\ntask: tabular-regression\ndata: {train: a.csv, target: load}\n"
    path = write(tmp_path, [*GOOD, "inf,x,a", "nan,x,a"], spec)
    assert main.main(["validate", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[-1] for line in lines if "left out" in line] == ["load is infinite", "load is empty"]
    noted = [note for note in load(job_spec.load(path)).notes if note.startswith("left out")]
    assert [note.split(": ")[-1] for note in noted] == ["load is infinite", "load is empty"]
