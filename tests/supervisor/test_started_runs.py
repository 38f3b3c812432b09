"""The runs of a container are read from a file, and only names of run folders count."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.supervisor import started_runs
from drivetrain.supervisor.started_runs import StartedRuns


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartedRuns:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    started = StartedRuns(tmp_path)
    for name, value in started.variables().items():
        monkeypatch.setenv(name, value)
    return started


def test_each_announced_run_is_read_once(runs: StartedRuns, tmp_path: Path) -> None:
    assert list(runs.read_new()) == []
    started_runs.announce(Path("runs/digits-001"))
    assert list(runs.read_new()) == [tmp_path / "runs/digits-001"]
    started_runs.announce(Path("runs/digits-sweep-001/trial0-001"))
    started_runs.announce(Path("/elsewhere/digits-001"))
    assert list(runs.read_new()) == [tmp_path / "runs/digits-sweep-001/trial0-001"]
    runs.remove()
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["../other", "..", "digits-001/..", "a/b/c", "/etc", "digits 001", ".hidden", "digits-001\x1b[2J", ""],
    ids=["above", "parent", "back", "deep", "absolute", "space", "hidden", "escape", "empty"],
)
def test_what_names_no_run_folder_is_left_out(runs: StartedRuns, tmp_path: Path, name: str) -> None:
    (tmp_path / "runs" / runs.name).write_text(f"{name}\ndigits-002\n")
    assert list(runs.read_new()) == [tmp_path / "runs/digits-002"]


def test_a_run_folder_with_links_is_left_out(runs: StartedRuns, tmp_path: Path) -> None:
    outside = tmp_path / "home"
    outside.mkdir()
    (tmp_path / "runs" / "linked-001").symlink_to(outside)
    (tmp_path / "runs" / "linking-001").mkdir()
    (tmp_path / "runs" / "linking-001" / "report.html").symlink_to(outside / "key")
    (tmp_path / "runs" / runs.name).write_text("linked-001\nlinking-001\n")
    assert list(runs.read_new()) == []


def test_a_link_in_place_of_the_list_is_not_read(runs: StartedRuns, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("digits-001\n")
    (tmp_path / "runs" / runs.name).symlink_to(tmp_path / "list")
    assert list(runs.read_new()) == []
