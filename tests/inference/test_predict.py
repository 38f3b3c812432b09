"""predict on raw files gives what validation computed, for every task; the model folder alone is enough."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.cli import main
from drivetrain.data.dataset import NO_LABEL
from drivetrain.errors import DataError
from drivetrain.inference import predictions
from drivetrain.models import forward, saved_model
from drivetrain.training.run import Run
from tests.edited_model import write_config
from tests.messages import says
from tests.paths import ROOT
from tests.task_cases import CALIBRATED, CASES, collect_outputs, train_case

NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, home: Path) -> Run:
    folder = home / request.param.replace(" ", "-")
    folder.mkdir()
    return train_case(CASES[request.param], folder)


@pytest.fixture(autouse=True)
def same_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands set these for their own process, which is ours here."""
    for name in NAMES:
        monkeypatch.setenv(name, "1")


def list_validation_files(run: Run) -> list[Path]:
    """The raw files of the validation data."""
    folder = run.folder.parent
    files = sorted(folder.glob("held.*"))
    return files or [Path(run.dataset.validation.title(i)) for i in range(len(run.dataset.validation))]


def predict_rows(model: Path, inputs: list[Path], output: Path, *options: str) -> list[dict[str, Any]]:
    code = main.main(["predict", str(model), *map(str, inputs), "--output", str(output), *options])
    assert code == 0
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_files_that_are_no_images_are_named(images: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were left out in silence; a path that is misspelt is answered with the one that was meant."""
    model, photos = images.folder / "model", tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (8, 8)).save(photos / "a.png")
    (photos / "Thumbs.db").write_bytes(b"x")
    (photos / ".hidden").write_bytes(b"x")
    assert len(predict_rows(model, [photos], tmp_path / "out.jsonl")) == 1
    assert says(capsys.readouterr().err, "files-images-left", "1 .db")
    assert main.main(["predict", str(model), str(tmp_path / "fotos")]) == DataError.exit_code
    assert f'did you mean "{photos}"?' in capsys.readouterr().err


def test_predictions_are_those_of_validation(run: Run, tmp_path: Path) -> None:
    model_copy = tmp_path / "elsewhere"
    shutil.copytree(run.folder / "model", model_copy)
    rows = predict_rows(model_copy, list_validation_files(run), tmp_path / "out.jsonl", "--probabilities")
    outputs, split = collect_outputs(run), run.dataset.validation
    assert len(rows) == len(split)
    assert [Path(row["sample"]).name for row in rows] == [Path(split.title(i)).name for i in range(len(split))]
    for name, head in saved_model.load(run.folder).heads.items():
        head_rows = [row["heads"][name] if name else row for row in rows]
        if head.classes:
            expected = predictions.compute_probabilities(head, outputs[name])
            got = torch.tensor([[row["probabilities"][c] for c in head.classes] for row in head_rows])
            assert float((got - expected).abs().max()) <= 1e-6
            assert got.std() > 1e-4, "all the same would prove nothing"
        else:
            expected = predictions.unscale(head, outputs[name])
            got = torch.tensor([list(row["prediction"].values()) for row in head_rows], dtype=torch.float64)
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_evaluate_gives_the_metrics_of_the_training(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without data it reads the validation data again and gives every metric, the loss too."""
    assert main.main(["evaluate", str(run.folder), "--output", str(tmp_path / "out")]) == 0
    stored = json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]
    # Those of probabilities are of the ones that `predict` writes, with the temperature.
    with_temperature = {name for name in run.last_metrics if name.rpartition("/")[2] in ("log_loss", "brier", "ece")}
    plain = {name: value for name, value in run.last_metrics.items() if name not in with_temperature}
    # A training has 0.5 as its threshold.
    at_half = {name.removesuffix("_at_half"): value for name, value in stored.items() if name.endswith("_at_half")}
    metrics = stored | at_half
    assert {name: metrics[name] for name in plain} == pytest.approx(plain, rel=1e-5, abs=1e-6)
    assert stored.keys() == run.last_metrics.keys() | {f"{name}_at_half" for name in at_half}
    model, data = saved_model.load(run.folder), run.dataset
    batches = list(
        forward.compute_outputs(model.network, model.heads, data.validation, data.prepare, torch.device("cpu"))
    )
    for name in (name for name, head in model.heads.items() if head.classes and not head.several):
        scaled = torch.cat([outputs[name] for _, outputs in batches]) / model.heads[name].temperature
        expected = torch.nn.functional.cross_entropy(scaled, data.validation.targets[name], ignore_index=NO_LABEL)
        assert stored["/".join(filter(None, ("validation", name, "log_loss")))] == pytest.approx(
            float(expected), rel=1e-4
        )
    stdout, stderr = capsys.readouterr()
    assert all(f"{name} " in stdout for name in run.last_metrics), stdout
    assert says(stderr, "evaluate-loading-model-validation")
    assert f"evaluate: {len(run.dataset.validation):,} samples\n" in stderr
    singles = [name for name, head in run.dataset.heads.items() if head.classes and not head.several]
    for name in singles:
        stem = tmp_path / "out" / (f"confusion-{name}" if name else "confusion")
        lines = list(csv.reader(stem.with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
        assert lines[0] == ["truth", *run.dataset.heads[name].classes]
        assert sum(int(cell) for line in lines[1:] for cell in line[1:]) == len(run.dataset.validation)
    several = [head for head in run.dataset.heads.values() if head.several]
    for head in several:
        lines = list(csv.reader((tmp_path / "out" / "labels.csv").read_text(encoding="utf-8").splitlines()))
        true = run.dataset.validation.targets[""].sum(0).long().tolist()
        assert [(line[0], int(line[1])) for line in lines[1:]] == list(zip(head.classes, true, strict=True))
        f1 = [
            2 * float(line[3]) * float(line[4]) / max(1e-9, float(line[3]) + float(line[4]))
            for line in lines[1:]
            if line[3]
        ]
        assert sum(f1) / max(1, len([line for line in lines[1:] if line[5]])) == pytest.approx(
            stored["validation/f1"], abs=2e-3
        )
    assert len(list((tmp_path / "out").iterdir())) == 1 + len(singles) + len(several)


def test_an_evaluation_of_new_data_needs_the_model_alone(run: Run, tmp_path: Path) -> None:
    model_copy = tmp_path / "elsewhere"
    shutil.copytree(run.folder / "model", model_copy)
    files = sorted(run.folder.parent.glob("held*"))
    assert main.main(["evaluate", str(model_copy), "--data", str(files[0]), "--output", str(tmp_path / "out")]) == 0
    stored = json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]
    # Scores of probabilities are those at the temperature that was fitted to the validation data.
    hidden = ("/loss", *CALIBRATED)
    expected = {
        name.removeprefix("validation/"): value for name, value in run.last_metrics.items() if not name.endswith(hidden)
    }
    at_half = {name.removesuffix("_at_half"): value for name, value in stored.items() if name.endswith("_at_half")}
    assert {name: (stored | at_half)[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
    losses = [name for name in stored if name.endswith("log_loss")]
    assert all(stored[name] <= run.last_metrics[f"validation/{name}"] + 1e-4 for name in losses)


def test_the_average_is_used_and_the_raw_weights_lie_beside(run: Run) -> None:
    loaded = saved_model.load(run.folder)
    assert run.ema
    state = loaded.network.state_dict()
    assert all(torch.equal(state[name], value) for name, value in run.ema.average.items() if name in state)
    assert not all(torch.equal(state[name], value) for name, value in run.model.state_dict().items() if name in state)
    assert (loaded.folder / "raw.safetensors").exists()


# ------------------------------------------------------------------------------------------------------ one run of each


@pytest.fixture(scope="module")
def images(home: Path) -> Run:
    (home / "more").mkdir()
    return train_case(CASES["image folders"], home / "more")


@pytest.fixture(scope="module")
def labels(home: Path) -> Run:
    (home / "labels").mkdir()
    return train_case(CASES["table labels"], home / "labels")


def test_csv_from_the_command_line_in_a_process_of_its_own(images: Run, tmp_path: Path) -> None:
    folder = images.folder.parent / "held"
    (folder / "broken.jpg").write_bytes(b"")
    command = [sys.executable, "-m", "drivetrain", "predict", str(images.folder), str(folder), "--probabilities"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    (folder / "broken.jpg").unlink()
    assert process.returncode == 0, process.stderr
    rows = list(csv.DictReader(process.stdout.splitlines()))
    assert list(rows[0]) == ["sample", "prediction", "probability", "probabilities.a", "probabilities.b"]
    assert len(rows) == 8
    assert says(f"\n{process.stderr}", "data-samples-used", 1, 9)  # it began with data: data:
    assert f"left out: {folder / 'broken.jpg'}: empty file" in process.stderr
    assert "8 samples in" in process.stderr
    row_of_sample = {row["sample"]: row for row in rows}
    split, head = images.dataset.validation, saved_model.load(images.folder).heads[""]
    probabilities = predictions.compute_probabilities(head, collect_outputs(images)[""])
    for index in range(len(split)):
        row = row_of_sample[str(folder.parent / Path(split.title(index)).relative_to(folder.parent))]
        assert float(row["probabilities.b"]) == pytest.approx(float(probabilities[index, 1]), abs=1e-6)
        assert row["prediction"] == "ab"[int(probabilities[index].argmax())]
        assert float(row["probability"]) == pytest.approx(float(probabilities[index].max()), abs=1e-6)


def test_several_labels_share_a_cell(labels: Run, tmp_path: Path) -> None:
    data, output = labels.folder.parent / "held.csv", tmp_path / "out.csv"
    assert main.main(["predict", str(labels.folder), str(data), "--output", str(output)]) == 0
    rows = list(csv.DictReader(output.read_text(encoding="utf-8").splitlines()))
    shares, thresholds = collect_outputs(labels)[""].sigmoid(), saved_model.load(labels.folder).heads[""].thresholds
    assert thresholds
    for row, share in zip(rows, shares, strict=True):
        cells = zip(("red", "big"), share.tolist(), thresholds, strict=True)
        expected = [name for name, value, start in cells if value > start]
        assert row["prediction"] == ";".join(expected)
        assert len([p for p in row["probability"].split(";") if p]) == len(expected)


@pytest.mark.parametrize("inputs", [1, 2])
def test_an_output_file_has_the_rows_of_its_one_table(labels: Run, tmp_path: Path, inputs: int) -> None:
    data, output = labels.folder.parent / "held.csv", tmp_path / "out.csv"
    before = list(csv.DictReader(data.read_text(encoding="utf-8").splitlines()))
    paths = [str(data)] * inputs
    assert main.main(["predict", str(labels.folder), *paths, "--output", str(output)]) == 0
    rows = list(csv.DictReader(output.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(before) * inputs
    if inputs == 1:
        assert [{name: row[name] for name in before[0]} for row in rows] == before
        assert "sample" not in rows[0]
    else:
        assert list(rows[0]) == ["sample", "prediction", "probability"]


def test_a_manifest_without_labels_and_hidden_files(images: Run, tmp_path: Path) -> None:
    folder = images.folder.parent / "held"
    (tmp_path / "list.csv").write_text(f"path\n{folder / 'a' / '0.jpg'}\nlost.png\n")
    rows = predict_rows(images.folder, [tmp_path / "list.csv"], tmp_path / "o.jsonl")
    assert [row["sample"] for row in rows] == [str(folder / "a" / "0.jpg")]


def test_one_array_file_of_images_without_labels(home: Path, tmp_path: Path) -> None:
    (home / "arrays").mkdir()
    done = train_case(CASES["image arrays"], home / "arrays")
    raw = np.load(done.folder.parent / "held.npz")
    np.savez(tmp_path / "new.npz", images=raw["images"])
    rows = predict_rows(done.folder, [tmp_path / "new.npz"], tmp_path / "o.jsonl")
    head = saved_model.load(done.folder).heads[""]
    probabilities = predictions.compute_probabilities(head, collect_outputs(done)[""]).max(dim=1).values
    assert [row["probability"] for row in rows] == pytest.approx(probabilities.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("inputs", "code", "parts"),
    [
        (["x.jpg"], 3, ["x.jpg: not there", "files or folders", "check the spelling"]),
        (["brocken.png"], 3, ["brocken.png: not there", "files or folders", "did you mean", 'broken.png"?']),
        (["broken.png"], 3, ["1 of 1 samples cannot be used", "broken.png: empty file", "name other files"]),
        (["empty"], 3, ["no images in", "at least one image"]),
        (["one.npz", "broken.png"], 3, ["2 input paths, one of them an .npz", "one.npz alone"]),
        (["bright.npz"], 3, ["are between 1 and 1, but the training images were between 0 and 255", "multiply by 255"]),
    ],
)
def test_inputs_that_cannot_be_used(
    images: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], inputs: list[str], code: int, parts: list[str]
) -> None:
    (tmp_path / "broken.png").touch()
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "one.npz", images=np.zeros((2, 16, 16, 3), np.uint8))
    np.savez(tmp_path / "bright.npz", images=np.ones((2, 16, 16, 3), np.float32))
    assert main.main(["predict", str(images.folder), *(str(tmp_path / name) for name in inputs)]) == code
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error


def test_labels_that_training_did_not_have(images: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(images.folder.parent / "held" / "a", tmp_path / "new" / "zebra")
    assert main.main(["evaluate", str(images.folder), "--data", str(tmp_path / "new")]) == 3
    error = capsys.readouterr().err
    assert says(error, "classes-training-data-2", "zebra")
    assert not (images.folder / "evaluation").exists()
    # A file has none at all.
    assert main.main(["evaluate", str(images.folder), "--data", str(tmp_path / "new" / "zebra" / "0.jpg")]) == 3
    assert says(capsys.readouterr().err, "file-without-label")


def test_a_model_alone_does_not_know_its_validation_data(
    images: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(images.folder / "model", tmp_path / "m")
    assert main.main(["evaluate", str(tmp_path / "m")]) == 3
    assert says(capsys.readouterr().err, "validation-data-unknown", "job.yaml")


def test_data_that_changed_since_training(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "changed").mkdir()
    done = train_case(CASES["image arrays"], home / "changed")
    raw = np.load(done.folder.parent / "train.npz")
    np.savez(done.folder.parent / "train.npz", images=raw["images"] + 1, labels=raw["labels"])
    assert main.main(["evaluate", str(done.folder)]) == 3
    assert says(capsys.readouterr().err, "data-changed-since-training-2")
    (done.folder.parent / "train.npz").unlink()
    assert main.main(["evaluate", str(done.folder)]) == 3
    assert says(capsys.readouterr().err, "pass-data-data-path")


def test_an_output_that_cannot_be_written(images: Run, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(images.folder.parent / "held")
    assert main.main(["predict", str(images.folder), data, "--output", "/proc/none/out.csv"]) == 7
    assert says(capsys.readouterr().err, "choose-another-output")


# ------------------------------------------------------------------------------------------------------ damaged folders


def damage(kind: str, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    match kind:
        case "no config":
            (model / "config.json").unlink()
        case "torn config":
            (model / "config.json").write_text('{"format": 1')
        case "old format":
            config["format"] = 99
        case "no heads":
            del config["heads"]
        case "strange head":
            config["heads"][0]["colour"] = "red"
        case "strange builder":
            config["builder"] = "os.system"
        case "strange argument":
            config["arguments"]["name"] = "alexnet"
        case "other width":
            config["arguments"]["width"] = 5
        case "torn weights":
            content = (model / "model.safetensors").read_bytes()
            (model / "model.safetensors").write_bytes(content[: len(content) // 2])
        case "no weights":
            (model / "model.safetensors").unlink()
    if kind not in ("no config", "torn config", "no weights"):
        write_config(model, config)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("no config", "has no trained model"),
        ("no weights", "has no trained model"),
        ("torn config", "config.json is cut or damaged"),
        ("old format", "config.json has format 99, this version reads 2"),
        ("no heads", "config.json has no heads"),
        ("strange head", "config.json has a head that this version does not know: "),
        ("strange builder", "names the builder 'os.system', this version has images"),
        ("strange argument", "the network cannot be built: KeyError: 'alexnet'"),
        (
            "other width",
            "model.safetensors does not fit config.json: features.0.weight is (4, 3, 3, 3), expected (5, 3,",
        ),
        ("torn weights", "model.safetensors cannot be read"),
    ],
)
def test_a_damaged_model_folder_is_refused(
    images: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, part: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(images.folder / "model", model)
    damage(kind, model)
    assert main.main(["predict", str(model), str(images.folder.parent / "held")]) == 4
    error = capsys.readouterr().err
    assert all(text in error for text in (part, "  possible: ", "  do:       ")), error


def test_a_run_that_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state.json").write_text('{"status": "stopped"}')
    assert main.main(["predict", str(tmp_path), str(tmp_path)]) == 4
    assert says(capsys.readouterr().err, "trained-model-run-stopped")


def test_a_model_folder_has_the_permissions_of_the_run(images: Run) -> None:
    mask = os.umask(0)
    os.umask(mask)
    modes = [file.stat().st_mode & 0o777 for file in (images.folder / "model").iterdir() if file.is_file()]
    assert set(modes) == {0o666 & ~mask}
