"""`drivetrain init`: a first spec from the data, valid whatever they are, with the reason of each value."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from drivetrain.cli import main
from drivetrain.job.draft import make_run_name, quote, quote_all
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.system import installation
from drivetrain.training import batch_inputs
from drivetrain.training.evaluation.validation import evaluate
from jobs.samples import write as samples
from tests import tiny
from tests.cli.drafted_jobs import draft_job, read_data_settings, read_refusal, write_images, write_table
from tests.messages import ends_with, says
from tests.paths import IMPORTS, ROOT

pytestmark = pytest.mark.usefixtures("working_folder")


@pytest.fixture(autouse=True)
def docker_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is one decides what `next:` says."""
    monkeypatch.setattr(installation, "which", lambda name: f"/usr/bin/{name}")


def test_sample_images(capsys: pytest.CaptureFixture[str]) -> None:
    samples.write("patterns", Path("data/patterns"), 30, 0)
    job = draft_job("data/patterns")
    assert (job.name, job.task) == ("patterns", "image-classification")
    assert read_data_settings(job)["train"] == "data/patterns"
    text, output = Path("patterns.yaml").read_text(), capsys.readouterr().out
    assert says(text, "images-classes-checks-dots", 30, 6, 5)
    assert output.startswith("patterns.yaml: image-classification")
    where = f"written to {Path.cwd() / 'patterns.yaml'}; relative paths in it start from that folder\n"
    assert ends_with(output, "next-drivetrain-launch", where, "patterns.yaml")
    assert "# Train it: drivetrain launch patterns.yaml\n" in text, "what `next:` says"
    # The reason stands beside every value that was looked up.
    assert all("#" in line for line in text.splitlines() if line.startswith("  image_size"))


@pytest.mark.parametrize(("word_count", "is_linear"), [(4, False), (6, True)])
def test_longer_texts_get_the_linear_model(word_count: int, is_linear: bool) -> None:
    draws = random.Random(0)
    rows = [f'"{" ".join(draws.choices("abcdefgh", k=word_count - 1))} {n}",{"xyz"[n % 3]}' for n in range(300)]
    Path("notes.csv").write_text("\n".join(["note,kind", *rows]) + "\n")
    draft_job("notes.csv", "--task", "text-classification")
    (model,) = (line for line in Path("notes.yaml").read_text().splitlines() if line.startswith("model:"))
    assert ("linear" in model.split("#")[0]) == is_linear


def test_uneven_classes_get_no_weights() -> None:
    """Weights cost accuracy and probabilities: whoever wants more of the rarer class asks for them."""
    lines = [f"{n * 0.37:.2f},{n % 7},{'late' if n % 16 == 0 else 'on time'}" for n in range(800)]
    Path("flights.csv").write_text("\n".join(["distance,day,arrival", *lines]) + "\n")
    assert draft_job("flights.csv").train.class_weights == "none"


def test_in_a_checkout_the_next_step_is_the_command_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "CHECKOUT", Path.cwd())
    assert installation.format_train_command(Path("parts.yaml")) == "make train-cpu JOB=parts.yaml"
    assert installation.format_train_command(Path("my parts.yaml")) == "drivetrain launch 'my parts.yaml'"
    os.mkdir("below")
    monkeypatch.chdir("below")
    assert installation.format_train_command(Path("parts.yaml")) == "drivetrain launch parts.yaml"
    monkeypatch.setattr(installation, "which", lambda name: None)
    assert installation.format_train_command(Path("parts.yaml")) == "drivetrain train parts.yaml", (
        "torch is here, and no container"
    )


def test_sample_texts() -> None:
    samples.write("reports", Path("reports"), 120, 0)
    job = draft_job("reports")
    assert job.task == "text-classification"
    assert read_data_settings(job)["text"] == ("descripcion",)
    assert list(read_data_settings(job)["labels"]) == ["modo", "causa", "prioridad"]
    assert job.best() == job.checkpoint.best == "validation/modo/f1"  # the default, in the file to be seen and changed
    one = draft_job("reports/reports.csv", "--target", "causa", "--output", "one.yaml")
    assert list(read_data_settings(one)["labels"]) == ["causa"]


def test_sample_series() -> None:
    samples.write("series", Path("series"), 4000, 0)
    job = draft_job("series")
    assert job.task == "series-classification"
    data = read_data_settings(job)
    assert (data["train"], data["time"], data["group"], data["label"]) == (
        "series/train.csv",
        "time",
        "machine",
        ("regime",),
    )
    assert data["window"] == 16
    number = draft_job("series", "--target", "load", "--output", "load.yaml")
    assert number.task == "series-regression"
    assert "load" not in read_data_settings(number)["features"]


def test_sample_table() -> None:
    samples.write("table", Path("table"), 200, 0)
    job = draft_job("table")
    assert job.task == "tabular-classification"
    assert (read_data_settings(job)["target"], read_data_settings(job)["ignore"]) == (("fails",), ("id",))
    assert "hours_left" in Path("table.yaml").read_text()  # the other number that could be meant
    number = draft_job("table/train.parquet", "--target", "hours_left", "--output", "hours.yaml")
    assert number.task == "tabular-regression"


