"""`data.test`: evaluated once, after the training, with the model that is written; no decision depends on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from drivetrain.cli import main
from drivetrain.data import file_paths
from drivetrain.errors import DataError, SpecError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.system.files import hash_file, read_json
from tests import own_job, task_cases
from tests.messages import ends_with, says

QUICK = ("train.epochs=2", "optimize.measure=off", "optimize.cpu_threads=1")
SPEC = "name: a\ntask: tabular-classification\ndata: {train: train.csv, target: y%s}\n"


def train_job(job: Path, runs: Path) -> Path:
    """The folder of a finished run."""
    options = [word for setting in QUICK for word in ("--set", setting)]
    assert main.main(["train", str(job), "--runs", str(runs), *options]) == 0
    return max(runs.iterdir())


def are_equal(tested: dict[str, float], evaluated: dict[str, float]) -> bool:
    """Whether a test gave the numbers of an evaluation."""
    return {name: pytest.approx(value, rel=1e-6) for name, value in evaluated.items()} == {
        name.removeprefix("test/"): value for name, value in tested.items()
    }


OTHERS = (pytest.param(case, marks=pytest.mark.nightly) for case in ("one text head", "series", "table"))


@pytest.mark.parametrize("case", ["image folders", "series numbers", *OTHERS])
def test_the_result_is_that_of_an_evaluation(tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]) -> None:
    example = task_cases.CASES[case]
    example.files(tmp_path)
    text = example.text.replace(f"validation: held{example.suffix}", f"validation: 0.3, test: held{example.suffix}")
    assert "test: held" in text
    (tmp_path / "job.yaml").write_text(f"name: a\n{text}")
    folder = train_job(tmp_path / "job.yaml", tmp_path / "runs")
    test = read_json(folder / "result.json")["test"]
    assert test["data"] == f"held{example.suffix}"
    printed = capfd.readouterr().out
    assert says(printed, "samples-final-test", test["samples"])
    assert f"final test on {test['samples']} samples of held{example.suffix}: test/" in printed
    assert "data.test" in json.dumps(read_json(folder / "inputs.json"))
    test_file, output = str(tmp_path / f"held{example.suffix}"), tmp_path / "evaluation"
    assert main.main(["evaluate", str(folder), "--data", test_file, "--output", str(output)]) == 0
    assert are_equal(test["metrics"], read_json(output / "metrics.json")["metrics"])
    report = (folder / "report.md").read_text()
    assert f"{test['samples']} samples of held{example.suffix}, evaluated once" in report
    assert read_json(folder / "report.json")["test"] == test["metrics"]


def rows(count: int, start: int = 0) -> str:
    return "x,y\n" + "".join(f"{(start + i) % 17},{'ab'[(start + i) % 17 > 8]}\n" for i in range(count))


@pytest.mark.parametrize("weights", ["balanced", pytest.param("{a: 3}", marks=pytest.mark.nightly)])
def test_its_loss_has_the_class_weights_of_the_training(tmp_path: Path, weights: str) -> None:
    """`evaluate` ignored balanced class weights, which new data does not determine."""
    (tmp_path / "train.csv").write_text(rows(100))
    (tmp_path / "test.csv").write_text(rows(30, 5))
    (tmp_path / "job.yaml").write_text(SPEC % ", test: test.csv" + f"train: {{class_weights: {weights}}}\n")
    folder = train_job(tmp_path / "job.yaml", tmp_path / "runs")
    test, output = read_json(folder / "result.json")["test"], tmp_path / "evaluation"
    assert main.main(["evaluate", str(folder), "--data", str(tmp_path / "test.csv"), "--output", str(output)]) == 0
    assert are_equal(test["metrics"], read_json(output / "metrics.json")["metrics"])
    assert main.main(["evaluate", str(folder), "--output", str(tmp_path / "validation")]) == 0


def test_no_bit_of_the_model_depends_on_it(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(rows(100))
    (tmp_path / "test.csv").write_text(rows(30, 5))
    models = []
    for name, test in (("with", ", test: test.csv"), ("without", "")):
        (tmp_path / f"{name}.yaml").write_text(SPEC % test)
        models.append(hash_file(train_job(tmp_path / f"{name}.yaml", tmp_path / name) / "model" / "model.safetensors"))
    assert models[0] == models[1]


def test_data_of_ones_own_has_a_third_part(tmp_path: Path) -> None:
    job = own_job.write_job(tmp_path)
    code = tmp_path / "my_data.py"
    code.write_text(own_job.DATA.replace("points(samples // 3, 1)", "points(samples // 3, 1), points(50, 2)"))
    test = read_json(train_job(job, tmp_path / "runs") / "result.json")["test"]
    assert test["samples"] == 50
    assert 0 <= test["metrics"]["test/accuracy"] <= 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,y\n1,c\n", 'classes that are not in the training data: "c"'),
        ("x,z\n1,a\n", 'test.csv has no column "y"'),
        ("x,y\n" + "1,a\n" * 9 + "2,\n", "1 of 10 samples cannot be used"),
    ],
)
def test_a_mistake_in_it_is_found_before_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "train.csv").write_text(rows(100))
    (tmp_path / "test.csv").write_text(content)
    (tmp_path / "job.yaml").write_text(SPEC % ", test: test.csv")
    assert main.main(["train", str(tmp_path / "job.yaml"), "--runs", str(tmp_path / "runs")]) == DataError.exit_code
    error = capfd.readouterr().err
    assert message in error
    assert "data.t" in error
    assert not list(tmp_path.glob("runs/*/checkpoints/*"))


def test_the_data_of_the_training_is_no_test(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(rows(100))
    (tmp_path / "job.yaml").write_text(SPEC % ", test: ./train.csv")
    with pytest.raises(SpecError, match=r"3:37: data.test: is './train.csv', the same as data.train"):
        job_spec.load(tmp_path / "job.yaml")


def folders(root: Path, **counts: int) -> Path:
    for split, count in counts.items():
        for i in range(count):
            path = root / split / "ab"[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (12, 12), 200 * (i % 2) + i % 40).save(path)
    return root


def images(folder: Path, text: str = "") -> Any:
    (folder / "job.yaml").write_text(f"name: a\ntask: image-classification\ndata: {{train: data{text}}}\n")
    return job_spec.load(folder / "job.yaml")


def test_nested_splits_are_recognized_and_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folders(tmp_path / "data", train=40, val=12, test=10)
    job = images(tmp_path)
    assert (job.data.train, job.data.validation, job.data.test) == ("data/train", "data/val", "data/test")
    note = "data has the splits of a dataset: train for training, val for validation, test for the final test"
    assert job.notes == (note,)
    assert main.main(["validate", str(tmp_path / "job.yaml")]) == 0
    assert note in capfd.readouterr().out
    folder = train_job(tmp_path / "job.yaml", tmp_path / "runs")
    output = capfd.readouterr().out
    assert f"data: {note}" in output
    assert "40 training and 12 validation images, 2 classes" in output
    assert read_json(folder / "result.json")["test"]["samples"] == 10
    names = read_json(folder / "inputs.json")["files"]
    assert {key: len(record["rows"]) for key, record in names.items()} == {
        "data.train": 40,
        "data.validation": 12,
        "data.test": 10,
    }


def test_what_the_spec_names_stays(tmp_path: Path) -> None:
    folders(tmp_path / "data", train=40, valid=12, test=10)
    job = images(tmp_path, ", validation: 0.3, test: data/valid")
    assert (job.data.train, job.data.validation, job.data.test) == ("data/train", 0.3, "data/valid")
    assert ends_with(job.notes[0], "valid-used-since-test", "data.validation", "0.3", "data.test", "data/valid")


def test_a_fold_replaces_the_validation_folder(tmp_path: Path) -> None:
    folders(tmp_path / "data", train=40, val=12)
    job = images(tmp_path, ", fold: 1/4")
    assert (job.data.train, job.data.validation, job.data.fold) == ("data/train", 0.1, "1/4")
    assert ends_with(job.notes[0], "train-training-val-used", "data.fold", "1/4")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"train": 4, "val": 4, "extra": 4}, "look like the splits of a data set, and there is extra beside them"),
        ({"train": 4, "val": 4, "dev": 4}, "there is dev and val for one split"),
    ],
)
def test_splits_that_are_not_clear(tmp_path: Path, counts: dict[str, int], message: str) -> None:
    folders(tmp_path / "data", **counts)
    with pytest.raises(DataError, match=message) as caught:
        images(tmp_path)
    assert "job.yaml:3:8: data.train" in str(caught.value)


def test_classes_that_are_called_like_a_split(tmp_path: Path) -> None:
    for names, expected in ((("train", "car"), None), (("test", "best"), None), (("train",), "train")):
        root = folders(tmp_path / names[-1], **dict.fromkeys(names, 4))
        splits = file_paths.find_splits(root, "k")
        assert (splits.train if splits else None) == expected


def test_new_images_in_splits_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folders(tmp_path / "data", train=40, val=12, test=10)
    images(tmp_path)
    folder = train_job(tmp_path / "job.yaml", tmp_path / "runs")
    assert main.main(["evaluate", str(folder), "--data", str(tmp_path / "data")]) == DataError.exit_code
    assert says(capfd.readouterr().err, "name-one-of-them-or-2", f"{tmp_path}/data/test")


torch.set_num_threads(1)
