"""The series of a report: what is kept when a run is resumed, thinned or smoothed; and confusions."""

from __future__ import annotations

import math

import pytest

from drivetrain.report.confusion import read_confusions
from drivetrain.report.formatting import (
    align_numbers,
    format_duration,
    format_json,
    format_number,
    format_share,
    format_tick,
    shorten,
)
from drivetrain.report.log_series import Series, collect_series, compute_running_mean, thin_points
from drivetrain.tracking.live.sparkline import draw_bars


def series(*ys: float) -> Series:
    new_series = Series("y")
    for x, y in enumerate(ys):
        new_series.add(x, y)
    return new_series


def test_resumed_steps_replace_those_of_the_first_attempt() -> None:
    rows = [{"step": s, "loss": float(s)} for s in (1, 2, 3, 4, 5)]
    rows[2]["score"], rows[4]["score"] = 0.5, 0.9
    rows += [{"step": 4, "loss": 40.0}, {"step": 5, "loss": 50.0}]
    series_by_name = collect_series(rows, "step")
    assert list(series_by_name["loss"].xs) == [1, 2, 3, 4, 5]
    assert list(series_by_name["loss"].ys) == [1, 2, 3, 40, 50]
    assert list(series_by_name["score"].xs) == [3]


def test_time_continues_after_a_resume() -> None:
    series_by_name = collect_series(
        [{"seconds": s, "process_memory": 1.0} for s in (1, 2, 3, 1, 2)], "seconds", continues=True
    )
    assert list(series_by_name["process_memory"].xs) == [1, 2, 3, 4, 5]


def test_rows_without_a_place_and_values_that_are_no_numbers_are_left_out() -> None:
    rows = [
        {"loss": 1.0},
        {"step": None, "loss": 1.0},
        {"step": 1, "loss": True, "name": "x", "lr": None, "big": 10**400},
    ]
    series_by_name = collect_series(rows, "step")  # type: ignore[arg-type]
    assert list(series_by_name) == ["big"]
    assert (len(series_by_name["big"]), series_by_name["big"].broken) == (0, 1)


def test_a_counter_that_restarts() -> None:
    assert list(series(10, 12, 1, 4).accumulate("held").ys) == [0, 2, 2, 5]


@pytest.mark.parametrize("count", [1, 2, 999, 1000, 1001, 50_000])
def test_thinning_keeps_ends_and_spikes(count: int) -> None:
    values = [math.sin(i / 50) for i in range(count)]
    values[count // 2] = 99.0
    points = thin_points(series(*values))
    assert len(points) <= 1000
    assert points[0][0] == 0
    assert points[-1][0] == count - 1
    assert max(y for _, y in points) == 99.0
    assert [x for x, _ in points] == sorted({x for x, _ in points})


def test_mean_smooths_and_is_short() -> None:
    points = compute_running_mean(series(*(i + (-1) ** i * 200 for i in range(3000))))
    assert len(points) <= 300
    assert all(abs(y - x) < 50 for x, y in points)


@pytest.mark.parametrize(
    ("values", "line"),
    [((0, 1, 2, 3, 4, 5, 6, 7), "▁▂▃▄▅▆▇█"), ((5, 5), "▁▁"), ((), ""), (range(64), "▁▁▁▁▂▂▂▂▃▃▃▃▄▄▄▄▅▅▅▅▆▆▆▆▇▇▇▇████")],
)
def test_sparkline(values: tuple[float, ...], line: str) -> None:
    assert draw_bars(series(*values).ys, 32) == line


def test_confusion_by_hand() -> None:
    [confusion] = read_confusions({"": {"classes": ["a", "b", "c"], "matrix": [[8, 2, 0], [1, 9, 0], [0, 0, 0]]}})
    assert (confusion.total, confusion.hits) == (20, 17)
    assert confusion.list_mistakes() == [("a", "b", 2, 0.2), ("b", "a", 1, 0.1)]
    weakest = confusion.list_weakest()[0]
    assert (weakest.name, weakest.samples, weakest.mistaken_for) == ("a", 10, "b (2)")
    assert (weakest.precision, weakest.recall, weakest.f1) == pytest.approx((8 / 9, 0.8, 16 / 19))
    assert len(confusion.list_weakest()) == 2


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"": None},
        {"": {"classes": ["a"]}},
        {"": {"classes": ["a"], "matrix": [[1, 2]]}},
        {"": {"classes": ["a"], "matrix": [["x"]]}},
        {"": {"classes": ["a"], "matrix": [[-1]]}},
        {"": {"classes": [], "matrix": []}},
    ],
)
def test_an_invalid_confusion_matrix_is_left_out(value: object) -> None:
    assert read_confusions(value) == []


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (format_number(0.98611), "0.9861"),
        (format_number(1797), "1,797"),
        (format_number(12345.6), "12,346"),
        (align_numbers((0.9, 0.9167, 1.0)), ["0.9000", "0.9167", "1.0000"]),
        (align_numbers((12.3456, 0.5, math.nan)), ["12.35", "0.50", "not finite"]),
        (align_numbers((0.25, 1e-9)), ["0.2500", "1e-09"]),
        (align_numbers((1.0, 2.0)), ["1", "2"]),
        (format_number(None), "unknown"),
        (format_number(math.nan), "not finite"),
        (format_duration(0.4), "0.40 s"),
        (format_duration(41.63), "41.6 s"),
        (format_duration(125), "2 min 05 s"),
        (format_duration(7500), "2 h 05 min"),
        (format_duration(None), "unknown"),
        (format_share(0.1444), "14.4 %"),
        (format_share(1.0), "100 %"),
        (format_tick(50_000), "50k"),
        (format_tick(1e-5), "1e-5"),
        (format_tick(2.5e6), "2.5M"),
        (format_tick(0.25), "0.25"),
        (shorten("abcdefghij", 7), "abcd…ij"),
        (shorten("abc", 7), "abc"),
        (format_json(True), "true"),
        (format_json(None), "nothing"),
        (format_json([1, "a"]), '[1, "a"]'),
        (format_json("a\x00b"), "a\ufffdb"),
    ],
)
def test_wording(written: str, expected: str) -> None:
    assert written == expected
