"""Manifests whose cells are no paths yet: what is tried, what is said, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from drivetrain.cli import main
from drivetrain.data.load_data import load
from tests.messages import omits, says
from tests.pictures import job, read_refusal

SPEC = """
name: t
task: image-classification
data: {train: m.csv, path_column: id, label_column: y}
model: small-cnn
train: {epochs: 1}
"""


def write(root: Path, files: str, cells: str, *other_files: str) -> Path:
    """Eight images, a manifest with a cell for each, and a job; `files` and `cells` have a place for the number."""
    for number in range(8):
        for form in (files, *other_files):
            path = root / form.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (16, 16), 9 * number).save(path)
    rows = [f"{cells.format(number)},{'ab'[number % 2]}" for number in range(8)]
    (root / "m.csv").write_text("\n".join(["id,y", *rows]) + "\n")
    (root / "job.yaml").write_text(SPEC)
    return root / "m.csv"


FORMS = {
    "no extension": ("pics/img{}.jpg", "pics/img{}"),
    "extension in capitals": ("img{}.PNG", "img{}"),
    "dots in names": ("pics/img.{}.png", "pics/img.{}"),
    "backslashes": ("pics/a/img{}.png", r"pics\a\img{}.png"),
    "backslashes, no extension": ("pics/a/img{}.png", r"pics\a\img{}"),
}
MOVED = {
    "names beside a folder": ("train_images/img{}.png", "img{}.png"),
    "a drive": ("pics/a/img{}.png", r"C:\Users\me\data\pics\a\img{}.png"),
}


@pytest.mark.parametrize("case", FORMS)
def test_cells_become_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    files, cells = FORMS[case]
    path = write(tmp_path, files, cells)
    data = load(job(path, path_column="id", label_column="y"))
    assert len(data.train) + len(data.validation) == 8
    note = f'column "id" has {cells.format(0)}, which is read as {files.format(0)}, and so for all rows'
    assert any(note in line for line in data.notes)
    assert says(note, "which-is-read-as")
    assert main.main(["validate", str(tmp_path / "job.yaml")]) == 0
    assert note in capsys.readouterr().out


def test_paths_that_are_right_stay(tmp_path: Path) -> None:
    path = write(tmp_path, "pics/{}.png", "pics/{}.png", "other/pics/{}.png")
    assert omits(load(job(path, path_column="id", label_column="y")).notes, "which-is-read-as")


@pytest.mark.parametrize("case", MOVED)
def test_moved_files_are_not_searched(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, *MOVED[case])
    assert says(read_refusal(job(path, path_column="id", label_column="y")), "of-samples-cannot-be-used-2", 8, 8)


def test_validate_looks_for_the_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "pics/{}.png", "lost/image{}.gif")
    assert main.main(["validate", str(tmp_path / "job.yaml")]) == 3
    error_text = capsys.readouterr().err
    assert says(error_text, "of-samples-cannot-be-used-2", 8, 8)
    assert says(error_text, "row-line-is-not-there", "m.csv", 1, 2, "lost/image0.gif")
