"""Images of one source are on one side of the split: copies of exporters, frames, folders; unrelated photos are not held together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from drivetrain.data.dataset import Dataset, InputRecord
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.job_spec import load_job as job_spec
from drivetrain.tasks.image import near_copies
from drivetrain.tasks.image.held_out import SOURCES_KEY
from tests.axes import each_once
from tests.cli.drafted_jobs import draft_job, read_data_settings
from tests.messages import says

HASH = "216363698b529b4a97b750923ceb3ffd"
UUID = "0a1b2c3d-1111-2222-3333-0123456789ab"
SOURCES, EACH = 9, 3

NAMES: dict[str, tuple[str, str]] = {
    "Roboflow": ("{c}/IMG_{s:04}_jpg.rf.{i}" + HASH[1:], "always"),
    "Augmentor": ("{c}/{c}_original_{s}.jpg_{i}" + UUID[1:], "always"),
    "Keras": ("{c}/aug_{s}_{i}77", "always"),
    "augmented, with a number": ("{c}/leaf{s}_aug_{i}", "always"),
    "changes in words": ("{c}/IMG_{s:04}{change}", "always"),
    "degrees": ("{c}/leaf{s}{degrees}", "always"),
    "views": ("{c}/{s:03}{view}", "always"),
    "tiles": ("{c}/slide{s}_tile_{i}", "always"),
    "frames": ("{c}/walk {name}_frame_{i:03}", "always"),
    "exported frames": ("{c}/{name}_frame_{i}_jpg.rf.{i}" + HASH[1:], "always"),
    "people": ("{c}/person{s}-{i}", "always"),
    "folders of patients": ("{c}/patient_{s}/{i}", "always"),
    "beginnings": ("{c}/{name}_{i:03}", "alike"),
    "numbers of numbers": ("{c}/{s:05}_{i:03}", "alike"),
    "folders of anything": ("{c}/{name}/{i}", "alike"),
    "a camera": ("{c}/IMG_{n:04}", "never"),
    "two cameras": ("{c}/{camera}_{n:04}", "never"),
    "numbers": ("{c}/{n:04}", "never"),
    "the class and a number": ("{c}/{c}_{n:04}", "never"),
    "a class of ImageNet": ("{c}/n0208407{c}_{n}", "never"),
    "times": ("{c}/IMG_2024010{s}_12{i:02}00", "never"),
    "a word of a change in every name": ("{c}/leaf_rot_{n:03}", "never"),
    "a digest of each": ("{c}/img_{n:032x}", "never"),
    "frames of nothing": ("{c}/frame_{n:04}", "never"),
    "a batch from Windows": ("{c}/photo ({n})", "never"),
}
"""How files are called, and when images of a source are recognized: always, if they look alike, or never."""


def list_paths(pattern: str) -> list[tuple[str, int]]:
    """Paths of SOURCES sources in classes a, b and c, and the number of each one's source."""
    rows = []
    for source in range(SOURCES):
        for i in range(EACH):
            number = EACH * source + i
            fields: dict[str, Any] = {"c": "abc"[source % 3], "s": source, "i": i, "n": number}
            fields |= {"name": ["anna", "otto", "lara", "ivan", "rosa", "juan", "mila", "theo", "nora"][source]}
            fields |= {"change": ["", "_flip", "-rot90"][i], "camera": ["IMG", "DSC"][number % 2]}
            fields |= {"degrees": ["", "_90deg", "_rotated_180deg"][i], "view": ["_left", "_right", "_front"][i]}
            rows.append((pattern.format(**fields) + ".png", source))
    return sorted(rows)