def test_digits() -> None:
    job = draft_job(ROOT / "jobs" / "data" / "digits.npz")
    assert job.task == "image-classification"
    assert "1,797 images of 8 x 8 pixels, uint8, 10 classes, 3: 183," in Path("digits.yaml").read_text()


def test_what_is_no_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert says(read_refusal(capsys, "empty"), "images-class-folders")
    assert says(read_refusal(capsys, "nothing"), "nothing-is-not-there")
    Path("photos").mkdir()
    assert 'did you mean "photos"?' in read_refusal(capsys, "fotos")
    assert f'did you mean "{Path("photos").absolute()}"?' in read_refusal(capsys, Path("photoz").absolute())
    Path("letter.docx").write_bytes(b"PK\3\4")
    assert says(read_refusal(capsys, "letter.docx"), "is-of-no-known-kind")
    for name in ("zero.csv", "zero.jsonl", "zero.parquet", "zero.npz"):
        Path(name).write_bytes(b"")
        read_refusal(capsys, name)
    write_table("header.csv", ["a", "b"], [])
    assert "no rows" in read_refusal(capsys, "header.csv")
    write_images("broken", {"a": 1, "b": 2})
    for path in Path("broken").rglob("*.png"):
        path.write_bytes(b"no image")
    assert says(read_refusal(capsys, "broken"), "none-images-could-decoded", 3)


def test_odd_names() -> None:
    """Spaces, umlauts, quotes and what YAML would read as something else."""
    rows = [[i * 0.5, i * i % 17, ("ja", "nein")[i % 2]] for i in range(50)]
    names = ["größe: [mm]", "no", '"y" # {z}']
    job = draft_job(write_table("Größen & Maße/~ 2026 'x'.csv", names, rows), "--target", names[2])
    assert (job.name, read_data_settings(job)["target"]) == ("2026-x", (names[2],))
    assert read_data_settings(draft_job(write_images("~ä ö", {"ja": 3, "off: 1": 3})))["train"] == "./~ä ö"


def test_columns_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    write_table("rows.csv", ["load", "maker"], [[i * 0.3, "ab"[i % 2]] for i in range(30)])
    assert 'did you mean "maker"?' in read_refusal(capsys, "rows.csv", "--target", "make")
    assert 'no column "load" of texts' in read_refusal(capsys, "rows.csv", "--text", "load")
    assert says(read_refusal(capsys, "rows.csv", "--task", "text-classification", code=2), "has-no-columns-for-it")
    assert says(read_refusal(capsys, "rows.csv", "--task", "series-regression"), "table-readings-over-time")
    write_images("photos", {"a": 3, "b": 3})
    assert says(read_refusal(capsys, "photos", "--target", "a", code=2), "folder-images-columns")
    assert says(read_refusal(capsys, "photos", "--task", "tabular-regression", code=2), "holds-images-folders")


def test_no_file_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    write_images("photos", {"a": 3, "b": 3})
    Path("photos.yaml").write_text("mine")
    assert main.main(["init", "photos"]) == 2
    assert says(capsys.readouterr().err, "is-there-already", "photos.yaml")
    assert Path("photos.yaml").read_text() == "mine"
    Path("jobs").mkdir()
    assert main.main(["init", "photos", "--output", "jobs/second.yaml"]) == 0
    job = job_spec.load("jobs/second.yaml")
    assert job.resolve(job.data.train).samefile("photos")
    assert main.main(["init", "photos", "--output", "none/second.yaml"]) == 7


def test_without_torch(working_folder: Path) -> None:
    """Neither imports nor a look at the data load it."""
    write_images("photos", {"a": 3, "b": 3})
    write_table("rows.csv", ["load", "maker"], [[i * 0.3, "ab"[i % 2]] for i in range(30)])
    np.savez("arrays.npz", x=np.zeros((20, 8)), y=np.arange(20) % 2)
    code = (
        "import sys; sys.modules['torch'] = None\nfrom drivetrain.cli import main\n"
        "sys.exit(max(main.main(['init', name]) for name in ('photos', 'rows.csv', 'arrays.npz')))"
    )
    process = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": IMPORTS}, check=False)
    assert process.returncode == 0
    assert len(list(working_folder.glob("*.yaml"))) == 3


def test_names_and_texts_in_yaml() -> None:
    for text in (
        "a b",
        "ñandú/x-1.csv",
        "no",
        "Null",
        "12",
        "1e3",
        "- a",
        "a: b",
        "#",
        "~",
        "",
        " a",
        "a\nb",
        "\u2028",
        "é\x07",
        "😀 [",
        "/x/y",
        "../data/x",
        ".",
    ):
        assert parse(f"k: {quote(text)}\nl: {quote_all([text, 'x'])}", "x").data == {
            "k": text,
            "l": [text, "x"],
        }
    assert [make_run_name(text) for text in ("Größe Nr. 1", "--", "日本", "x" * 80)] == [
        "Grosse-Nr.-1",
        "job",
        "job",
        "x" * 64,
    ]


