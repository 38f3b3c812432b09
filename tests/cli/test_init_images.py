"""The specs that `drivetrain init` drafts for images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.cli import main
from tests.cli.drafted import beginning, images, made, refused, table

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize("held", ["val", "validation", "valid"])
def test_a_data_set_in_parts(held: str) -> None:
    counts = {"good": 4, "bad": 3}
    for part in ("train", held, "test"):
        images(f"photos/{part}", counts)
    data = beginning(made("photos"))
    assert (data["train"], data["validation"]) == ("photos/train", f"photos/{held}")
    assert "photos/test" in Path("photos.yaml").read_text()


def test_a_part_with_other_classes_is_not_used() -> None:
    images("photos/train", {"good": 4, "bad": 3})
    images("photos/val", {"good": 4, "worse": 3})
    assert beginning(made("photos"))["validation"] == 0.2
    assert "classes that training lacks: worse" in Path("photos.yaml").read_text()


def test_folders_around_class_folders() -> None:
    images("download/set/photos", {"good": 4, "bad": 3})
    images("download/set/photos", {"good/older": 4})
    assert beginning(made("download"))["train"] == "download/set/photos"
    assert "11 images" in Path("download.yaml").read_text()


def test_grey_uneven_and_single_images() -> None:
    job = made(images("photos", {"good": 40, "bad": 5, "odd": 1}, size=(28, 28), mode="L"))
    text = Path("photos.yaml").read_text()
    assert "augment" not in beginning(job)
    assert beginning(job)["image_size"] == 32
    assert "all grey" in text
    assert "classes with one sample, which stays in training: odd" in text


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"good": 4}, "4 images of one class: good"),
        ({"a": 1, "b": 1}, "one image of each of 2 classes"),
        ({"a": 0, "b": 0}, "has no images in class folders"),
    ],
)
def test_folders_that_are_no_classes(counts: dict[str, int], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, images("photos", counts))


def test_a_manifest_of_images() -> None:
    images("photos", {"a": 5, "b": 5})
    rows = [[f"{name}/{i}.png", name, i] for name in "ab" for i in range(5)]
    job = made(table("photos/list.csv", ["file name", "kind", "number"], rows), "--output", "list.yaml")
    assert job.task == "image-classification"
    data = beginning(job)
    assert (data["train"], data["path_column"], data["label_column"]) == ("photos/list.csv", "file name", "kind")


def test_many_images_are_not_all_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.data.images import decode

    opened: list[str] = []
    look: Callable[[str], Any] = decode.look
    monkeypatch.setattr(decode, "look", lambda path: opened.append(path) or look(path))
    images("photos", {"a": 2, "b": 2})
    for name in "ab":
        for number in range(2, 1000):
            os.link(f"photos/{name}/0.png", f"photos/{name}/{number}.png")
    assert main.main(["init", "photos"]) == 0
    assert len(opened) == 64
    assert "2,000 images, 2 classes of 1,000 each" in Path("photos.yaml").read_text()
