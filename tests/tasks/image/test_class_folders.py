"""A folder for each class as a data set: what is read, what is passed over, bad ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data import file_paths
from drivetrain.data.load_data import load
from drivetrain.data.load_data import load as load_job
from drivetrain.system.files import read_json, write_json
from tests.messages import ends_with, get_message, says, says_each, says_only
from tests.pictures import job, read_refusal, write_folder

torch.set_num_threads(1)


def test_folders_are_classes_in_sorted_order_and_nested_files_count(tmp_path: Path) -> None:
    write_folder(tmp_path, wolf=4, cat=4)
    (tmp_path / "cat" / "more" / "deep").mkdir(parents=True)
    Image.new("L", (16, 16)).save(tmp_path / "cat" / "more" / "deep" / "x.PNG")
    data = load(job(tmp_path))
    assert data.heads[""].classes == ("cat", "wolf")
    titles = {split.title(i) for split in (data.train, data.validation) for i in range(len(split))}
    assert str(tmp_path / "cat/more/deep/x.PNG") in titles
    assert len(titles) == 9
    assert data.decoded is False
    assert data.notes[0] == "7 training and 2 validation images, 2 classes"


def test_skipped_files_are_noted(tmp_path: Path) -> None:
    write_folder(tmp_path, a=4, b=4)
    (tmp_path / "a" / ".hidden.png").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "notes.txt").touch()
    (tmp_path / "b" / "Thumbs.db").touch()
    (tmp_path / "b" / "README").touch()
    (tmp_path / "loose.png").touch()
    (tmp_path / "list.csv").touch()
    (tmp_path / "b" / "again").symlink_to(tmp_path / "b")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    data = load(job(tmp_path))
    assert len(data.train) + len(data.validation) == 8
    assert data.heads[""].classes == ("a", "b")
    assert says_each(
        data.notes[1:5],
        [
            get_message("folders-without-images-ignored", tmp_path),
            get_message("images-outside-class-folders", tmp_path, 1, "loose.png"),
            get_message("files-without-image-extension", tmp_path, 1, 1, 1),
            get_message("symbolic-links-parent-folder", tmp_path, "a/up", "b/again"),
        ],
    )


def test_a_linked_class_folder_is_followed(tmp_path: Path) -> None:
    write_folder(tmp_path / "elsewhere", x=4)
    write_folder(tmp_path / "data", a=4)
    (tmp_path / "data" / "b").symlink_to(tmp_path / "elsewhere" / "x")
    data = load(job(tmp_path / "data"))
    assert torch.bincount(torch.cat([data.train.targets[""], data.validation.targets[""]])).tolist() == [4, 4]


FOLDERS: dict[str, tuple[Any, str]] = {
    "missing": (lambda root: None, "x does not exist"),
    "empty": (lambda root: root.mkdir(), "has no images in class folders, but no files at all"),
    "flat": (
        lambda root: (
            write_folder(root, sub=3)
            and (root / "sub").rename(root.with_name("y"))
            and root.with_name("y").rename(root)
        ),
        "no images in class folders",
    ),
    "one class": (lambda root: write_folder(root, cat=4), "4 images of 1 class: cat"),
    "parts": (lambda root: write_folder(root, train=4, val=4), "are splits of a data set, not classes: train, val"),
    "no image can be used": (
        lambda root: (write_folder(root, a=30, b=30), (root / "c").mkdir(), (root / "c" / "x.png").touch()),
        "no image can be used of the classes c",
    ),
    "a text file": (lambda root: root.write_text("hello"), "has an unknown file type"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_bad_folders(tmp_path: Path, case: str) -> None:
    write, text = FOLDERS[case]
    if case == "flat":
        (tmp_path / "x").mkdir()
        Image.new("L", (9, 9)).save(tmp_path / "x" / "1.png")
        text = "has no images in class folders, but 1 images outside of class folders"
    else:
        write(tmp_path / "x")
    error_text = read_refusal(job(tmp_path / "x"))
    assert error_text.startswith("data.train: ")
    assert text in error_text


def test_parts_are_named_in_the_advice(tmp_path: Path) -> None:
    write_folder(tmp_path, valid=4, Train=4)
    assert says(read_refusal(job(tmp_path)), "name-one-of-them-or", f"{tmp_path}/Train", f"{tmp_path}/valid")


LEFTOVERS = (
    "@eaDir",
    "#recycle",
    "__MACOSX",
    "lost+found",
    "$RECYCLE.BIN",
    "@Recently-Snapshot",
    "THMBNL",
    "FOUND.000",
)


@pytest.mark.parametrize("name", LEFTOVERS)
def test_what_systems_leave_is_no_class(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path, a=4, b=4)
    for parent in (tmp_path, tmp_path / "a"):
        write_folder(parent / name, a=2, thumb=2)
    data = load(job(tmp_path))
    assert data.heads[""].classes == ("a", "b")
    assert len(data.train) + len(data.validation) == 8
    assert says([note for note in data.notes if f"{name} (2)" in note], "are-no-classes-and-are-skipped")
    assert file_paths.list_subfolders(tmp_path) == ["a", "b"]


def test_a_folder_around_the_class_folders_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "archive", a=4, b=4)
    (tmp_path / "__MACOSX").mkdir()
    assert says(read_refusal(job(tmp_path)), "name-inner-those-classes", tmp_path / "archive")


SPLITS: dict[str, tuple[list[str], tuple[str, str | None, str | None] | None]] = {
    "a common word": (["seg_train", "seg_test"], ("seg_train", None, "seg_test")),
    "set": (["training_set", "test_set"], ("training_set", None, "test_set")),
    "joined": (["trainset", "valset"], ("trainset", "valset", None)),
    "capitals": (["Training", "Testing"], ("Training", None, "Testing")),
    "camels": (["TrainImages", "ValImages"], ("TrainImages", "ValImages", None)),
    "images": (["train_images", "val_images", "test_images"], ("train_images", "val_images", "test_images")),
    "years": (["train2017", "val2017"], ("train2017", "val2017", None)),
    "valid": (["train", "valid"], ("train", "valid", None)),
    "classes": (["steam train", "bus"], None),
    "classes of trains": (["steam train", "test tube"], None),
    "a class": (["train", "bus"], None),
}


@pytest.mark.parametrize("case", SPLITS)
def test_splits_under_other_names(tmp_path: Path, case: str) -> None:
    names, expected = SPLITS[case]
    for name in names:
        write_folder(tmp_path / name, a=4, b=4)
    splits = file_paths.find_splits(tmp_path, "k")
    assert (splits and (splits.train, splits.validation, splits.test)) == expected
    if expected:
        assert says(read_refusal(job(tmp_path)), "splits-data-set")


def test_splits_in_folders_of_their_own_and_images_without_classes(tmp_path: Path) -> None:
    for name in ("seg_train/seg_train", "seg_test/seg_test"):
        write_folder(tmp_path / name, a=4, b=4)
    write_folder(tmp_path / "seg_pred", seg_pred=4)
    splits = file_paths.find_splits(tmp_path, "k")
    assert splits
    assert splits.names == ["seg_train/seg_train", "seg_test/seg_test"]
    assert splits.unused == ("seg_pred",)


@pytest.mark.parametrize("inside", ["", "test", "unknown"], ids=["flat", "twice", "unknown"])
def test_a_test_folder_without_classes_is_not_used(tmp_path: Path, inside: str) -> None:
    write_folder(tmp_path / "train", a=4, b=4)
    (tmp_path / "test" / inside).mkdir(parents=True)
    Image.new("L", (16, 16)).save(tmp_path / "test" / inside / "1.png")
    splits = file_paths.find_splits(tmp_path, "k")
    assert splits
    assert (splits.names, splits.unused) == (["train"], ("test",))


def test_the_log_names_the_classes_and_their_counts(tmp_path: Path) -> None:
    write_folder(tmp_path, common=20, rare=4)
    assert says_only(load_job(job(tmp_path)).notes, "classes-training-common-rare", 15, 3)


NFC, NFD = "caf\u00e9", "cafe\u0301"


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    write_folder(tmp_path, a=8, b=8)
    for number in range(4):
        Image.new("L", (16, 16), 90 + number).save(os.fsencode(tmp_path / "a") + b"/ni\xf1o%d.png" % number)
    os.rename(tmp_path / "b" / "07.png", os.fsencode(tmp_path / "b") + b"/\xff.png")
    data = load(job(tmp_path))
    titles = [split.title(index) for split in (data.train, data.validation) for index in range(len(split))]
    assert sum(title.endswith("a/ni\\udcf1o0.png") for title in titles) == 1
    assert "\n".join([*titles, *data.notes]).encode()
    assert data.train.gather(np.arange(len(data.train)))
    write_json(tmp_path / "x.json", data.files)
    assert read_json(tmp_path / "x.json")["data.train"] == list(data.files["data.train"])
    os.rename(tmp_path / "b", os.fsencode(tmp_path) + b"/b\xf1")
    assert "are not UTF-8: b\\udcf1" in read_refusal(job(tmp_path))


@pytest.mark.parametrize("names", [(NFC, NFD), ("cat", "cat ")], ids=["unicode", "blank"])
def test_two_folders_of_one_name_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    write_folder(tmp_path, **dict.fromkeys((*names, "x"), 4))
    assert says(read_refusal(job(tmp_path)), "names-look-same")


@pytest.mark.parametrize("other", [NFD, f"{NFC} "], ids=["unicode", "blank"])
def test_a_class_in_another_form_is_the_same(tmp_path: Path, other: str) -> None:
    write_folder(tmp_path / "train", **{NFC: 4, "tea": 4})
    write_folder(tmp_path / "val", **{other: 3, "tea": 2})
    data = load(job(tmp_path / "train", validation=str(tmp_path / "val")))
    assert data.heads[""].classes == (NFC, "tea")
    assert data.validation.targets[""].tolist() in ([0, 0, 0, 1, 1],)


def test_classes_that_differ_only_in_case_are_listed(tmp_path: Path) -> None:
    write_folder(tmp_path, Cat=4, cat=4, dog=4)
    assert ends_with(load_job(job(tmp_path)).notes[-1], "probably-same", "Cat/cat")
