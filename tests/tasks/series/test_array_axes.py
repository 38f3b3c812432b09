"""Which axis of an array is time, and which one holds the channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from tests.messages import saying, says
from tests.tasks.series.series_rows import Rows, gather_windows, job


def waves(count: int = 40, length: int = 32, channels: int = 3) -> Rows:
    drawn = np.random.default_rng(0)
    fast = np.arange(count) % 2
    phase = drawn.uniform(0, 6, (count, 1, channels))
    x = np.sin((0.2 + 0.3 * fast)[:, None, None] * np.arange(length)[None, :, None] + phase)
    return {"x": (x + 0.1 * drawn.normal(size=x.shape)).astype(np.float32), "y": fast}


def test_channels_before_time(tmp_path: Path) -> None:
    rows = waves()
    np.savez(tmp_path / "ntc.npz", **rows)
    np.savez(tmp_path / "nct.npz", **rows | {"x": rows["x"].transpose(0, 2, 1)})
    plain, turned = load(job(tmp_path / "ntc.npz")), load(job(tmp_path / "nct.npz", axes="channels-time"))
    np.testing.assert_array_equal(gather_windows(plain.train), gather_windows(turned.train))
    assert turned.preprocessing == plain.preprocessing | {"axes": "channels-time"}
    assert says(turned.notes, "read-channels-time", "nct.npz", 32, 3)
    # New files are read in the order in which this one was.
    new = load_data.load_new([tmp_path / "nct.npz"], turned.preprocessing, turned.heads, labelled=True)
    assert gather_windows(new.split).shape == (40, 32, 3)
    with pytest.raises(DataError, match=r"windows of .* are 3 rows of 32 channels"):
        load_data.load_new([tmp_path / "nct.npz"], plain.preprocessing, plain.heads, labelled=True)


@pytest.mark.parametrize("shape", [(40, 6, 32), (40, 12, 12)])
def test_axes_are_named_unless_windows_have_more_rows_than_channels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=shape), y=np.arange(40) % 2)
    with pytest.raises(DataError, check=saying("windows-of-rows-or-of-channels", *shape[1:])) as error:
        load(job(tmp_path / "a.npz"))
    assert says(error.value.action, "set-data-axes-channels")
    for axes, expected in (("time-channels", shape[1:]), ("channels-time", shape[:0:-1])):
        assert gather_windows(load(job(tmp_path / "a.npz", axes=axes)).train).shape[1:] == expected


@pytest.mark.parametrize("shape", [(40, 1, 32), (40, 32, 1), (40, 32)])
def test_windows_of_one_channel_are_clear(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=shape), y=np.arange(40) % 2)
    assert gather_windows(load(job(tmp_path / "a.npz")).train).shape[1:] == (32, 1)
