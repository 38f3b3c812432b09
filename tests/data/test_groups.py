"""Groups: samples of a patient, a machine or a document are on one side of a split, and in one fold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drivetrain.data import partition
from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.errors import DataError, SpecError
from drivetrain.job_spec import load_job as job_spec
from tests.messages import ends_with, saying, says

TABLE = "name: t\ntask: tabular-{kind}\ndata: {{train: a.csv, target: {target}, {data}}}\n"
IMAGES = "name: t\ntask: image-{kind}\ndata: {{train: a.csv, label_column: {target}, image_size: 16, {data}}}\n"
COUNT = 60


def patient(row: int) -> str:
    """Groups of very different sizes."""
    return f"p{int(row**0.6)}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    lines = ["path,x,kind,age,who"]
    for row in range(COUNT):
        Image.new("L", (16, 16), 4 * row).save(folder / f"{row}.png")
        lines.append(f"{row}.png,{row % 7}.5,{'ab'[row % 2]},{row * row % 31},{patient(row)}")
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return folder


def read(home: Path, text: str, kind: str, target: str, data: str, *sets: str) -> Dataset:
    (home / "job.yaml").write_text(text.format(kind=kind, target=target, data=data))
    return load(job_spec.load(home / "job.yaml", sets))


def rows(data: Dataset) -> list[set[int]]:
    """The rows of each side."""
    return [
        {
            int(split.title(n).rsplit("/", 1)[-1].removesuffix(".png").removeprefix("a.csv row "))
            - ("row" in split.title(n))
            for n in range(len(split))
        }
        for split in (data.train, data.validation)
    ]


CASES = [
    (TABLE, "classification", "kind", "ignore: [path, age], "),
    (TABLE, "regression", "age", "features: [x], "),
    (IMAGES, "classification", "kind", ""),
    (IMAGES, "regression", "age", ""),
]


@pytest.mark.parametrize(("text", "kind", "target", "data_keys"), CASES)
def test_a_group_is_on_one_side(home: Path, text: str, kind: str, target: str, data_keys: str) -> None:
    data = read(home, text, kind, target, f"{data_keys}groups: who, validation: 0.3")
    train, validation = rows(data)
    assert (train | validation, train & validation) == (set(range(COUNT)), set())
    assert not {patient(n) for n in train} & {patient(n) for n in validation}
    assert 0.2 < len(validation) / COUNT < 0.4
    assert ends_with([note for note in data.notes if note.startswith("groups of who: ")], "none-both-sides")
    assert "who" not in str(data.preprocessing)
    # Without the key, groups are torn apart.
    train, validation = rows(read(home, text, kind, target, f"{data_keys}validation: 0.3"))
    assert {patient(n) for n in train} & {patient(n) for n in validation}


@pytest.mark.parametrize(("text", "kind", "target", "data_keys"), CASES[::2])
def test_every_fold_has_whole_groups(home: Path, text: str, kind: str, target: str, data_keys: str) -> None:
    every: list[set[int]] = []
    for number in range(1, 5):
        train, validation = rows(read(home, text, kind, target, f"{data_keys}groups: who, fold: {number}/4"))
        assert not {patient(n) for n in train} & {patient(n) for n in validation}
        assert 10 <= len(validation) <= 20
        every.append(validation)
    assert set.union(*every) == set(range(COUNT))
    assert sum(map(len, every)) == COUNT


def test_shares_of_classes_and_of_parts() -> None:
    generator = np.random.default_rng(0)
    group_of_sample, labels = generator.integers(0, 200, 3000), generator.integers(0, 3, 3000)
    part_of_sample = partition.assign_parts(labels, group_of_sample, [0.2] * 5, 0)
    counts = np.array([np.bincount(labels[part_of_sample == part], minlength=3) for part in range(5)])
    assert np.abs(counts / np.bincount(labels) - 0.2).max() < 0.02
    assert all(len(set(part_of_sample[group_of_sample == group])) == 1 for group in range(200))
    assert not np.array_equal(part_of_sample, partition.assign_parts(labels, group_of_sample, [0.2] * 5, 1))
    # Each part has a group, however small its share.
    assert set(partition.assign_parts(np.zeros(2, np.int64), np.array([0, 1]), [0.95, 0.05], 0)) == {0, 1}


def test_a_sample_without_a_group_is_alone() -> None:
    assert partition.number_groups(["a", None, "a", "", None]).tolist() == [0, 1, 0, 2, 3]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ("features: [x], groups: who, fold: 1/50", "data.groups has 12 groups"),
        ("features: [x], groups: whom", 'data.groups: .*has no column "whom"'),
        ("features: [x, who], groups: who", "data.groups: has 'who', which data.features has too"),
        ("features: [x], groups: who, validation: a.csv", "data.groups: is 'who', and data.validation is the path"),
    ],
)
def test_groups_that_cannot_be_kept(home: Path, data: str, part: str) -> None:
    with pytest.raises((DataError, SpecError), match=part):
        read(home, TABLE, "classification", "kind", data)


def test_folders_have_no_groups(home: Path) -> None:
    for row in range(8):
        (home / "f" / "ab"[row % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), row).save(home / "f" / "ab"[row % 2] / f"{row}.png")
    with pytest.raises(SpecError, check=saying("folder-class-folders")):
        read(home, IMAGES.replace("a.csv", "f"), "classification", "kind", "groups: who")


def test_a_class_that_only_validation_has_is_said(home: Path) -> None:
    lines = ["x,kind,who", *(f"{n},{'ab'[n % 2]},p{n % 4}" for n in range(40)), "7,rare,q", "8,rare,q"]
    (home / "rare.csv").write_text("\n".join(lines) + "\n")
    notes = [
        note
        for fold in range(1, 6)
        for note in read(
            home, TABLE.replace("a.csv", "rare.csv"), "classification", "kind", f"groups: who, fold: {fold}/5"
        ).notes
        if "without a training sample" in note
    ]
    assert len(notes) == 1
    assert ends_with(notes[0], "since-groups-validation-rare")


def test_a_validation_split_of_the_folder(tmp_path: Path) -> None:
    """A split that comes with the data may tear groups apart: it is never taken in silence."""
    folder = tmp_path / "parts"
    folder.mkdir()
    lines = [f"{n % 7}.5,{'ab'[n % 2]},p{n % 8}" for n in range(40)]
    for name, some in (("train", lines[:30]), ("val", lines[30:])):
        (folder / f"{name}.csv").write_text("\n".join(["x,kind,who", *some]) + "\n")
    text = TABLE.replace("a.csv", "parts")
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text, "classification", "kind", "groups: who")
    message = str(caught.value)
    assert "job.yaml:3:" in message
    assert says(message, "parts-split-validation", "data.groups", "who")
    assert "`fold: 1/5` or `validation: 0.2`" in message
    for data_keys in ("validation: 0.2", "fold: 1/4"):
        data = read(tmp_path, text, "classification", "kind", f"groups: who, {data_keys}")
        assert len(data.train) + len(data.validation) == 30
        assert any(note.startswith("groups of who: ") for note in data.notes)
