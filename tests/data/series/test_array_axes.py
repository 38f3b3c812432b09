"""Which axis of an array is time, and which one holds the channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drivetrain.data import load_data
from drivetrain.data.series import series_data as series
from drivetrain.errors import DataError
from tests.data.series.series_rows import Rows, gather_windows, job


def waves(count: int = 40, length: int = 32, channels: int = 3) -> Rows:
    drawn = np.random.default_rng(0)
    fast = np.arange(count) % 2
    phase = drawn.uniform(0, 6, (count, 1, channels))
    x = np.sin((0.2 + 0.3 * fast)[:, None, None] * np.arange(length)[None, :, None] + phase)
    return {"x": (x + 0.1 * drawn.normal(size=x.shape)).astype(np.float32), "y": fast}


@pytest.mark.parametrize("axes", ["auto", "channels-time"])
def test_channels_before_time(tmp_path: Path, axes: str) -> None:
    rows = waves()
    np.savez(tmp_path / "ntc.npz", **rows)
    np.savez(tmp_path / "nct.npz", **rows | {"x": rows["x"].transpose(0, 2, 1)})
    plain, turned = series.load(job(tmp_path / "ntc.npz")), series.load(job(tmp_path / "nct.npz", axes=axes))
    np.testing.assert_array_equal(gather_windows(plain.train), gather_windows(turned.train))
    assert turned.preprocessing == plain.preprocessing | {"axes": "channels-time"}
    if axes == "auto":
        assert "nct.npz: `x` is read as (N, channels, T): windows of 32 rows of 3 channels" in turned.notes
    new = load_data.load_new([tmp_path / "nct.npz"], turned.preprocessing, turned.heads, labelled=True)
    assert gather_windows(new.split).shape == (40, 32, 3)
    with pytest.raises(DataError, match=r"windows of .* are 3 rows of 32 channels"):
        load_data.load_new([tmp_path / "nct.npz"], plain.preprocessing, plain.heads, labelled=True)


def test_axes_of_equal_length_are_told_by_their_content(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(16, 12, 12)).cumsum(axis=1)
    y = np.arange(16) % 2
    np.savez(tmp_path / "ntc.npz", x=x, y=y)
    np.savez(tmp_path / "nct.npz", x=x.transpose(0, 2, 1), y=y)
    plain, turned = series.load(job(tmp_path / "ntc.npz")), series.load(job(tmp_path / "nct.npz"))
    assert turned.preprocessing == plain.preprocessing | {"axes": "channels-time"}
    np.testing.assert_array_equal(gather_windows(turned.train), gather_windows(plain.train))


def test_more_channels_than_rows_are_doubted(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(16, 20, 12)).cumsum(axis=2)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(16) % 2)
    doubted = series.load(job(tmp_path / "a.npz"))
    (note,) = [note for note in doubted.notes if "more alike" in note]
    assert "windows of 20 rows of 12 channels" in note
    assert "data.axes: channels-time" in note
    # New files are read in the order in which this one was.
    new = load_data.load_new([tmp_path / "a.npz"], doubted.preprocessing, doubted.heads, labelled=True)
    assert gather_windows(new.split).shape[1:] == (20, 12)
    assert not [n for n in series.load(job(tmp_path / "a.npz", axes="time-channels")).notes if "more alike" in n]


def test_axes_that_cannot_be_told_apart_are_to_be_named(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6, 32))
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(40) % 2)
    with pytest.raises(
        DataError, match=r"windows of 6 rows of 32 channels, or of 32 rows of 6 channels(.|\n)*data.axes"
    ):
        series.load(job(tmp_path / "a.npz"))
    assert gather_windows(series.load(job(tmp_path / "a.npz", axes="time-channels")).train).shape[1:] == (6, 32)
    np.savez(tmp_path / "b.npz", x=x.cumsum(axis=1), y=np.arange(40) % 2)
    assert gather_windows(series.load(job(tmp_path / "b.npz")).train).shape[1:] == (6, 32)
