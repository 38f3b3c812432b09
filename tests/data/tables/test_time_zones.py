"""Instants are the same in every form, and the zone belongs to the model."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.data import load_data
from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.job_spec import load_job as job_spec
from tests.axes import each_once
from tests.messages import saying, says_only

MADRID = ZoneInfo("Europe/Madrid")
INSTANTS = [datetime(2025, 1, 1, tzinfo=UTC) + timedelta(hours=13 * n, minutes=n) for n in range(300)]
PARTS = "[year, month, day, weekday, hour, minute, days]"


def store(path: Path, times: list[Any], kind: Any = None) -> Path:
    """A file with times, a number and a class."""
    columns = {"when": times, "z": [n % 5 for n in range(len(times))], "y": ["ab"[n % 2] for n in range(len(times))]}
    if path.suffix == ".parquet":
        table = pyarrow.table(columns)
        parquet.write_table(table.set_column(0, "when", pyarrow.array(times, kind)) if kind else table, path)
    elif path.suffix == ".jsonl":
        rows = zip(*columns.values(), strict=True)
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    else:
        rows = zip(*columns.values(), strict=True)
        path.write_text(
            "when,z,y\n" + "".join(",".join("" if cell is None else str(cell) for cell in row) + "\n" for row in rows)
        )
    return path


def dataset(path: Path, options: str = "") -> Dataset:
    spec = path.parent / "job.yaml"
    dates = f"dates: {{when: {PARTS}}}{options}"
    spec.write_text(
        f"name: t\ntask: tabular-classification\ndata: {{train: {path.name}, target: y, validation: 0.2, {dates}}}\n"
    )
    return load(job_spec.load(spec))


def inputs(data: Dataset, path: Path) -> list[Any]:
    read = load_data.load_new([path], data.preprocessing, data.heads, labelled=False)
    return [part.tolist() for part in read.split.gather(np.arange(len(read.split)))]


def clock(form: str, zone: Any) -> list[str]:
    return [instant.astimezone(zone).strftime(form) for instant in INSTANTS]


def write_forms(folder: Path) -> dict[str, Path]:
    """The same instants in files of all kinds."""
    iso = [instant.astimezone(MADRID).isoformat() for instant in INSTANTS]
    zulu = clock("%Y-%m-%dT%H:%M:%SZ", UTC)
    return {
        "Parquet, Madrid": store(folder / "a.parquet", INSTANTS, pyarrow.timestamp("us", "Europe/Madrid")),
        "Parquet, UTC, ns": store(folder / "b.parquet", INSTANTS, pyarrow.timestamp("ns", "UTC")),
        "Parquet, fixed offset, ms": store(folder / "c.parquet", INSTANTS, pyarrow.timestamp("ms", "-05:00")),
        "Parquet, text": store(folder / "d.parquet", iso),
        "Parquet, large text": store(folder / "e.parquet", iso, pyarrow.large_string()),
        "CSV, offsets": store(folder / "f.csv", iso),
        "CSV, Z": store(folder / "g.csv", zulu),
        "CSV, space and offset": store(folder / "h.csv", clock("%Y-%m-%d %H:%M:%S%z", ZoneInfo("Asia/Tokyo"))),
        "JSONL, offsets": store(folder / "i.jsonl", iso),
        "JSONL, Z": store(folder / "j.jsonl", zulu),
        "JSONL, mixed offsets": store(folder / "k.jsonl", [zulu[n] if n % 2 else text for n, text in enumerate(iso)]),
    }


@pytest.mark.parametrize("trained", ["Parquet, Madrid", "Parquet, UTC, ns", "CSV, offsets", "JSONL, offsets"])
def test_the_same_instants_are_the_same_inputs_in_every_form(tmp_path: Path, trained: str) -> None:
    files = write_forms(tmp_path)
    data = dataset(files[trained])
    expected = inputs(data, files[trained])
    assert {name: inputs(data, path) == expected for name, path in files.items()} == dict.fromkeys(files, True)


def test_forms_without_a_zone_of_their_own_give_the_same_model(tmp_path: Path) -> None:
    files = write_forms(tmp_path)
    models = [
        dataset(path).preprocessing for name, path in files.items() if "Madrid" not in name and "fixed" not in name
    ]
    assert all(model["numeric"] == models[0]["numeric"] for model in models)
    assert {model["zones"]["when"] for model in models} == {"UTC"}


def test_the_zone_is_said_and_decides_the_hour(tmp_path: Path) -> None:
    files = write_forms(tmp_path)
    madrid, utc = dataset(files["Parquet, Madrid"]), dataset(files["CSV, Z"])
    assert says_only(madrid.notes, "times-zone-whose-numbers", "Europe/Madrid")
    assert says_only(utc.notes, "times-zone-whose-numbers-those")
    hours = {
        name: next(c for c in data.preprocessing["numeric"] if c["name"] == "when.hour")
        for name, data in (("m", madrid), ("u", utc))
    }
    assert hours["m"]["mean"] != hours["u"]["mean"]


NAIVE = {
    "csv": lambda folder: store(folder / "n.csv", clock("%Y-%m-%d %H:%M:%S", UTC)),
    "parquet": lambda folder: store(folder / "n.parquet", [i.replace(tzinfo=None) for i in INSTANTS]),
    "jsonl": lambda folder: store(folder / "n.jsonl", clock("%Y-%m-%dT%H:%M:%S", UTC)),
    "days": lambda folder: store(folder / "n.parquet", [i.date() for i in INSTANTS]),
    "text": lambda folder: store(folder / "n.parquet", clock("%Y-%m-%d", UTC)),
}


@pytest.mark.parametrize(("kind", "zoned"), each_once(NAIVE, ["Parquet, Madrid", "CSV, offsets", "JSONL, Z"]))
def test_times_without_a_zone_are_not_those_with_one(tmp_path: Path, kind: str, zoned: str) -> None:
    with_zone, without = write_forms(tmp_path)[zoned], NAIVE[kind](tmp_path)
    with pytest.raises(
        DataError, match=r'times of column "when" of .* are without a zone, and those of the training data in'
    ):
        inputs(dataset(with_zone), without)
    with pytest.raises(
        DataError, match=r'times of column "when" of .* are in .*, and those of the training data without a zone'
    ):
        inputs(dataset(without), with_zone)


def test_the_validation_file_follows_the_training_file(tmp_path: Path) -> None:
    write_forms(tmp_path), NAIVE["csv"](tmp_path)
    with pytest.raises(DataError, check=saying("times-of-column", "data.validation")):
        load(job(tmp_path, "g.csv", "n.csv"))
    assert len(load(job(tmp_path, "g.csv", "b.parquet")).validation) == len(INSTANTS)


def job(folder: Path, train: str, validation: str) -> Any:
    spec = folder / "two.yaml"
    spec.write_text(
        f"name: t\ntask: tabular-classification\ndata: {{train: {train}, target: y, validation: {validation}, dates: {{when: {PARTS}}}}}\n"
    )
    return job_spec.load(spec)


def test_empty_times_have_any_zone(tmp_path: Path) -> None:
    data = dataset(write_forms(tmp_path)["CSV, Z"])
    store(tmp_path / "empty.csv", [None] * 4)
    assert len(inputs(data, tmp_path / "empty.csv")[0]) == 4


def test_a_zone_that_the_machine_does_not_know(tmp_path: Path) -> None:
    path = store(tmp_path / "a.parquet", INSTANTS, pyarrow.timestamp("us", "Mars/Olympus"))
    with pytest.raises(DataError, check=saying("time-zone-machine-know", "Mars/Olympus")):
        dataset(path)
