"""The specs that `drivetrain init` drafts for images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivetrain.cli import main
from tests.cli.drafted_jobs import draft_job, read_data_settings, read_refusal, write_images, write_table
from tests.messages import says

pytestmark = pytest.mark.usefixtures("working_folder")


@pytest.mark.parametrize("validation_folder", ["val", "validation", "valid"])
def test_a_data_set_in_parts(validation_folder: str) -> None:
    counts = {"good": 4, "bad": 3}
    for part in ("train", validation_folder, "test"):
        write_images(f"photos/{part}", counts)
    data = read_data_settings(draft_job("photos"))
    assert (data["train"], data["validation"]) == ("photos/train", f"photos/{validation_folder}")
    assert "photos/test" in Path("photos.yaml").read_text()


def test_a_part_with_other_classes_is_not_used() -> None:
    write_images("photos/train", {"good": 4, "bad": 3})
    write_images("photos/val", {"good": 4, "worse": 3})
    assert read_data_settings(draft_job("photos"))["validation"] == 0.2
    assert says(Path("photos.yaml").read_text(), "classes-training-lacks-worse")


def test_folders_around_class_folders() -> None:
    write_images("download/set/photos", {"good": 4, "bad": 3})
    write_images("download/set/photos", {"good/older": 4})
    assert read_data_settings(draft_job("download"))["train"] == "download/set/photos"
    assert "11 images" in Path("download.yaml").read_text()


def test_grey_uneven_and_single_images() -> None:
    job = draft_job(write_images("photos", {"good": 40, "bad": 5, "odd": 1}, size=(28, 28), mode="L"))
    text = Path("photos.yaml").read_text()
    assert "augment" not in read_data_settings(job)
    assert read_data_settings(job)["image_size"] == 32
    assert "all grey" in text
    assert says(text, "classes-sample-stays-training")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"good": 4}, "4 images of one class: good"),
        ({"a": 1, "b": 1}, "one image of each of 2 classes"),
        ({"a": 0, "b": 0}, "has no images in class folders"),
    ],
)
def test_folders_that_are_no_classes(counts: dict[str, int], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in read_refusal(capsys, write_images("photos", counts))


def test_a_manifest_of_images() -> None:
    write_images("photos", {"a": 5, "b": 5})
    rows = [[f"{name}/{i}.png", name, i] for name in "ab" for i in range(5)]
    job = draft_job(write_table("photos/list.csv", ["file name", "kind", "number"], rows), "--output", "list.yaml")
    assert job.task == "image-classification"
    data = read_data_settings(job)
    assert (data["train"], data["path_column"], data["label_column"]) == ("photos/list.csv", "file name", ("kind",))


LABELS = ("cat|dog", "cat", "", "dog", "owl|cat")
MANIFESTS: dict[str, tuple[list[str], Callable[[int], list[object]], dict[str, object]]] = {
    "labels": (["id", "tags"], lambda n: [n, LABELS[n % 5]], {"label_column": ("tags",), "multi_label": True}),
    "columns": (["a", "b", "c"], lambda n: [n % 2, n // 2 % 2, n // 3 % 2], {"label_column": ("a", "b", "c")}),
    "numbers": (["width"], lambda n: [n * 1.5 + n % 3], {"label_column": ("width",)}),
    "decimal commas": (["width"], lambda n: [f'"{n},{n % 7 + 1}5"'], {"label_column": ("width",)}),
    "commas": (
        ["tags"],
        lambda n: [f'"{LABELS[n % 5].replace("|", ",")}"'],
        {"label_column": ("tags",), "multi_label": True},
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_labels_or_numbers(name: str) -> None:
    write_images("photos", {"x": 30}, size=(16, 16), mode="L")
    header, row, expected = MANIFESTS[name]
    lines = [",".join(["path", *header]), *(",".join(map(str, [f"x/{n}.png", *row(n)])) for n in range(30))]
    Path("photos/list.csv").write_text("\n".join(lines) + "\n")
    job = draft_job("photos/list.csv", "--output", "list.yaml")
    data = read_data_settings(job)
    assert job.task == ("image-regression" if header == ["width"] else "image-classification")
    assert {key: data[key] for key in ("label_column", "multi_label") if key in data} == expected


@pytest.mark.parametrize("shape", [(24, 3), (24,), (24, 2)])
def test_arrays_of_labels_or_numbers(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, shape) if shape == (24, 3) else generator.normal(size=shape)
    np.savez("stack.npz", images=generator.random((24, 16, 16)), labels=labels)
    job = draft_job("stack.npz")
    assert job.task == ("image-classification" if shape == (24, 3) else "image-regression")
    assert read_data_settings(job).get("multi_label") == (True if shape == (24, 3) else None)


def test_many_images_are_not_all_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    from drivetrain.tasks.image import decode

    opened_paths: list[str] = []
    look: Callable[[str], Any] = decode.look
    monkeypatch.setattr(decode, "look", lambda path: opened_paths.append(path) or look(path))
    write_images("photos", {"a": 2, "b": 2})
    for name in "ab":
        for number in range(2, 1000):
            os.link(f"photos/{name}/0.png", f"photos/{name}/{number}.png")
    assert main.main(["init", "photos"]) == 0
    assert len(opened_paths) == 64
    assert "2,000 images, 2 classes of 1,000 each" in Path("photos.yaml").read_text()
