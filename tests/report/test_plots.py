"""Plots of the report: ticks, places and lines, for all values that a run can have."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from drivetrain.report.blocks import Curves, Headline, Scatter, Section, StackedBar
from drivetrain.report.confusion import Confusion
from drivetrain.report.log_series import Series
from drivetrain.report.render.page import render_page
from drivetrain.report.render.plot_svg import (
    BOTTOM,
    LEFT,
    LINE_COLORS,
    RIGHT,
    TOP,
    Axis,
    Plot,
    draw_curves,
    draw_matrix,
    draw_scatter,
    fit_axis,
)
from tests.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def series(*points: tuple[float, float]) -> Series:
    loss_series = Series("loss")
    for x, y in points:
        loss_series.add(x, y)
    return loss_series


def parse_plot(text: str) -> ET.Element:
    return ET.fromstring(str(text).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def labels(text: str) -> list[str]:
    return [str(element.text) for element in parse_plot(text).iter(f"{SVG}text")]


def test_a_report_loads_no_large_library() -> None:
    code = "import sys, drivetrain.report.__main__, drivetrain.report.render.page; print({'matplotlib', 'numpy', 'torch'} & set(sys.modules))"
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
        (0.031, 0.034, [0.031, 0.032, 0.033, 0.034]),
        (1e-9, 1e9, [1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9]),
    ],
)
def test_logarithmic_ticks(low: float, high: float, expected: list[float]) -> None:
    assert Axis(low, high, True).choose_ticks(6) == pytest.approx(expected)


def test_values_are_where_the_ticks_say() -> None:
    plot = Plot(Axis(0, 10), Axis(0.01, 100, True))
    assert plot.locate(0, 0.01) == pytest.approx((LEFT, BOTTOM))
    assert plot.locate(10, 100) == pytest.approx((RIGHT, TOP))
    assert plot.locate(5, 1) == pytest.approx(((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2))


@pytest.mark.parametrize(
    "values",
    [[], [0.0], [5.0], [-3.0], [1e-320], [5e-324], [1e308, -1e308], [1e308], [0.0, 1e-300], [1e9, 1e9 + 1e-3]],
)
@pytest.mark.parametrize("logarithmic", [False, True])
def test_an_axis_for_any_values(values: list[float], logarithmic: bool) -> None:
    axis = fit_axis(values, 0.05, logarithmic=logarithmic)
    assert axis.low < axis.high
    assert all(math.isfinite(axis.locate(value)) for value in values if value > 0 or not logarithmic)
    ticks = axis.choose_ticks(5)
    assert len(ticks) < 20
    assert all(axis.low <= tick <= axis.high or math.isclose(tick, axis.low) for tick in ticks)


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
    frame = Curves("Loss", "step", (series(*points),), from_zero=from_zero, logarithmic=logarithmic)
    text = draw_curves(frame)
    assert "nan" not in text
    assert "inf" not in text
    assert labels(text)[-1] == "step"


def test_a_noisy_line_is_pale_below_its_mean() -> None:
    noisy = series(*((step, 1.5 + math.sin(step * 77.7)) for step in range(1, 400)))
    assert draw_curves(Curves("Loss", "step", (noisy,))).count("pale") == 1


def test_a_limit_is_shown_and_named() -> None:
    frame = Curves("Memory", "seconds", (series((0, 1.0), (1, 2.0)),), ("limit", 4.0), from_zero=True)
    assert "limit 4" in labels(draw_curves(frame))


def test_titles_and_names_are_escaped() -> None:
    evil = '</text><script>alert("x")</script>'
    frame = Curves(evil, evil, (series((0, 1.0)),), (evil, 1.0), (("<b>", 0.0),))
    assert evil in labels(draw_curves(frame))
    plot = Scatter(evil, evil, "k", ((0.0, 1.0),))
    assert parse_plot(draw_scatter(plot)).get("aria-label") == evil


def test_counts_of_a_confusion_matrix_are_whole() -> None:
    """1,448 samples were shown as 1.448k."""
    confusion = Confusion("", ("a", "b"), ((1448, 2), (0, 9)))
    picture, _ = draw_matrix(confusion)
    assert {"1,448", "2", "9"} <= set(re.findall(r">([\d,.k]+)<", picture))


def test_no_two_parts_of_a_bar_have_the_same_color() -> None:
    """The ninth part, the largest, had the color of the second."""
    sizes = [5.0, 4.0, 0.1, 3.0, 0.2, 2.0, 0.3, 1.0, 9.0, 0.4, 0.5]
    parts = StackedBar("Time", tuple((f"p{i}", size, f"{size} s") for i, size in enumerate(sizes)))
    bar = render_page(Headline("r", "", "", "", "", ""), [Section("time", "Time", (parts,))])
    shades = re.findall(r'<span class="key ([a-z0-9-]+)">', bar)
    assert re.findall(r'<i class="([a-z0-9-]+)"', bar) == shades
    line_shades = [shade for shade in shades if shade != "tone-quiet"]
    assert len(set(line_shades)) == len(line_shades) == LINE_COLORS
    assert [sizes[i] for i, shade in enumerate(shades) if shade == "tone-quiet"] == [0.1, 0.2, 0.3]
