"""Sample data: the same for the same seed, learnable by the pattern and not by a trick, the input of every example job."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.job_spec import load_job as job_spec
from jobs.samples import patterns, write
from tests import examples
from tests.paths import ROOT


def digests(paths: list[Path]) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


@pytest.mark.parametrize("kind", write.SIZES)
def test_the_seed_decides_every_byte(kind: str, tmp_path: Path) -> None:
    first, same_seed, other_seed = (
        write.write(kind, tmp_path / name, 60, seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert digests(first) == digests(same_seed)
    assert [p.relative_to(tmp_path / "a") for p in first] == [p.relative_to(tmp_path / "b") for p in same_seed]
    assert not set(digests(first)) & set(digests(other_seed))
    assert sorted(first) == sorted(p for p in (tmp_path / "a").rglob("*") if p.is_file())


def test_images_have_mixed_sizes_and_one_folder_per_class(tmp_path: Path) -> None:
    paths = write.write("patterns", tmp_path / "x", 45, 0)
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == sorted(patterns.PATTERNS)
    counts = [len(list(folder.iterdir())) for folder in (tmp_path / "x").iterdir()]
    assert max(counts) - min(counts) <= 1
    sizes, kinds = [], set()
    for path in paths:
        with Image.open(path) as image:
            sizes.append(image.size)
            kinds.add(image.format)
    assert len(set(sizes)) > 40
    low, high = patterns.SIDE_RANGE
    assert all(low <= side <= high for size in sizes for side in size)
    assert any(w > 1.2 * h for w, h in sizes)
    assert any(h > 1.2 * w for w, h in sizes)
    assert kinds == {"JPEG"}


def test_larger_samples_starts_with_the_same_images(tmp_path: Path) -> None:
    few, many = (write.write("patterns", tmp_path / str(size), size, 7) for size in (20, 30))
    assert digests(few) == digests(many[:20])


def test_no_colour_and_no_brightness_tells_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearest class mean of colour, brightness and contrast: far from what a network reaches."""
    monkeypatch.setattr(patterns, "SIDE_RANGE", (100, 160))
    names = list(patterns.PATTERNS)
    rows, labels = [], []
    for number in range(240):
        name = names[number % 6]
        image = patterns.draw_texture(name, np.random.default_rng([number])).astype(np.float64)
        rows.append([*image.mean((0, 1)), *image.std((0, 1))])
        labels.append(number % 6)
    x, y = np.array(rows), np.array(labels)
    x = (x - x.mean(0)) / x.std(0)
    means = np.stack([x[:120][y[:120] == k].mean(0) for k in range(6)])
    guess = ((x[120:, None] - means) ** 2).sum(2).argmin(1)
    assert (guess == y[120:]).mean() < 0.45


@pytest.mark.parametrize("job", examples.NAMES)
def test_the_data_of_every_example_job_can_be_made(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the comment of the job says, smaller; the job's data then loads without a network."""
    # A checkout may have the data already.
    ignored = shutil.ignore_patterns("__pycache__", *write.SIZES)
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=ignored)
    monkeypatch.setattr(write, "DATA", tmp_path / "jobs" / "data")
    path = tmp_path / "jobs" / f"{job}.yaml"
    if job in write.SIZES:
        assert f"\n# Make the data first: make samples ARGS={job}\n" in path.read_text(encoding="utf-8")
        with pytest.raises(DataError, match=f"make samples ARGS={job}"):
            job_spec.load(path)
        monkeypatch.setattr(sys, "argv", ["write", job, "--size", "3000" if job == "series" else "120"])
        write.main()
    dataset = load(job_spec.load(path))
    assert len(dataset.train) > len(dataset.validation) > 0


def test_no_torch_is_needed() -> None:
    code = (
        "import sys; from jobs.samples import patterns, reports, series, table, write; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("arguments", [["photos"], ["patterns", "--size", "3"]])
def test_what_is_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["write", *arguments])
    with pytest.raises(SystemExit, match="2"):
        write.main()


def test_data_that_are_there_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(write, "DATA", tmp_path)
    monkeypatch.setattr(sys, "argv", ["write", "--size", "20"])
    (tmp_path / "table").mkdir()
    write.main()
    assert not list((tmp_path / "table").iterdir())
    assert f"{tmp_path / 'patterns'}: 20 files, " in capsys.readouterr().out
