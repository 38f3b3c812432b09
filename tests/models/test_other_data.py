"""A job that starts from an earlier run, on data that this run could not have been trained on, or in another form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from drivetrain.data.load_data import load
from drivetrain.errors import DataError, SpecError
from drivetrain.models.build import build
from tests.messages import saying, says
from tests.models.followed_weights import FIRST, compute_outputs, follow, rename_classes
from tests.task_cases import CASES, train_case

FROM = f"{{from: {FIRST}}}"


def mark_cells(path: Path, column: int, mark: str) -> None:
    """Put a mark before all cells of a column."""
    header, *rows = path.read_text().splitlines()
    cells = [row.split(",") for row in rows]
    marked_rows = [",".join([*row[:column], mark + row[column], *row[column + 1 :]]) for row in cells]
    path.write_text("\n".join([header, *marked_rows]) + "\n")


def test_a_number_that_is_now_text_is_not_filled_with_the_median(tmp_path: Path) -> None:
    train_case(CASES["table"], tmp_path)
    mark_cells(tmp_path / "train.csv", 0, "x")
    job = follow(tmp_path, CASES["table"], FROM, ("validation: held.csv", "validation: 0.2"))
    with pytest.raises(DataError, match=r"60 of 60 samples cannot be used\n.*age is `x20`, not a number"):
        load(job)


def test_categories_that_the_earlier_run_did_not_have_are_told(tmp_path: Path) -> None:
    train_case(CASES["table"], tmp_path)
    path = tmp_path / "train.csv"
    path.write_text(path.read_text().replace("Lima", "Bogota"))
    notes = load(follow(tmp_path, CASES["table"])).notes
    assert says(notes, "city-categories-training-data", "train.csv"), notes


def test_a_window_that_the_pooling_leaves_nothing_of(tmp_path: Path) -> None:
    case = CASES["series"]
    train_case(case, tmp_path)
    job = follow(tmp_path, case, FROM, ("window: 10, stride: 5", "window: 1, stride: 1"))
    with pytest.raises(SpecError, check=saying("has-windows-of-rows", "data.window", 1)):
        build(job, load(job))


def test_bytes_and_shares_of_one_are_the_same_colors(tmp_path: Path) -> None:
    case = CASES["image folders"]
    train_case(case, tmp_path)
    colors = np.random.default_rng(0).integers(0, 256, (30, 16, 16, 3), np.uint8)
    colors[0, 0, 0], colors[0, 0, 1] = 0, 255
    model_outputs = []
    for name, images in {"bytes": colors, "shares": (colors / 255).astype(np.float32)}.items():
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(30) % 2)
        data_files = f"train: {name}.npz, validation: {name}.npz"
        job = follow(tmp_path, case, FROM, ("train: train, validation: held", data_files))
        torch.manual_seed(0)
        model_outputs.append(compute_outputs(job, build(job, load(job)))[""])
    torch.testing.assert_close(model_outputs[0], model_outputs[1], rtol=1e-4, atol=1e-5)


def test_pixels_on_another_scale_are_refused(tmp_path: Path) -> None:
    case = CASES["image folders"]
    train_case(case, tmp_path)
    images = np.random.default_rng(0).uniform(0, 4095, (30, 16, 16, 3)).astype(np.float32)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(30) % 2)
    job = follow(tmp_path, case, FROM, ("train: train, validation: held", "train: x.npz, validation: x.npz"))
    with pytest.raises(DataError, check=saying("training-images-between")):
        load(job)


def test_cropped_images_are_told(tmp_path: Path) -> None:
    train_case(CASES["image folders"], tmp_path)
    notes = load(follow(tmp_path, CASES["image folders"])).notes
    assert says(notes, "images-are-not-square"), notes


def test_tensors_of_a_file_that_the_network_does_not_have_are_told(tmp_path: Path) -> None:
    case = CASES["series numbers"]
    train_case(case, tmp_path)
    model = f"{{cnn_channels: [4], lstm_hidden: 6, lstm_layers: 1, weights: {FIRST}/model/model.safetensors}}"
    job = follow(tmp_path, case, model)
    notes = build(job, load(job)).notes
    assert says(notes, "used-since-network-tensors"), notes


@pytest.mark.parametrize("new", [True, False])
def test_freezing_a_new_classifier_is_told(tmp_path: Path, new: bool) -> None:
    case = CASES["image arrays"]
    train_case(case, tmp_path)
    if new:
        rename_classes(tmp_path)
    job = follow(tmp_path, case, f"{{from: {FIRST}, freeze: {{names: ['classifier*']}}}}")
    note = "model.freeze freezes classifier.weight, classifier.bias with new random weights, which never learn"
    assert (note in build(job, load(job)).notes) == new