@pytest.mark.parametrize(("looks", "case"), each_once(["alike", "different"], NAMES))
def test_names(case: str, looks: str) -> None:
    pattern, when = NAMES[case]
    paths, numbers = zip(*list_paths(pattern), strict=True)

    def measure_distances(first: Any, second: Any) -> Any:
        is_same = np.array(numbers)[first] == np.array(numbers)[second]
        return np.where(is_same & (looks == "alike"), 0.1, 1.0)

    strata = np.array(["abc".index(path[0]) for path in paths])
    sources = near_copies.find(paths, strata, measure_distances, in_classes=True, requested="")
    # Rows of a manifest that repeat all paths change nothing.
    twice = near_copies.find(
        paths * 2,
        np.tile(strata, 2),
        lambda first, second: measure_distances(first % len(paths), second % len(paths)),
        in_classes=True,
        requested="",
    )
    assert (twice and twice.names) == (sources and sources.names * 2)
    if when == "always" or when == looks:
        assert sources
        assert sources.count == SOURCES
        assert len(set(zip(sources.names, numbers, strict=True))) == SOURCES
    else:
        assert sources is None


@pytest.mark.parametrize("are_shared", [True, False])
@pytest.mark.parametrize("pattern", ["{c}/{n}_jpg.rf.{i}" + HASH[1:], "{c}/person{n}_{i}", "{c}/patient_{n}/{i}"])
def test_a_name_in_several_folders(pattern: str, *, are_shared: bool) -> None:
    """It is one source if its images look alike across folders; else each folder has numbered its own images."""
    rows = [(c, n, i) for c in "abc" for n in range(SOURCES) for i in range(EACH)]
    paths = [pattern.format(c=c, n=n, i=i) + ".png" for c, n, i in rows]
    owners = np.array([n if are_shared else 100 * "abc".index(c) + n for c, n, _ in rows])
    strata = np.array(["abc".index(c) for c, _, _ in rows])

    def measure_distances(first: Any, second: Any) -> Any:
        return np.where(owners[first] == owners[second], 0.1, 1.0)

    sources = near_copies.find(paths, strata, measure_distances, in_classes=True, requested="")
    assert sources
    assert len(set(zip(sources.names, owners.tolist(), strict=True))) == sources.count == len(set(owners.tolist()))


def write_sources(folder: Path, pattern: str, *, alike: bool = True) -> list[tuple[str, int]]:
    """Pictures whose images of a source differ a little, or as much as all others."""
    rng = np.random.default_rng(0)
    rows = list_paths(pattern)
    looks = rng.integers(0, 200, (SOURCES, 16, 16))
    for path, source in rows:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = looks[source] + rng.integers(0, 20, (16, 16)) if alike else rng.integers(0, 256, (16, 16))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / path)
    return rows


def read(folder: Path, data: str) -> Dataset:
    (folder / "job.yaml").write_text(f"name: t\ntask: image-classification\ndata: {{{data}}}\n")
    return load(job_spec.load(folder / "job.yaml"))


def is_divided_by_source(data: Dataset, rows: list[tuple[str, int]], folder: Path) -> bool:
    source_of = {str(folder / path): source for path, source in rows}
    sides = [{source_of[split.title(i)] for i in range(len(split))} for split in (data.train, data.validation)]
    return not sides[0] & sides[1]


@pytest.mark.parametrize("manifest", [False, True])
@pytest.mark.parametrize(
    ("case", "options", "divided", "note"),
    [
        ("Roboflow", "", True, "sources"),
        ("Roboflow", ", groups: off", False, ""),
        ("Roboflow", ", fold: 1/4", True, "sources"),
        ("Roboflow", ", fold: 1/10", False, "folds"),
        ("beginnings", "", True, "sources"),
        ("a camera", "", False, ""),
    ],
)
def test_a_split(tmp_path: Path, case: str, options: str, divided: bool, note: str, *, manifest: bool) -> None:
    photos = tmp_path / "photos"
    rows = write_sources(photos, NAMES[case][0])
    (photos / "list.csv").write_text("\n".join(["path,label", *(f"{path},{path[0]}" for path, _ in rows)]) + "\n")
    split = "" if "fold" in options else ", validation: 0.25"
    data = read(tmp_path, f"train: photos{'/list.csv' * manifest}{split}{options}")
    assert is_divided_by_source(data, rows, photos) == divided
    text = "\n".join(data.notes)
    if note == "sources":
        assert says(text, "images-are-of-sources", SOURCES * EACH, SOURCES)
    elif note == "folds":
        assert says(text, "too-few-keep-each")
    else:
        assert "sources" not in text


