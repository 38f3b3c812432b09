"""The comparison of quality: what its rows are made of, and what its table says."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from benchmarks import quality
from benchmarks.contest import quality_data
from drivetrain.data.load_data import load
from drivetrain.job_spec import load_job as job_spec

ROOT = Path(__file__).resolve().parents[2]

PACKAGE = """Package: {name}
Source: {source} (1.0)
Tag: devel::library, implemented-in::c,
 {roles}
Description: {text}
 A longer text that is no part of the row.
Section: {section}
"""


def listed(*packages: tuple[str, str, str, str, str]) -> str:
    names = "name", "source", "roles", "text", "section"
    return "\n".join(PACKAGE.format(**dict(zip(names, package, strict=True))) for package in packages)


def test_texts_are_one_package_of_each_source_with_one_role() -> None:
    found = quality_data.texts(
        listed(
            ("liba1", "a", "role::shared-lib", "Reads A files", "libs"),
            ("liba-dev", "a", "role::devel-lib", "Reads A files - headers", "libs"),
            ("b", "b", "role::program, role::plugin", "Two roles", "libs"),
            ("c", "c", "role::program", "Draws: circles", "graphics"),
            ("c2", "d", "role::program", "DRAWS: circles", "graphics"),
        ),
        fewest=1,
    )
    assert len(found) == 2
    assert ("Reads A files", "libs", "shared-lib") in found or ("Reads A files - headers", "libs", "devel-lib") in found
    assert found[1] == ("DRAWS: circles", "graphics", "program")


def test_rare_classes_are_left_out() -> None:
    many = [(f"p{i}", f"p{i}", "role::program", f"Does {i}", "utils") for i in range(3)]
    found = quality_data.texts(listed(*many, ("q", "q", "role::program", "Rare", "news")), fewest=2)
    assert {row[1] for row in found} == {"utils"}
    assert len(found) == 3


def test_without_tagged_packages_there_is_no_row() -> None:
    with pytest.raises(SystemExit, match="apt-get update"):
        quality_data.texts("Package: a\nDescription: no tags\nSection: utils\n")


def test_a_seed_divides_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"text {number}", "utils", "program") for number in range(50)]
    monkeypatch.setattr(quality_data, "packages", str)
    monkeypatch.setattr(quality_data, "texts", lambda _: rows[:])
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        quality_data.write("texts", seed, tmp_path / name)
    read = {
        (name, part): [*csv.reader((tmp_path / name / f"{part}.csv").read_text().splitlines())][1:]
        for name in ("one", "again", "other")
        for part in quality_data.PARTS
    }
    assert [len(read["one", part]) for part in quality_data.PARTS] == [35, 5, 10]
    assert sorted(tuple(row) for part in quality_data.PARTS for row in read["one", part]) == sorted(rows)
    assert read["one", "test"] == read["again", "test"] != read["other", "test"]


@pytest.mark.parametrize("row", quality_data.ARRAYS)
def test_the_files_of_arrays_are_read_by_ours_and_divide_all_digits(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-learn is in the peers' environment alone; its digits are those of the example job."""
    with numpy.load(ROOT / "jobs/data/digits.npz") as digits:
        images, labels = digits.values()
    bunch = SimpleNamespace(images=images / images.max() * 16, target=labels)
    monkeypatch.setitem(sys.modules, "sklearn", SimpleNamespace(datasets=SimpleNamespace(load_digits=lambda: bunch)))
    quality_data.write(row, 0, tmp_path)
    (tmp_path / "job.yaml").write_text(
        quality.SPECS[row].format(seed=0, epochs=1, batch=32, rate=1e-3, width=8), encoding="utf-8"
    )
    data = load(job_spec.load(tmp_path / "job.yaml"))
    assert [len(split) for split in (data.train, data.validation)] == [1258, 180]


def test_differences_are_of_the_seeds_that_both_have() -> None:
    """A contender with an easier seed is not better for it."""
    scores = {
        quality.OURS: {"0": {"accuracy": 0.5}, "1": {"accuracy": 0.7}},
        "trees": {"0": {"accuracy": 0.6}, "2": {"accuracy": 0.9}},
        "linear": {},
    }
    lines = quality.table(scores).splitlines()
    assert lines[2] == "| ours | 2 | 0.600 ± 0.141 |  |"
    assert lines[3] == "| trees | 2 | 0.750 ± 0.212 | +0.100 ± 0.000 |"
    assert len(lines) == 4


def test_without_the_peers_the_command_that_installs_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["quality.py", "wine", "--seeds", "1", "--peers", str(tmp_path / "none"), "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="make peers"):
        quality.main()