def _cell(generator: random.Random) -> object:
    kinds = [
        lambda: generator.randint(-5, 5),
        lambda: round(generator.gauss(0, 1e3), 3),
        lambda: generator.choice(["", "NaN", "null", "-", "yes", "no", "true", "1e400", "inf", "007"]),
        lambda: generator.choice(["a", "b", "Ä", "x y z w v", "a.png", "2026-01-01", "2026-01-01 10:00:00", "12:30"]),
        lambda: "".join(chr(generator.choice([*range(32, 127), 0xE9, 0x2028, 0x1F600, 9, 10])) for _ in range(12)),
    ]
    return generator.choice(kinds)()


def _any_file(generator: random.Random, number: int) -> Path:
    """A small file that may or may not be data."""
    header = generator.sample(
        ["id", "time", "date", "label", "text", "y", "a: b", "no", "größe", "x", "path", "t", "n"],
        generator.randint(1, 6),
    )
    columns = [generator.choice([None, [_cell(generator) for _ in range(generator.randint(1, 3))]]) for _ in header]
    rows = [
        [_cell(generator) if c is None else generator.choice(c) for c in columns]
        for _ in range(generator.randint(0, 80))
    ]
    if "time" in header and generator.random() < 0.7:
        for index, row in enumerate(rows):
            row[header.index("time")] = index
    kind = generator.choice(["csv", "csv", "csv", "tsv", "jsonl", "parquet", "npz", "bytes"])
    path = Path(f"file-{number}.{kind}")
    if kind in ("csv", "tsv"):
        write_table(str(path), header, rows, delimiter="\t" if kind == "tsv" else generator.choice(",,,,;"))
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(header, row, strict=True))) for row in rows), "utf-8")
    elif kind == "parquet":
        cells = {name: [str(row[i]) for row in rows] for i, name in enumerate(header)}
        parquet.write_table(pyarrow.table(cells), path)
    elif kind == "npz":
        shape = [generator.randint(0, 12) for _ in range(generator.randint(0, 4))]
        names = generator.choice([("images", "labels"), ("x", "y"), ("a",)])
        first = np.zeros(shape, generator.choice(["u1", "f4", "i8", "?", "U3", "c8"]))
        label_arrays = {name: np.arange(generator.randint(0, 12)) % generator.randint(1, 4) for name in names[1:]}
        np.savez(path, **{names[0]: first}, **label_arrays)  # type: ignore[arg-type]
    if kind == "bytes" or generator.random() < 0.15:
        path = path.with_suffix(generator.choice([".csv", ".jsonl", ".parquet", ".npz"]))
        content = path.read_bytes() if path.exists() else generator.randbytes(200)
        path.write_bytes(content[: generator.randint(0, len(content))] + generator.randbytes(generator.randint(0, 5)))
    return path


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_given_nothing_invalid_is_written(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred small files: each ends in a valid spec, or in an error of three parts and no file."""
    generator = random.Random(seed)
    for number in range(25):
        path, output = _any_file(generator, number), Path(f"{number}.yaml")
        options = ["--task", generator.choice(list(TASKS))] if generator.random() < 0.3 else []
        options += ["--target", generator.choice(["label", "y", "n"])] if generator.random() < 0.2 else []
        code = main.main(["init", str(path), "--output", str(output), *options])
        error = capsys.readouterr().err
        assert (code == 0) == output.exists(), (path, error)
        if code == 0:
            job_spec.load(output)
        else:
            assert code in (2, 3)
            assert "possible: " in error, (path, error)
            assert "would not be valid" not in error, (path, error)


TASKS = (
    *("image-classification", "text-classification", "series-classification", "series-regression"),
    *("tabular-classification", "tabular-regression"),
)


@pytest.mark.parametrize(
    ("kind", "size", "smaller"),
    [
        ("patterns", 24, "data.image_size=16"),
        ("reports", 40, "model.vocabulary=400"),
        ("series", 400, "train.batch_size=128"),
        ("table", 60, "model.hidden=[16]"),
    ],
)
def test_a_made_spec_trains(kind: str, size: int, smaller: str, working_folder: Path) -> None:
    """One epoch and an evaluation."""
    samples.write(kind, Path("data"), size, 0)
    run = tiny.assemble_plain_run(draft_job("data", assignments=[smaller]), working_folder)
    run.train_mode()
    run.rates.set(run.counters, run.best_metric.factor())
    losses = [float(run.step(batch_inputs.preprocess(run, batch, 0)).loss) for batch in run.batches.epoch(0)]
    assert losses
    assert np.isfinite(losses).all()
    assert 0 <= evaluate(run)[0][run.job.best()] <= 1
