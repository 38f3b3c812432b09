"""Sample data: the same for the same seed, learnable by the pattern and not by a trick, the input of every example job."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drivetrain.cli import main
from drivetrain.data.sample_data import images
from drivetrain.data.sample_data import write as sample_data
from drivetrain.job_spec import load_job as job_spec
from tests import examples
from tests.paths import ROOT


def digests(paths: list[Path]) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


@pytest.mark.parametrize("kind", sample_data.KINDS)
def test_the_seed_decides_every_byte(kind: str, tmp_path: Path) -> None:
    first, same_seed, other_seed = (
        sample_data.write(kind, tmp_path / name, 60, seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert digests(first) == digests(same_seed)
    assert [p.relative_to(tmp_path / "a") for p in first] == [p.relative_to(tmp_path / "b") for p in same_seed]
    assert not set(digests(first)) & set(digests(other_seed))
    assert sorted(first) == sorted(p for p in (tmp_path / "a").rglob("*") if p.is_file())


def test_images_have_mixed_sizes_and_one_folder_per_class(tmp_path: Path) -> None:
    paths = sample_data.write("images", tmp_path / "x", 45, 0)
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == sorted(images.PATTERNS)
    counts = [len(list(folder.iterdir())) for folder in (tmp_path / "x").iterdir()]
    assert max(counts) - min(counts) <= 1
    sizes, kinds = [], set()
    for path in paths:
        with Image.open(path) as image:
            sizes.append(image.size)
            kinds.add(image.format)
    assert len(set(sizes)) > 40
    low, high = images.SIDE_RANGE
    assert all(low <= side <= high for size in sizes for side in size)
    assert any(w > 1.2 * h for w, h in sizes)
    assert any(h > 1.2 * w for w, h in sizes)
    assert kinds == {"JPEG"}


def test_larger_sample_data_starts_with_the_same_images(tmp_path: Path) -> None:
    few, many = (sample_data.write("images", tmp_path / str(size), size, 7) for size in (20, 30))
    assert digests(few) == digests(many[:20])


def test_no_colour_and_no_brightness_tells_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearest class mean of colour, brightness and contrast: far from what a network reaches."""
    monkeypatch.setattr(images, "SIDE_RANGE", (100, 160))
    names = list(images.PATTERNS)
    rows, labels = [], []
    for number in range(240):
        name = names[number % 6]
        image = images.draw_texture(name, np.random.default_rng([number])).astype(np.float64)
        rows.append([*image.mean((0, 1)), *image.std((0, 1))])
        labels.append(number % 6)
    x, y = np.array(rows), np.array(labels)
    x = (x - x.mean(0)) / x.std(0)
    means = np.stack([x[:120][y[:120] == k].mean(0) for k in range(6)])
    guess = ((x[120:, None] - means) ** 2).sum(2).argmin(1)
    assert (guess == y[120:]).mean() < 0.45


@pytest.mark.parametrize("job", examples.NAMES)
def test_the_data_of_every_example_job_can_be_made(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that its error names, smaller; then the job's data loads without a network."""
    from drivetrain.data.load_data import load

    monkeypatch.chdir(tmp_path)
    text = (ROOT / "jobs" / f"{job}.yaml").read_text(encoding="utf-8")
    recipe = next(filter(None, map(sample_data.command, re.findall(r"(?:train|tables?|text): (data/\S+)", text))), None)
    if recipe:
        arguments = recipe.split()
        assert arguments[:2] == ["drivetrain", "sample"]
        size = arguments.index("--size") + 1
        arguments[size] = str(min(int(arguments[size]), {"series": 3000, "images": 60}.get(arguments[2], 300)))
        assert main.main(arguments[1:]) == 0
    dataset = load(job_spec.load(ROOT / "jobs" / f"{job}.yaml"))
    assert len(dataset.train) > len(dataset.validation) > 0


def test_no_torch_is_needed() -> None:
    code = "import sys; from drivetrain.data.sample_data import write as samples; from drivetrain.data.sample_data import images; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("before", "size", "code", "parts"),
    [
        ("a file in it", 40, 2, ["is not empty", "a new or empty folder"]),
        ("a file", 40, 2, ["is a file", "a new or empty folder"]),
        ("nothing", 3, 2, ["--size 3", "20 samples or more"]),
    ],
)
def test_what_is_refused(
    before: str, size: int, code: int, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    if before == "a file":
        folder.touch()
    elif before == "a file in it":
        folder.mkdir()
        (folder / "mine.txt").touch()
    assert main.main(["sample", "images", str(folder), "--size", str(size)]) == code
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["sample", "table", "/proc/none", "--size", "40"]) == 7
    assert "/proc/none" in capsys.readouterr().err


def test_an_empty_folder_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["sample", "images", str(tmp_path), "--size", "20"]) == 0
    assert f"{tmp_path}: 20 files, " in capsys.readouterr().out
