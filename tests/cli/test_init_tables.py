"""The specs that `drivetrain init` drafts for tables, texts and arrays."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.survey import table_draft, table_sample
from drivetrain.job import Job
from drivetrain.job.tables import MlpSpec, TableJob
from tests.cli.drafted_jobs import draft_job, read_data_settings, read_refusal, write_table
from tests.messages import says

pytestmark = pytest.mark.usefixtures("working_folder")


def test_a_spanish_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Semicolons, decimal commas and Windows-1252 are read, and the draft says so."""
    rows = [
        [f"Avería número {i} en el tren de laminación", f"{i % 7},5", ("eléctrica", "mecánica")[i % 2]]
        for i in range(40)
    ]
    write_table("averías de año.csv", ["descripción", "carga", "clase"], rows, encoding="latin-1", delimiter=";")
    job = draft_job("averías de año.csv")
    note = "averías de año.csv: semicolons, decimal commas, windows-1252"
    assert note in capsys.readouterr().out
    assert f"# Found: {note}" in Path("averias-de-ano.yaml").read_text()
    assert (job.name, job.task) == ("averias-de-ano", "text-classification")
    assert (read_data_settings(job)["text"], list(read_data_settings(job)["labels"])) == (("descripción",), ["clase"])


def test_numbers_that_can_be_read_in_two_ways_are_declared(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_table("rows.csv", ["load", "kind"], [[f"{1 + i % 9},{100 + i}", "ab"[i % 2]] for i in range(40)])
    message = read_refusal(capsys, path)
    assert 'column "load" row 1 (line 2): `1,100` can be 1.100 or 1100' in message
    assert says(message, "csv-decimal-comma-point", "1.100", 1100)
    assert says(read_refusal(capsys, path, "--csv", "decimals=comma", code=2), "csv-decimals-comma-names")
    assert 'did you mean "comma"?' in read_refusal(capsys, path, "--csv", "decimal=coma", code=2)
    job = draft_job(path, "--csv", "decimal=comma")
    assert read_data_settings(job)["csv"] == {"decimal": "comma"}


def test_a_spreadsheet_is_refused_with_the_command_that_converts_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.xlsx").write_bytes(b"PK")
    assert "libreoffice --headless" in read_refusal(capsys, "rows.xlsx")


def test_an_id_and_a_date_are_ignored() -> None:
    generator = random.Random(0)
    rows = [
        [
            f"K-{i:04}",
            f"2026-{generator.randint(1, 12):02}-{generator.randint(1, 28):02}",
            i * 7919 % 10007,
            generator.random(),
            generator.choice(["Acme", "Bolt"]),
            generator.choice(["yes", "no"]),
        ]
        for i in range(300)
    ]
    job = draft_job(write_table("customers.csv", ["code", "since", "customer_id", "load", "maker", "left"], rows))
    assert job.task == "tabular-classification"
    data = read_data_settings(job)
    assert (data["ignore"], data["target"]) == (("code", "since", "customer_id"), ("left",))
    text = Path("customers.yaml").read_text()
    assert "since (a date), customer_id (an identifier)" in text
    assert says(text, "candidates-load-maker")


def test_the_network_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ensemble for the classes of few rows; one perceptron for numbers, and where an ensemble would take long."""
    rows = [[i % 7, i * 0.37 % 5, "ab"[i % 3 % 2]] for i in range(200)]
    path = write_table("kinds.csv", ["rooms", "age", "kind"], rows)
    assert get_network_name(draft_job(path)) == "tabm"
    assert get_network_name(draft_job(path, "--target", "age", "--output", "age.yaml")) == "mlp"
    monkeypatch.setattr(table_draft, "MOST_ENSEMBLE_ROWS", 199)
    assert get_network_name(draft_job(path, "--output", "many.yaml")) == "mlp"


def get_network_name(job: Job) -> str:
    assert isinstance(job, TableJob)
    assert isinstance(job.model, MlpSpec)
    return job.model.name


def test_a_number_to_predict() -> None:
    rows = [[i % 7, i * 0.37 % 5, 100 + i * 1.13 % 17] for i in range(200)]
    job = draft_job(write_table("houses.csv", ["rooms", "age", "price"], rows))
    assert (job.task, read_data_settings(job)["target"]) == ("tabular-regression", ("price",))
    assert draft_job("houses.csv", "--target", "age", "--output", "age.yaml").task == "tabular-regression"
    rooms = draft_job("houses.csv", "--target", "rooms", "--task", "tabular-regression", "--output", "rooms.yaml")
    assert rooms.task == "tabular-regression"
    assert draft_job("houses.csv", "--target", "rooms", "--output", "classes.yaml").task == "tabular-classification"


def test_several_labels_and_several_numbers() -> None:
    rows = [[i * 0.37 % 5, i % 2, i // 2 % 2, i * 0.11 % 3] for i in range(100)]
    write_table("rows.csv", ["a", "hot", "wet", "b"], rows)
    labels = draft_job("rows.csv", "--target", "hot", "--target", "wet")
    assert (labels.task, read_data_settings(labels)["target"]) == ("tabular-classification", ("hot", "wet"))
    numbers = draft_job("rows.csv", "--target", "a", "--target", "b", "--output", "numbers.yaml")
    assert numbers.task == "tabular-regression"


def test_rows_without_a_target_and_spoilt_numbers() -> None:
    rows = [["roto" if i == 7 else i * 0.5, i * 0.37 % 5, "" if i % 10 == 0 else ("a", "b")[i % 2]] for i in range(200)]
    data = read_data_settings(draft_job(write_table("rows.csv", ["size", "age", "target"], rows)))
    assert data["numeric"] == ("size",)
    assert 0.1 < data["bad_samples"] < 0.2


@pytest.mark.parametrize(
    ("name", "is_drafted"),
    [("patient_id", True), ("Author", True), ("groupId", True), ("group", False), ("track_number", False)],
)
@pytest.mark.parametrize("kind", ["table", "texts"])
def test_rows_of_a_patient_stay_together(name: str, is_drafted: bool, kind: str) -> None:
    """A name that people and sources have is drafted as groups, and is no feature; others may be features."""
    words = ["we", "will", "check", "the", "order", "and", "send", "the", "goods", "to", "you", "today"]
    generator = random.Random(0)
    rows = [
        [f"P{i // 8}", " ".join(generator.choices(words, k=9)) if kind == "texts" else i % 7 + 0.5, "ab"[i % 2]]
        for i in range(160)
    ]
    job = draft_job(write_table("rows.csv", [name, "v", "y"], rows))
    assert read_data_settings(job).get("groups") == (name if is_drafted else None)


def test_few_animals_are_a_feature() -> None:
    """A name without `id` that only a few values have is a category."""
    rows = [[("dog", "cat", "horse")[i % 3], i % 7 + 0.5, "ab"[i % 2]] for i in range(160)]
    assert "groups" not in read_data_settings(draft_job(write_table("rows.csv", ["animal", "v", "y"], rows)))


def test_many_patients_are_groups_and_no_identifiers() -> None:
    rows = [[f"P{i % 115}", i % 7 + 0.5, "ab"[i % 2]] for i in range(200)]
    data = read_data_settings(draft_job(write_table("rows.csv", ["patient_id", "v", "y"], rows)))
    assert (data["groups"], data.get("ignore", [])) == ("patient_id", [])


def test_json_lines_of_texts() -> None:
    rows = [
        {"said": f"this is text number {i} of many", "feeling": ("good", "bad")[i % 2], "stars": i % 5}
        for i in range(60)
    ]
    Path("said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    job = draft_job("said.jsonl")
    assert (job.task, list(read_data_settings(job)["labels"])) == ("text-classification", ["feeling", "stars"])
    assert says(Path("said.yaml").read_text(), "output-feeling-stars")
    job = draft_job("said.jsonl", "--task", "tabular-classification", "--output", "rows.yaml")
    assert read_data_settings(job)["ignore"] == ("said",)


def test_a_name_is_no_text_to_learn_from() -> None:
    header = ["PassengerId", "Survived", "Pclass", "Name", "Sex", "Age", "SibSp", "Ticket", "Fare", "Embarked"]
    generator = random.Random(0)
    rows = [
        [
            *(
                i + 1,
                generator.randint(0, 1),
                generator.randint(1, 3),
                f"Person, Mr. Nr {i} of Many",
                generator.choice("mf"),
            ),
            *(
                generator.choice(["", generator.randint(1, 80)]),
                generator.randint(0, 5),
                f"A{i * 7}",
                generator.random(),
                generator.choice("SC"),
            ),
        ]
        for i in range(300)
    ]
    job = draft_job(write_table("titanic.csv", header, rows))
    assert (job.task, read_data_settings(job)["target"]) == ("tabular-classification", ("Survived",))
    assert read_data_settings(job)["ignore"] == ("PassengerId", "Name", "Ticket")
    assert says(Path("titanic.yaml").read_text(), "train-task-text-classification")


@pytest.mark.parametrize(
    ("columns", "parts"),
    [([], "year, month, weekday"), (["day.month"], "year, weekday"), (["day.year"], "month, weekday")],
)
def test_dates_are_offered_in_parts_that_the_table_does_not_have(columns: list[str], parts: str) -> None:
    rows = [
        [f"2026-{1 + i // 28:02}-{1 + i % 28:02}", i * 0.37 % 5, *(i % 5 for _ in columns), i % 2] for i in range(80)
    ]
    draft_job(write_table("days.csv", ["day", "sales", *columns, "promo"], rows))
    assert f"dates: {{day: [{parts}]}}" in Path("days.yaml").read_text()


def test_numbers_with_decimal_commas_are_not_taken_for_categories(capsys: pytest.CaptureFixture[str]) -> None:
    draft_job(write_table("rows.csv", ["load", "kind"], [[f"{i % 9},5", "ab"[i % 2]] for i in range(40)]))
    assert "rows.csv: decimal commas" in capsys.readouterr().out
    assert "1 columns of numbers, 0 of categories" in Path("rows.yaml").read_text()


def test_rows_with_dates_that_may_be_a_series() -> None:
    rows = [[f"2026-{1 + i // 28:02}-{1 + i % 28:02}", i * 0.37 % 5, i * 7 % 11 % 2] for i in range(200)]
    assert draft_job(write_table("days.csv", ["day", "sales", "promo"], rows)).task == "tabular-classification"
    assert says(Path("days.yaml").read_text(), "train-windows-over-day")
    job = draft_job("days.csv", "--task", "series-regression", "--target", "sales", "--output", "sales.yaml")
    assert (read_data_settings(job)["time"], read_data_settings(job)["label"]) == ("day", ("sales",))


@pytest.mark.parametrize(
    ("arrays", "task"),
    [
        ({"images": (np.uint8, 20, 12, 12, 3), "labels": 2}, "image-classification"),
        ({"x": (np.float32, 20, 16, 3), "y": 3}, "series-classification"),
        ({"x": (np.float64, 20, 2), "y": np.linspace(0, 1, 20)}, "series-regression"),
        ({"x": (np.float32, 20, 16, 3), "y": np.zeros((20, 2)) + np.arange(20)[:, None]}, "series-regression"),
        ({"x": (np.float32, 20, 8, 8, 3), "y": 3}, ""),
        ({"data": (np.float32, 20, 16, 3)}, ""),
        ({"images": (np.uint8, 20, 12, 12, 3), "labels": 1}, ""),
        ({"images": (np.uint8, 20, 12, 12, 3), "labels": np.zeros((20, 0), np.int64)}, ""),
        ({"x": np.zeros((20, 9, 2)), "y": np.zeros((20, 0))}, ""),
    ],
)
def test_arrays(arrays: dict[str, Any], task: str, capsys: pytest.CaptureFixture[str]) -> None:
    def array(value: Any) -> Any:
        if isinstance(value, tuple):
            # Images of one color are refused.
            colors = np.random.default_rng(0).integers(0, 255, value[1:])
            return (colors if value[0] is np.uint8 else np.zeros(value[1:])).astype(value[0])
        return np.arange(20) % value if isinstance(value, int) else value

    np.savez("arrays.npz", **{name: array(value) for name, value in arrays.items()})
    if task:
        assert draft_job("arrays.npz").task == task
    else:
        read_refusal(capsys, "arrays.npz")


def test_a_large_table_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[i * 0.37 % 5, "abc"[i // 10_000]] for i in range(30_000)]
    write_table("large.csv", ["load", "class"], rows)
    parquet.write_table(
        pyarrow.table(dict(zip(("load", "class"), zip(*rows, strict=True), strict=True))), "large.parquet"
    )
    Path("large.jsonl").write_text("\n".join(json.dumps({"load": a, "class": b}) for a, b in rows))
    monkeypatch.setattr(table_sample, "WHOLE_FILE_BYTES", 1000)
    for kind, least, most in (("csv", 25_000, 35_000), ("parquet", 30_000, 30_000), ("jsonl", 25_000, 35_000)):
        sample = table_sample.read(Path(f"large.{kind}"), CsvFiles())
        assert (len(sample.table), sample.complete) == (5000, False)
        assert least <= sample.rows <= most
        # The first rows are of one class; the name of the column is enough.
        assert draft_job(f"large.{kind}", "--output", f"{kind}.yaml").task == "tabular-classification"


def test_readings_with_times_that_begin_with_the_day() -> None:
    rows = [
        [f"{1 + i // 24:02}/03/2024 {i % 24:02}:00", i % 7 / 3, i * 0.5, ["on", "off"][i // 12 % 2]] for i in range(600)
    ]
    job = draft_job(write_table("rows.csv", ["when", "a", "b", "state"], rows))
    assert job.task == "series-classification"
    assert (read_data_settings(job)["time"], read_data_settings(job)["date_format"]) == ("when", "%d/%m/%Y %H:%M")


@pytest.mark.parametrize(
    ("shape", "axes", "windows"),
    [
        ((60, 3, 64), "channels-time", "64 rows and 3 channels"),
        ((60, 64, 3), None, "64 rows and 3 channels"),
        ((60, 8, 8), "time-channels", "8 rows and 8 channels"),
        ((60, 1, 64), None, "64 rows and 1 channels"),
    ],
)
def test_the_longer_axis_of_windows_is_drafted_as_the_time(
    shape: tuple[int, ...], axes: str | None, windows: str
) -> None:
    np.savez("a.npz", x=np.random.default_rng(0).normal(size=shape), y=np.arange(60) % 2)
    assert read_data_settings(draft_job("a.npz")).get("axes", "auto") == (axes or "auto")
    assert f"60 windows of {windows}" in Path("a.yaml").read_text()


def test_a_file_without_a_header_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_table("rows.csv", ["0.5", "1.5", "sí"], [[f"{i / 2}", f"{i}", ["sí", "no"][i % 2]] for i in range(40)])
    assert says(read_refusal(capsys, path), "seems-to-have-no-header", "rows.csv")
