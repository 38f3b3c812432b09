"""Augmentation that may contradict the labels: not drafted, and named where a job asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.data.load_data import load
from drivetrain.job_spec import load_job as job_spec
from drivetrain.tasks.image import mirroring
from tests import pictures
from tests.cli.drafted_jobs import draft_job, read_data_settings, write_images
from tests.messages import says

CHANGED = (
    "left right",
    "turn_left straight turnRight",
    "Izquierda Derecha",
    "links rechts",
    "vänster höger",
    "левый правый",
    "左 右",
    "बाएं दाएं",
    "hand_L hand_R",
    "OD OS",
    "east west",
    "clockwise other",
    "arrow_up arrow_down",
    "← →",
    "0 1 2",
    "digit_0 digit_1",
    "siete ocho",
    "b d p q",
    "A B space",
)
UNCHANGED = (
    "cat dog",
    "right wrong",
    "golf_links tennis",
    "leftover fresh",
    "cleft normal",
    "bright dark",
    "class_0 class_1",
    "up down",
    "sol luna",
    "x cat",
)


@pytest.mark.parametrize("names", [*CHANGED, *UNCHANGED])
def test_names_of_classes(names: str) -> None:
    assert bool(mirroring.find_mirrored(names.split())) == (names in CHANGED)


@pytest.mark.parametrize(
    ("classes", "flips"), [(("left", "right"), False), (("cat", "dog"), True), (("1", "7"), False)]
)
def test_a_draft_flips_only_what_stays_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: tuple[str, str], flips: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images("photos", dict.fromkeys(classes, 6), size=(48, 48))
    rows = [f"photos/{name}/{path.name},{name}" for name in classes for path in Path("photos", name).iterdir()]
    Path("list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    for source in ("photos", "list.csv"):
        augment = read_data_settings(draft_job(source))["augment"]
        assert augment == ({"flip": True} if flips else {}) | {"crop_padding": 4}


@pytest.mark.parametrize("classes", ["left right", "cat dog"])
@pytest.mark.parametrize("augment", ["", ", augment: {flip: true}", ", augment: {crop_padding: 4}"])
@pytest.mark.parametrize("task", ["image-classification", "image-regression"])
def test_a_job_that_asks_for_it_is_told(tmp_path: Path, task: str, augment: str, classes: str) -> None:
    first, second = classes.split()
    pictures.write_folder(tmp_path / "photos", **{first: 6, second: 6})
    rows = [f"photos/{name}/{i:02}.png,{name},{i}" for name in (first, second) for i in range(6)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,x", *rows]) + "\n")
    column = ", label_column: x" if task == "image-regression" else ""
    (tmp_path / "job.yaml").write_text(f"name: t\ntask: {task}\ndata: {{train: list.csv{column}{augment}}}\n")
    text = "\n".join(load(job_spec.load(tmp_path / "job.yaml")).notes)
    if task == "image-regression":
        assert not augment or says(text, "images-mirrored-moved-stays", "x")
    elif "flip" in augment and first == "left":
        assert says(text, "flip-mirrored-keep-label", "left, right")
    else:
        assert "data.augment" not in text
