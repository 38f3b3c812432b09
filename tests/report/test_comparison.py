"""Comparing runs: only what differs, in the terminal and on a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drivetrain.cli.main import main
from drivetrain.report.comparison import list_differences
from drivetrain.tracking.run_description import flatten
from tests.messages import says
from tests.report_folder import change_json, make_run, write_rows
from tests.report_page import read_page


@pytest.fixture(scope="module")
def stored_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "digits-001").parent


@pytest.fixture
def runs(stored_runs: Path, tmp_path: Path) -> list[Path]:
    """Two runs: the second with another rate, one thread, a better result."""
    folder = tmp_path / "runs"
    shutil.copytree(stored_runs, folder)
    second_run = Path(shutil.copytree(folder / "digits-001", folder / "digits-002"))
    spec = second_run / "job.yaml"
    spec.write_text(spec.read_text().replace("lr: 0.003", "lr: 0.01"))
    change_json(second_run / "result.json", lambda r: r["best"].update(value=0.9917))
    change_json(
        second_run / "plan.json", lambda p: [d.update(value=4) for d in p["decisions"] if d["name"] == "cpu_threads"]
    )
    return [folder / "digits-001", second_run]


def compare(runs: list[Path], *options: str) -> int:
    return main(["compare", *map(str, runs), *options])


def test_the_terminal_shows_what_differs_and_nothing_else(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(runs) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["train.optimizer.lr", "0.003", "0.01"] in lines
    assert ["cpu_threads", "1", "4"] in lines
    assert ["best", "validation/accuracy", "0.9861", "0.9917"] in lines
    assert says(" ".join(" ".join(line) for line in lines), "machines-differences-between-runs", 2)
    assert not any(line[:1] in (["train.epochs"], ["denormals"]) for line in lines)
    assert lines[-1][0] == "comparison:"


def test_the_page(runs: list[Path]) -> None:
    assert compare(runs) == 0
    folder = runs[0].parent / "compare-digits-001-digits-002"
    (folder / "compare.html").rename(folder / "report.html")
    page = read_page(folder)
    assert page.open == []
    assert all(load.startswith(("#", "url(#")) for load in page.loads)
    assert "best validation/accuracy of 2 runs: digits-002" in page.text
    assert "validation/accuracy" in page.text
    assert "train.optimizer.lr 0.003 0.01" in page.text
    assert [file.name for file in folder.iterdir()] == ["report.html"]


def test_runs_of_the_same_name_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    other_run = Path(shutil.copytree(runs[1], tmp_path / "other" / "digits-001"))
    assert compare([runs[0], other_run]) == 0
    page = (runs[0].parent / "compare-digits-001-digits-001" / "compare.html").read_text(encoding="utf-8")
    assert all(f"<th>{run}</th>" in page for run in (runs[0], other_run))


def test_runs_with_different_best_metrics(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    change_json(runs[1] / "result.json", lambda r: r["best"].update(metric="validation/f1", value=0.96))
    assert compare(runs) == 0
    text = next(runs[0].parent.glob("compare-*/compare.html")).read_text(encoding="utf-8")
    assert says(text, "comparable-runs-different-main")
    assert ["best", "validation/f1", "-", "0.96"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_weights_that_a_loss_chose_are_compared_by_a_score(runs: list[Path]) -> None:
    change_json(runs[1] / "result.json", lambda r: r["best"].update(metric="validation/loss", value=0.06))
    assert compare(runs) == 0
    text = next(runs[0].parent.glob("compare-*/compare.html")).read_text(encoding="utf-8")
    assert "<h1>98.6 %</h1>\n<p>best validation/accuracy of 2 runs" in text


def test_a_run_without_anything_but_its_log(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("result.json", "plan.json", "hardware.json", "telemetry.jsonl", "job.yaml"):
        (runs[1] / name).unlink()
    write_rows(runs[1] / "metrics.jsonl", [{"step": 1, "epoch": 0, "train/loss": 1.0}])
    assert compare(runs) == 0
    assert "train.optimizer.lr " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "message"), [(1, "1 run\n  possible: 2 to 8 runs"), (9, "9 runs\n  possible: 2 to 8")]
)
def test_too_few_or_too_many(runs: list[Path], count: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([runs[0]] * count) == 2
    assert message in capsys.readouterr().err


def test_no_run(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([runs[0], tmp_path / "nowhere"]) == 4
    assert says(capsys.readouterr().err, "nowhere-there-is-no-such-folder")


def test_differences_and_flat() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "d": [1]}
    assert list_differences([{"a": 1, "b": 2}, {"a": 1, "c": 3}]) == [("b", "2", "-"), ("c", "-", "3")]