def test_a_resumed_run_keeps_its_split(tmp_path: Path) -> None:
    """With sources as it began, and one by one if it began so."""
    photos = tmp_path / "photos"
    rows = write_sources(photos, NAMES["Roboflow"][0])
    data = read(tmp_path, "train: photos, validation: 0.25")
    job = job_spec.load(tmp_path / "job.yaml")
    stored = json.loads(json.dumps(data.preprocessing))
    resumed = load(job, InputRecord(stored, data.heads))
    titles = [[part.validation.title(i) for i in range(len(part.validation))] for part in (data, resumed)]
    assert titles[0] == titles[1]
    assert stored.pop(SOURCES_KEY) == SOURCES
    assert not is_divided_by_source(load(job, InputRecord(stored, data.heads)), rows, photos)


def test_images_that_differ_are_no_sources(tmp_path: Path) -> None:
    write_sources(tmp_path / "photos", NAMES["beginnings"][0], alike=False)
    assert "sources" not in "\n".join(read(tmp_path, "train: photos, validation: 0.25").notes)


@pytest.mark.parametrize(("groups", "case"), [("folders", "folders of anything"), ("names", "beginnings")])
def test_groups_that_a_job_names(tmp_path: Path, groups: str, case: str) -> None:
    rows = write_sources(tmp_path / "photos", NAMES[case][0], alike=False)
    data = read(tmp_path, f"train: photos, validation: 0.25, groups: {groups}")
    assert is_divided_by_source(data, rows, tmp_path / "photos")


@pytest.mark.parametrize("groups", ["folders", "who"])
def test_groups_that_a_folder_does_not_have(tmp_path: Path, groups: str) -> None:
    write_sources(tmp_path / "photos", NAMES["beginnings"][0])
    with pytest.raises(DataError) as error:
        read(tmp_path, f"train: photos, validation: 0.25, groups: {groups}")
    if groups == "folders":
        assert says(str(error.value), "folders-classes-have-no-folders")
    else:
        assert says(str(error.value), "column-manifest-folder-classes")


def test_copies_of_a_source_in_two_folders(tmp_path: Path) -> None:
    """A data set that was divided after it was augmented."""
    for folder, kept in (("train", "012"), ("val", "2")):
        rows = write_sources(tmp_path / folder, NAMES["Roboflow"][0])
        for path, _ in rows:
            if path.partition(".rf.")[2][0] not in kept:
                (tmp_path / folder / path).unlink()
    notes = read(tmp_path, "train: train, validation: val").notes
    assert says(notes, "copies-sources-training-names", SOURCES, SOURCES)


def test_names_beside_the_images_of_a_table(tmp_path: Path) -> None:
    rows = write_sources(tmp_path, NAMES["Roboflow"][0])
    cells = [{"bytes": (tmp_path / path).read_bytes(), "path": Path(path).name} for path, _ in rows]
    table = pyarrow.table({"image": cells, "label": [path[0] for path, _ in rows]})
    parquet.write_table(table, tmp_path / "set.parquet")
    assert says(
        read(tmp_path, "train: set.parquet, validation: 0.25").notes, "images-are-of-sources", len(rows), SOURCES
    )


def test_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = write_sources(tmp_path / "photos", NAMES["Roboflow"][0])
    lines = [f"photos/{path},{path[0]},p{source}" for path, source in rows]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,patient_id", *lines]) + "\n")
    (tmp_path / "plain.csv").write_text("\n".join(["path,label", *(line.rpartition(",")[0] for line in lines)]) + "\n")
    assert read_data_settings(draft_job("list.csv"))["groups"] == "patient_id"
    for source in ("photos", "plain.csv"):
        assert "groups" not in read_data_settings(draft_job(source))
        assert says(Path(source).with_suffix(".yaml").read_text(), "sources-images-source-side", SOURCES)
