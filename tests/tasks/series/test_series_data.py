"""Series as a data set: windows, the split by time, filled cells, scale, arrays, and new windows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch

from drivetrain.data import load_data, mixup
from drivetrain.data.dataset import Batch
from drivetrain.data.load_data import load
from drivetrain.errors import DataError
from drivetrain.tasks.series import windows
from tests.messages import begins_with, ends_with, get_message, saying, says, says_only
from tests.tasks.series.series_rows import (
    gather_windows,
    job,
    list_window_ends,
    make_windows,
    one_series,
    three_series,
    undo_scaling,
    write_npz,
    write_rows,
)

torch.set_num_threads(1)


def test_windows_of_one_series(tmp_path: Path) -> None:
    rows = one_series()
    data = load(job(write_rows(tmp_path, rows)))
    # Validation is what comes at and after 75: rows 0 to 74 are for training.
    assert list_window_ends(data.train) == list(range(7, 75, 3))
    assert list_window_ends(data.validation) == list(range(82, 100, 3))
    values = np.stack([rows["a"], rows["b"]], axis=1)
    for split in (data.train, data.validation):
        expected = np.stack([values[end - 7 : end + 1] for end in list_window_ends(split)])
        np.testing.assert_allclose(undo_scaling(data, split), expected, atol=1e-5)
        assert [data.heads[""].classes[i] for i in split.targets[""]] == rows["y"][list_window_ends(split)].tolist()
    assert data.train.title(0) == "a.csv rows to 8"
    assert data.notes[:2] == ["23 training and 6 validation windows of 8 rows", "2 features: a, b"]


def test_mean_and_deviation_are_those_of_the_training_rows(tmp_path: Path) -> None:
    rows = one_series()
    data = load(job(write_rows(tmp_path, rows)))
    assert data.preprocessing["mean"] == pytest.approx([rows["a"][:75].mean(), rows["b"][:75].mean()])
    assert data.preprocessing["std"] == pytest.approx([rows["a"][:75].std(), rows["b"][:75].std()])
    rows["a"][75:] = 1e6
    assert load(job(write_rows(tmp_path, rows))).preprocessing == data.preprocessing


def test_no_window_reaches_into_another_series_or_across_the_split(tmp_path: Path) -> None:
    rows = three_series()
    data = load(job(write_rows(tmp_path, rows), group="machine", features=["a"]))
    moment = 45
    for split, early in ((data.train, True), (data.validation, False)):
        for window in undo_scaling(data, split)[:, :, 0].round().astype(int):
            # The value of a is the row of the file: every third row is of the same machine.
            assert (np.diff(window) == 3).all()
            assert (rows["t"][window] < moment).all() if early else (rows["t"][window] >= moment).all()
    assert (len(data.train), len(data.validation)) == (3 * 13, 3 * 3)
    assert says_only(data.notes, "rows-sorted-machine", "a.csv")


def test_rows_in_any_order(tmp_path: Path) -> None:
    rows = one_series()
    sorted_ = load(job(write_rows(tmp_path, rows)))
    order = np.random.default_rng(1).permutation(100)
    data = load(job(write_rows(tmp_path, {name: cells[order] for name, cells in rows.items()}, "b.csv")))
    np.testing.assert_allclose(gather_windows(data.train), gather_windows(sorted_.train), atol=1e-5)
    assert order[list_window_ends(data.train)].tolist() == list_window_ends(sorted_.train)
    assert says_only(data.notes, "rows-were-sorted-by-t", "b.csv")


@pytest.mark.parametrize("dates", [False, True])
def test_a_gap_ends_a_contiguous_stretch(tmp_path: Path, dates: bool) -> None:
    rows = one_series()
    rows["t"] = rows["t"] + 50 * (np.arange(100) >= 30)
    if dates:
        rows["t"] = np.datetime64("2024-05-31T08:30:00", "s") + rows["t"]
    data = load(job(write_rows(tmp_path, rows), max_gap=10))
    assert list_window_ends(data.train) == [*range(7, 30, 3), *range(37, 75, 3)]


def test_bad_cells_take_the_value_before(tmp_path: Path) -> None:
    rows = one_series()
    filled_values = rows["a"].copy()
    cells: list[float | None] = rows["a"].tolist()
    cells[20], cells[21], cells[40] = None, float("inf"), float("nan")
    rows["a"] = pyarrow.array(cells)
    data = load(job(write_rows(tmp_path, rows)))
    filled_values[20:22], filled_values[40] = filled_values[19], filled_values[39]
    expected = np.stack([filled_values[end - 7 : end + 1] for end in list_window_ends(data.train)])
    np.testing.assert_allclose(undo_scaling(data, data.train)[:, :, 0], expected, atol=1e-5)
    assert says_only(data.notes, "rows-empty-cells-filled", "data.train", 3, 100)
    assert "filled: a.csv row 21 (line 22): a is empty" in data.notes
    assert "filled: a.csv row 22 (line 23): a is `inf`" in data.notes


def test_five_filled_rows_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    rows = one_series()
    rows["a"] = pyarrow.array(rows["a"], mask=np.isin(np.arange(100), range(20, 27)))
    notes = load(job(write_rows(tmp_path, rows), bad_samples=0.1)).notes
    assert sum(note.startswith("filled: a.csv row ") for note in notes) == 5
    assert "filled: and 2 more" in notes


def test_cells_are_never_filled_from_another_series(tmp_path: Path) -> None:
    rows = three_series()
    rows["a"] = pyarrow.array(rows["a"], mask=(rows["machine"] == "m2") & (rows["t"] < 3))
    data = load(job(write_rows(tmp_path, rows), group="machine", features=["a"]))
    assert says_only(data.notes, "rows-before-first-value", "a.csv", 3)
    first = undo_scaling(data, data.train)[:, 0, 0].round().astype(int)
    assert next(row for row in first if row % 3 == 1) == 3 * 3 + 1


def test_windows_without_a_label_are_left_out(tmp_path: Path) -> None:
    rows = one_series()
    labels: list[str | None] = rows["y"].tolist()
    labels[10], labels[11] = None, None
    rows["y"] = pyarrow.array(labels)
    data = load(job(write_rows(tmp_path, rows)))
    assert 10 not in list_window_ends(data.train)
    assert says_only(data.notes, "left-window-ends-row", "a.csv", 11, 12)


def test_windows_share_the_memory_of_the_rows(tmp_path: Path) -> None:
    data = load(job(write_rows(tmp_path, one_series()), stride=1))
    assert len(data.train) == 68
    assert data.train.values.shape == (100, 2)  # type: ignore[attr-defined]
    assert data.train.values.data_ptr() == data.validation.values.data_ptr()  # type: ignore[attr-defined]


def naive(breaks: list[bool], length: int, stride: int) -> Iterator[int]:
    begins = [i for i, is_break in enumerate(breaks) if is_break] + [len(breaks)]
    for begin, end in pairwise(begins):
        yield from range(begin, end - length + 1, stride)


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (3, 1), (4, 2), (5, 7), (60, 1)])
def test_window_starts_match_a_plain_loop(length: int, stride: int) -> None:
    breaks = np.append(True, np.random.default_rng(length).random(199) < 0.05)
    assert windows.find_window_starts(breaks, length, stride).tolist() == list(naive(breaks.tolist(), length, stride))


def test_several_numbers_to_predict(tmp_path: Path) -> None:
    rows = one_series() | {"u": np.arange(100) * 1.0, "v": np.arange(100) ** 2.0}
    del rows["y"]
    data = load(job(write_rows(tmp_path, rows), "series-regression", label=["u", "v"]))
    assert data.preprocessing["features"] == ["a", "b"]
    head = data.heads[""]
    raw = data.validation.targets[""].double() * torch.tensor(head.std) + torch.tensor(head.mean)
    np.testing.assert_allclose(raw[:, 0], list_window_ends(data.validation), rtol=1e-4)
    assert head.mean[0] == pytest.approx(np.mean(list_window_ends(data.train)))


def test_arrays(tmp_path: Path) -> None:
    x, y = make_windows()
    x[5, 2, 1] = np.nan
    data = load(job(write_npz(tmp_path, x, y)))
    assert "left out: a.npz[5]: NaN or infinity" in data.notes
    places = [int(data.train.title(i)[6:-1]) for i in range(len(data.train))]
    np.testing.assert_allclose(undo_scaling(data, data.train), x[places], atol=1e-5)
    assert data.train.targets[""].tolist() == y[places].tolist()
    assert data.preprocessing["mean"] == pytest.approx(x[places].mean(axis=(0, 1)).tolist(), rel=1e-4)
    assert sorted(data.validation.targets[""].tolist()) == [0] * 2 + [1] * 2 + [2] * 2 + [3] * 2
    reloaded_data = load(job(tmp_path / "a.npz"))
    np.testing.assert_array_equal(reloaded_data.train.starts, data.train.starts)  # type: ignore[attr-defined]


def test_arrays_of_numbers(tmp_path: Path) -> None:
    x, _ = make_windows()
    y = np.stack([np.arange(40), np.arange(40) * -2.0], axis=1)
    data = load(job(write_npz(tmp_path, x[:, :, 0], y), "series-regression"))
    assert data.preprocessing["channels"] == 1
    assert data.heads[""].columns == ("y[0]", "y[1]")


@pytest.mark.parametrize("form", ["long", "arrays"])
def test_new_windows_are_prepared_as_validation_was(tmp_path: Path, form: str) -> None:
    if form == "long":
        data = load(job(write_rows(tmp_path, one_series())))
        new_path = write_rows(tmp_path, {name: cells[75:] for name, cells in one_series().items()}, "new.csv")
    else:
        x, y = make_windows()
        data = load(job(write_npz(tmp_path, x, y)))
        places = [int(data.validation.title(i)[6:-1]) for i in range(len(data.validation))]
        new_path = write_npz(tmp_path, x[places], y[places], "new.npz")
    preprocessing = json.loads(json.dumps(data.preprocessing))
    new = load_data.load_new([new_path, new_path], preprocessing, data.heads, labelled=True)
    count = len(data.validation)
    assert len(new.split) == 2 * count
    for half in (range(count), range(count, 2 * count)):
        assert torch.equal(new.split.gather(np.array(half))[0], data.validation.gather(np.arange(count))[0])
        assert torch.equal(new.split.targets[""][list(half)], data.validation.targets[""])
    assert new.split.title(count) == new.split.title(0)


def test_new_windows_need_no_label(tmp_path: Path) -> None:
    data = load(job(write_rows(tmp_path, one_series())))
    rows = one_series(20)
    del rows["y"]
    new = load_data.load_new([write_rows(tmp_path, rows, "new.csv")], data.preprocessing, data.heads, labelled=False)
    assert (len(new.split), new.split.targets) == (5, {})
    with pytest.raises(DataError, check=saying("network-trained-long-table")):
        load_data.load_new([write_npz(tmp_path, *make_windows())], data.preprocessing, data.heads, labelled=False)


@pytest.mark.parametrize("stride", [1, 3, 5, 12])
def test_the_last_row_of_each_series_is_predicted(tmp_path: Path, stride: int) -> None:
    """Of 100 rows the last ones got no prediction, without a word. `evaluate` keeps the windows of the training."""
    data = load(job(write_rows(tmp_path, three_series()), group="machine", features=["a"], stride=stride))
    lengths = {"m1": 20, "m2": 8, "m3": 7, "m4": 22}
    rows: dict[str, list[object]] = {"t": [], "machine": [], "a": [], "y": []}
    for machine, count in lengths.items():
        rows["t"] += range(count)
        rows["machine"] += [machine] * count
        rows["a"] += [1.0] * count
        rows["y"] += ["on"] * count
    path = write_rows(tmp_path, rows, "new.csv")
    new, labelled = (
        load_data.load_new([path], data.preprocessing, data.heads, labelled=labels) for labels in (False, True)
    )
    first_ends = [7, 20 + 7, 35 + 7]
    ends = [*range(7, 20, stride), 20 + 7, *range(35 + 7, 57, stride)]
    assert list_window_ends(labelled.split) == ends
    assert list_window_ends(new.split) == sorted({*ends, 19, 27, 56})
    assert set(first_ends) <= set(ends)
    assert says(new.notes, "windows-end-first-rows-without", 7, 8)
    assert says(new.notes, "rows-of-series-fewer-rows", "new.csv", 7, 8, "row 29 (line 30) and the 6 after it")
    assert not any("no prediction" in note for note in labelled.notes)


def test_mixup_blends_whole_windows(tmp_path: Path) -> None:
    mixup_job = job(write_rows(tmp_path, one_series()), augment={"mixup": {"alpha": 1.0}})
    data = load(mixup_job)
    ids = np.arange(12)
    batch = Batch(ids, data.train.gather(ids), {"": data.train.targets[""][:12]})
    mixed = mixup.mix(batch, data.heads, mixup_job, step=1)
    share = mixed.targets[""].max(dim=1).values.min()
    assert 0.5 <= share < 1
    assert mixed.inputs[0].shape == (12, 8, 2)
    assert not torch.equal(mixed.inputs[0], batch.inputs[0])
    plain = mixup.mix(batch, data.heads, job(tmp_path / "a.csv"), step=1)
    assert torch.equal(plain.inputs[0], batch.inputs[0])


def test_a_constant_channel_is_only_centered(tmp_path: Path) -> None:
    rows = one_series()
    rows["b"] = np.where(np.arange(100) < 75, 4.0, 5.0)
    data = load(job(write_rows(tmp_path, rows)))
    assert says_only(data.notes, "constant-training-rows-centered")
    assert gather_windows(data.train)[:, :, 1].tolist() == [[0.0] * 8] * len(data.train)
    assert gather_windows(data.validation)[:, :, 1].tolist() == [[1.0] * 8] * len(data.validation)


def test_values_are_not_filled_forward_over_a_gap(tmp_path: Path) -> None:
    rows = one_series()
    rows["t"] = np.concatenate([np.arange(50), 1000 + np.arange(50)])
    rows["a"] = np.where(np.isin(np.arange(100), [20, 50, 51, 52]), np.nan, np.repeat([20.0, 80.0], 50))
    data = load(job(write_rows(tmp_path, rows), max_gap=5, stride=8))
    values = np.concatenate([undo_scaling(data, part)[:, :, 0].ravel() for part in (data.train, data.validation)])
    assert set(values.round(3)) == {20.0, 80.0}
    first = undo_scaling(data, data.train)[list_window_ends(data.train).index(60)]
    assert (first[:, 0].round(3) == 80).all(), "the rows behind the gap without a value are skipped"
    assert says(data.notes, "rows-before-first-value-series", 3)


@pytest.mark.parametrize("form", ["%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"])
def test_times_in_a_form_of_their_own(tmp_path: Path, form: str) -> None:
    start = datetime(2024, 1, 28)
    times = [start + timedelta(hours=i) for i in range(100)]
    plain = load(job(write_rows(tmp_path, one_series() | {"t": [str(time) for time in times]}, "plain.csv")))
    path = write_rows(tmp_path, one_series() | {"t": [time.strftime(form) for time in times]})
    data = load(job(path, date_format=form))
    assert list_window_ends(data.train) == list_window_ends(plain.train)
    assert data.preprocessing == plain.preprocessing | {"date_format": form}
    new = load_data.load_new([path], data.preprocessing, data.heads, labelled=True)
    assert len(new.split) == 31
    assert load(job(path)).preprocessing == data.preprocessing


@pytest.mark.parametrize("ticks", [1, 1000])
def test_seconds_since_1970_are_times(tmp_path: Path, ticks: int) -> None:
    """A gap is then measured in seconds, and a new file may have the times in another form."""
    seconds = 1_700_000_000 + np.arange(100) * 60
    seconds[50:] += 3600
    data = load(job(write_rows(tmp_path, one_series() | {"t": seconds * ticks}), max_gap=60))
    assert 50 not in {end - 7 + 3 for end in list_window_ends(data.train)}
    texts = [datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S") for second in seconds.tolist()]
    new = load_data.load_new(
        [write_rows(tmp_path, one_series() | {"t": texts}, "new.csv")], data.preprocessing, data.heads, labelled=True
    )
    same = load_data.load_new([tmp_path / "a.csv"], data.preprocessing, data.heads, labelled=True)
    assert len(new.split) == len(same.split)


def test_classes_that_look_like_numbers_have_a_line(tmp_path: Path) -> None:
    rows = one_series(600) | {"y": [f"{n // 4 % 25} mV" for n in range(600)]}
    assert any(
        get_message("classes-hold-digits", "y", 25) in note for note in load(job(write_rows(tmp_path, rows))).notes
    )


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__"])
def test_the_index_of_pandas_is_no_channel(tmp_path: Path, name: str) -> None:
    data = load(job(write_rows(tmp_path, {name: np.arange(100)} | one_series())))
    assert data.preprocessing["features"] == ["a", "b"]
    assert says_only(data.notes, "index-pandas-data-frame", name)


def test_channels_that_number_the_rows_or_tell_the_label_are_named(tmp_path: Path) -> None:
    rows = one_series() | {"row": np.arange(100), "code": 3.0 * (one_series()["y"] == "on")}
    notes = load(job(write_rows(tmp_path, rows))).notes
    (numbering,) = [note for note in notes if "number of the row" in note]
    assert begins_with(numbering, "number-row-alone-gives", "row", 0, 99)
    assert ends_with(numbering, "without-it-leaves-it-out", "data.features")
    (telling,) = [note for note in notes if "by itself" in note]
    assert begins_with(telling, "tells-itself-alone-gives", "code", 100)


def test_labels_of_windows_that_may_be_the_same_are_listed(tmp_path: Path) -> None:
    rows = one_series() | {"y": np.array(["on", "On", "off", "on\u200b"])[np.arange(100) // 10 % 4]}
    data = load(job(write_rows(tmp_path, rows), validation=0.3))
    assert data.heads[""].classes == ("On", "off", "on")
    assert says_only(data.notes, "spellings-probably-same-learned", "y", "On/on")
