"""Windows that share rows, or belong to one recording or group, are on one side of the split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from tests.messages import begins_with, says
from tests.tasks.series.series_rows import Rows, job, list_window_ends, three_series, undo_scaling, write_rows


def recordings(count: int = 12, rows: int = 40, length: int = 16, stride: int = 4) -> Rows:
    """Overlapping windows of several recordings, whose class says nothing about their values."""
    generator = np.random.default_rng(0)
    walks = generator.normal(size=(count, rows, 3)).cumsum(axis=1).astype(np.float32)
    starts = range(0, rows - length + 1, stride)
    windows = [walk[start : start + length] for walk in walks for start in starts]
    subject = np.repeat(np.arange(count), len(starts))
    return {"x": np.stack(windows), "y": subject % 2, "subject": subject}


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("data", [{}, {"groups": "subject"}, {"fold": "2/3"}], ids=["overlap", "groups", "fold"])
def test_overlapping_windows_are_on_one_side(tmp_path: Path, data: dict[str, Any], shuffled: bool) -> None:
    rows = recordings()
    order = np.random.default_rng(1).permutation(len(rows["y"])) if shuffled else np.arange(len(rows["y"]))
    np.savez(tmp_path / "a.npz", **{name: values[order] for name, values in rows.items()})
    dataset = load(job(tmp_path / "a.npz", **data))
    sides = [set(rows["subject"][order][np.asarray(part.numbers)]) for part in (dataset.train, dataset.validation)]  # type: ignore[attr-defined]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 12
    column = data.get("groups", "overlapping windows")
    assert says([note for note in dataset.notes if f"groups of {column}: " in note], "none-both-sides")


def test_windows_that_do_not_overlap_are_split_at_random(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 8, 2))
    x[:, 3:] = 0  # silence in each window is no common row
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(60) % 2)
    assert not [note for note in load(job(tmp_path / "a.npz")).notes if "groups" in note]


def test_a_single_recording_is_refused_and_groups_have_the_length_of_x(tmp_path: Path) -> None:
    rows = recordings(count=1, rows=200)
    rows["y"] = np.arange(len(rows["x"])) % 2
    np.savez(tmp_path / "a.npz", **rows)
    with pytest.raises(DataError, match=r"all 47 windows of .* overlap(.|\n)*set data.validation to a file"):
        load(job(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", **rows | {"subject": [1, 2]})
    with pytest.raises(DataError, match=r"`subject` of .* has shape .2,., and `x` has 47 windows"):
        load(job(tmp_path / "b.npz", groups="subject"))
    with pytest.raises(DataError, match=r"save who too"):
        load(job(tmp_path / "b.npz", groups="who"))


@pytest.mark.parametrize("column", ["machine", "day"])
def test_a_long_table_is_split_by_groups(tmp_path: Path, column: str) -> None:
    rows = three_series() | {"day": np.repeat(np.arange(6), 30).astype(str)}
    data = load(job(write_rows(tmp_path, rows), group="machine", groups=column, features=["a"], stride=2, window=4))
    sides = [{str(rows[column][end]) for end in list_window_ends(part)} for part in (data.train, data.validation)]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]
    for part in (data.train, data.validation):
        for window, end in zip(
            undo_scaling(data, part)[:, :, 0].round().astype(int), list_window_ends(part), strict=True
        ):
            assert {str(rows[column][row]) for row in window} == {str(rows[column][end])}


def test_windows_of_two_files_that_share_rows_are_said(tmp_path: Path) -> None:
    recordings = np.random.default_rng(0).normal(size=(6, 100, 3)).cumsum(axis=1)
    x = np.stack([one[start : start + 20] for one in recordings for start in range(0, 80, 10)])
    y = np.repeat(np.arange(6) % 2, 8)
    np.savez(tmp_path / "even.npz", x=x[::2], y=y[::2])
    np.savez(tmp_path / "odd.npz", x=x[1::2], y=y[1::2])
    np.savez(tmp_path / "new.npz", x=x[1::2] + 1, y=y[1::2])
    notes = load(job(tmp_path / "even.npz", validation=str(tmp_path / "odd.npz"))).notes
    assert begins_with(notes, "validation-windows-share-rows", 24, 24)
    notes = load(job(tmp_path / "even.npz", validation=str(tmp_path / "new.npz"))).notes
    assert not [note for note in notes if "share rows" in note]
