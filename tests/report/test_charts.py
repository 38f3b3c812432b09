"""Charts of the report: ticks, places and lines, for all values that a run can have."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from drivetrain.report.blocks import Chart, Headline, Section
from drivetrain.report.chart import BOTTOM, LEFT, RIGHT, TOP, Axis, Drawing, draw_chart, fit_axis
from drivetrain.report.confusion import Confusion
from drivetrain.report.log_series import Series
from drivetrain.report.page import render_page
from tests.paths import ROOT


def series(*points: tuple[float, float]) -> Series:
    loss_series = Series("loss")
    for x, y in points:
        loss_series.add(x, y)
    return loss_series


def list_labels(chart: Chart) -> list[str]:
    return [text for *_, text in draw_chart(chart).labels]


def show(*blocks: Chart | Confusion) -> str:
    """The page of these blocks."""
    return render_page(Headline("r", "", "", "", "", ""), [Section("s", blocks)])


def test_a_report_loads_no_large_library() -> None:
    code = "import sys, drivetrain.report.__main__, drivetrain.report.page; print({'matplotlib', 'numpy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0.0, 1.0, 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.93, 0.987, 5, [0.94, 0.96, 0.98]),
        (1.0, 90.0, 6, [20.0, 40.0, 60.0, 80.0]),
        (-0.3, 0.3, 5, [-0.2, 0.0, 0.2]),
        (0.0, 3e9, 5, [0.0, 1e9, 2e9, 3e9]),
        (0.0, 7e-8, 5, [0.0, 2e-8, 4e-8, 6e-8]),
    ],
)
def test_even_ticks(low: float, high: float, count: int, expected: list[float]) -> None:
    assert Axis(low, high).choose_ticks(count) == expected


def test_steps_have_no_fractions() -> None:
    assert Axis(0.95, 1.05).choose_ticks(6, integer=True) == [1.0]
    assert Axis(1.0, 3.0).choose_ticks(6, integer=True) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.005, 2.5, [0.01, 0.1, 1.0]),
        (0.03, 2.5, [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]),
        (1e-9, 1e9, [1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9]),
    ],
)
def test_logarithmic_ticks(low: float, high: float, expected: list[float]) -> None:
    axis = Axis(math.log10(low), math.log10(high), True)
    assert axis.choose_ticks(6) == pytest.approx(expected)


def test_values_are_where_the_ticks_say() -> None:
    drawing = Drawing(Axis(0, 10), Axis(-2, 2, True))
    assert (drawing.locate_x(0), drawing.locate_y(0.01)) == (LEFT, BOTTOM)
    assert (drawing.locate_x(10), drawing.locate_y(100)) == (RIGHT, TOP)
    assert (drawing.locate_x(5), drawing.locate_y(1)) == ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2)


@pytest.mark.parametrize(
    "values",
    [[], [0.0], [5.0], [-3.0], [1e-320], [5e-324], [1e308, -1e308], [1e308], [0.0, 1e-300], [1e9, 1e9 + 1e-3]],
)
@pytest.mark.parametrize("logarithmic", [False, True])
def test_an_axis_for_any_values(values: list[float], logarithmic: bool) -> None:
    axis = fit_axis(values, 0.05, is_logarithmic=logarithmic)
    assert axis.low < axis.high
    assert all(math.isfinite(axis.locate(value)) for value in values if value > 0 or not logarithmic)
    ticks = axis.choose_ticks(5)
    assert len(ticks) < 20
    assert all(-1e-9 <= axis.locate(tick) <= 1 + 1e-9 for tick in ticks)


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("from_zero", [False, True])
@pytest.mark.parametrize(
    "points",
    [
        (),
        ((1, 0.5),),
        ((1, 0.0), (2, 0.0)),
        ((1, -2.0), (2, 3.0), (3, 0.0)),
        ((1, 1e308), (2, -1e308)),
        tuple((step, math.sin(step * 77.7) + 1.5) for step in range(1, 400)),
    ],
)
def test_curves_for_any_values(points: tuple[tuple[float, float], ...], from_zero: bool, logarithmic: bool) -> None:
    chart = Chart("Loss", "step", (series(*points),), from_zero=from_zero, is_logarithmic=logarithmic)
    text = str(draw_chart(chart))
    assert "nan" not in text
    assert "inf" not in text
    assert list_labels(chart)[-1] == "step"


def test_a_noisy_line_is_pale_below_its_mean() -> None:
    noisy = series(*((step, 1.5 + math.sin(step * 77.7)) for step in range(1, 400)))
    styles = [style for style, _ in draw_chart(Chart("Loss", "step", (noisy,))).paths]
    assert styles[-2:] == ["curve pale line-1", "curve line-1"]


def test_a_limit_is_shown_and_named() -> None:
    chart = Chart("Memory", "seconds", (series((0, 1.0), (1, 2.0)),), ("limit", 4.0), from_zero=True)
    assert "limit 4" in list_labels(chart)


def test_titles_and_names_are_escaped() -> None:
    evil = '</text><script>alert("x")</script>'
    chart = Chart(evil, evil, (series((0, 1.0)),), (evil, 1.0), (("<b>", 0.0),))
    picture = ET.fromstring(re.findall(r"(?s)<svg.*?</svg>", show(chart))[0])
    assert picture.get("aria-label") == evil
    assert {evil, "<b>"} <= {label.text for label in picture.iter("text")}


def test_counts_of_a_confusion_matrix_are_whole() -> None:
    """1,448 samples were shown as 1.448k."""
    confusion = Confusion("", ("a", "b"), ((1448, 2), (0, 9)))
    assert {"1,448", "2", "9"} <= set(re.findall(r">([\d,.k]+)</td>", show(confusion)))


def test_dots_of_a_scatter_plot_lie_beside_the_line_of_equal_values() -> None:
    chart = Chart("price", "true", (series((1.0, 1.5), (2.0, 2.0), (3.0, 2.5)),), is_scatter=True)
    paths = dict(draw_chart(chart).paths)
    assert paths["dots line-1"].count("h0") == 3
    assert paths["limit"].count("L") == 1
