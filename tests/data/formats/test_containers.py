"""Files that hold a table in another form are refused with a command, which makes a table of them when it is typed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import feather, orc

from drivetrain.data.formats import table_file
from drivetrain.data.survey import look
from drivetrain.data.survey.settings import SurveyRequest
from drivetrain.errors import DataError
from drivetrain.job_spec import data_columns, load_job

ROWS = [{"x": number / 4, "y": "ab"[number % 2]} for number in range(40)]
CSV = "x,y\n" + "".join(f"{row['x']},{row['y']}\n" for row in ROWS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("t x.csv", CSV)


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as file:
        member = tarfile.TarInfo("t x.csv")
        member.size = len(CSV)
        file.addfile(member, io.BytesIO(CSV.encode()))


def write_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute('create table "a table" (x real, y text)')
        database.executemany('insert into "a table" values (?, ?)', [tuple(row.values()) for row in ROWS])


WRITERS: dict[str, Callable[[Path], object]] = {
    "t x.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV.encode())),
    "t x.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "t x.csv.bz2": lambda path: path.write_bytes(bz2.compress(CSV.encode())),
    "t x.csv.xz": lambda path: path.write_bytes(lzma.compress(CSV.encode())),
    "t x.csv.zip": write_zip,
    "t x.csv.tar": write_tar,
    "t x.feather": lambda path: feather.write_feather(pyarrow.Table.from_pylist(ROWS), path),
    "t x.orc": lambda path: orc.write_table(pyarrow.Table.from_pylist(ROWS), path),
    "t x.db": write_database,
    "t x.sqlite": write_database,
    "t x.json": lambda path: path.write_text(json.dumps(ROWS)),
    "lines x.json": lambda path: path.write_text(LINES),
    "utf32 x.csv": lambda path: path.write_text(CSV, encoding="utf-32"),
    "utf32 y.csv": lambda path: path.write_text(CSV, encoding="utf-32-be"),
    "utf32 z.jsonl": lambda path: path.write_text(LINES, encoding="utf-32"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_command_makes_a_table(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    (tmp_path / "job.yaml").write_text(
        f'name: t\ntask: tabular-classification\ndata: {{train: "{path}", target: "y"}}\nmodel: {{name: mlp}}\n'
    )
    messages = []
    readers: list[Callable[[], object]] = [
        lambda: table_file.read(path, "data.train"),
        lambda: look.look(SurveyRequest(path, tmp_path)),
        lambda: data_columns.check_headers(load_job.load(tmp_path / "job.yaml")),
    ]
    # `validate` does not open JSON lines.
    for read in readers[: 2 if name == "utf32 z.jsonl" else 3]:
        with pytest.raises(DataError) as caught:
            read()
        messages.append(caught.value.action)
    assert len(set(messages)) == 1, messages
    command = messages[0].partition(": ")[2]
    if not shutil.which(shlex.split(command)[0]):
        pytest.skip(f"{shlex.split(command)[0]} is not installed here")
    path_variable = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    before = set(tmp_path.iterdir())
    subprocess.run(["bash", "-c", command], check=True, cwd=tmp_path, env=os.environ | {"PATH": path_variable})
    (new,) = set(tmp_path.iterdir()) - before
    assert table_file.read(new, "data.train").to_pylist() == ROWS
