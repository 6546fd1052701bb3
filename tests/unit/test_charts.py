"""Charts put every value in its place, and say in words what they show."""

import re

import numpy as np
import pytest

from bertpre.reporting.attention_maps import main_target, shown_layers
from bertpre.reporting.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_POINTS,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Curve,
    Format,
    bar_chart,
    gauge,
    heat_map,
    line_chart,
    log_ticks,
    number,
    percent,
    precise,
    thinned,
    ticks,
)


def path_points(svg: str, color: int) -> list[tuple[float, float]]:
    """The corners of the first curve of a colour."""
    found = re.search(rf"class='curve k{color}[^']*' d='M([^']*)'", svg)
    assert found is not None
    return [tuple(map(float, corner.split())) for corner in found[1].split("L")]


def test_a_curve_rises_where_its_values_rise() -> None:
    svg = line_chart("loss", [Curve("one", [(0, 5.0), (1, 4.0), (3, 2.0)])], "step", {"floor": 1.0})
    (x0, y0), (x1, y1), (x3, y3) = path_points(svg, 1)
    assert x1 - x0 == pytest.approx((x3 - x0) / 3, abs=0.2)
    assert y0 < y1 < y3  # y grows downwards
    level = re.search(r"class='level' d='M[0-9.]+ ([0-9.]+)H", svg)
    assert level is not None and float(level[1]) > y3
    assert "loss by step: one from 5 to 2; floor 1" in svg


def test_no_points_no_chart_and_one_point_a_mark() -> None:
    assert line_chart("loss", [Curve("one", []), Curve("two", [(0, float("nan"))])], "step") == ""
    assert line_chart("loss", [Curve("one", [(1, 1.0)])], "step").count("<circle") == 1
    assert "<circle" not in line_chart("loss", [Curve("one", [(1, 1.0), (2, 1.0)])], "step")


def test_doubtful_points_are_hollow() -> None:
    curve = Curve("one", [(0, 0.0), (1, 1.0)], marks=True, doubtful=(False, True))
    svg = line_chart("accuracy", [curve], "step")
    assert svg.index("class=k1 fill=currentColor") < svg.index("class='hollow k1'")


def test_a_long_curve_is_averaged() -> None:
    points = thinned(Curve("one", [(x, float(x % 2)) for x in range(10 * MOST_POINTS)]))
    assert len(points) == MOST_POINTS and points[0] == (4.5, 0.5)


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.43, 0.58, 5) == [0.45, 0.5, 0.55]
    assert log_ticks(90, 2500) == [100, 200, 500, 1000, 2000]
    assert log_ticks(0.5, 5000) == [1, 10, 100, 1000]
    assert log_ticks(250, 360) == [300]
    assert Axis(10, 1000, 0, 100, is_log=True)(100) == pytest.approx(50)


def test_numbers_are_short() -> None:
    values = {0: "0", 0.25: "0.25", 1500: "1,500", 12_000: "12 k", 3_400_000: "3.4 M", 2e-5: "2e-5", 4.0: "4"}
    assert {value: number(value) for value in values} == values
    assert [number(value) for value in (999_600, 999_400, 9_999_000)] == ["1 M", "999 k", "10 M"]


@pytest.mark.parametrize(
    ("form", "values", "shown"),
    [
        (number, (3.3312, 3.3314), ["3.3312", "3.3314"]),
        (number, (41_234, 41_236), ["41.23 k", "41.24 k"]),
        (number, (3.0, 3.5), ["3", "3.5"]),
        (number, (1000.0, 1000.5), ["1,000.0", "1,000.5"]),
        (percent, (0.9985, 0.999, 0.9995), ["99.85 %", "99.9 %", "99.95 %"]),
        (percent, (0.5, 0.6), ["50 %", "60 %"]),
    ],
)
def test_ticks_that_lie_close_have_more_digits(form: Format, values: tuple[float, ...], shown: list[str]) -> None:
    exact = precise(form, values)
    assert [exact(value) for value in values] == shown


def test_a_narrow_chart_says_its_values_with_the_digits_of_its_ticks() -> None:
    svg = line_chart("accuracy", [Curve("one", [(0, 0.9985), (1, 0.9996)])], "step", y_format=percent)
    assert "one from 99.85 % to 99.96 %" in svg
    labels = re.findall(r"text-anchor=end>([^<]+)<", svg)
    assert len(set(labels)) == len(labels) > 2


def test_bars_are_as_high_as_their_values() -> None:
    svg = bar_chart("lengths", ["1", "2"], [10, 5], "tokens")
    heights = [float(value) for value in re.findall(r"class=bar [^>]*height=([0-9.]+)", svg)]
    assert heights[0] == pytest.approx(2 * heights[1]) and "1: 10, 2: 5" in svg


def test_a_gauge_shows_value_reference_and_interval() -> None:
    svg = gauge(0.5, 1.0, 0.25, (0.4, 0.6))
    assert "width=100.0" in svg and "M50.0 0V14" in svg and "M80.0 3V12M120.0 3V12" in svg
    assert "aria-label='0.5 on a scale from 0 to 1, 95 % CI 0.4 to 0.6, compared with 0.25'" in svg


def test_a_heat_map_has_darker_cells_for_larger_weights() -> None:
    svg = heat_map("1.1", "", [[0.5, 0.0], [0.25, 0.0]], 0.5, ["a", "b"], "said")
    found = re.findall(r"opacity=([0-9.]+) d='M([0-9]+) ([0-9]+)h", svg)
    assert found == [("0.5", "66", "14"), ("1", "66", "0")]


def test_the_main_target_of_a_head_is_named() -> None:
    before = np.eye(4, k=-1)
    before[0, 0] = 1
    assert main_target(before) == ("the token before", 0.75)  # the first of four has none
    assert main_target(np.eye(4))[0] == "itself"
    assert main_target(np.tile([0, 0, 0, 1.0], (4, 1))) == ("[SEP]", 1.0)


def test_layers_are_evenly_spaced() -> None:
    assert shown_layers(1) == [0] and shown_layers(3) == [0, 1, 2] and shown_layers(12) == [0, 4, 7, 11]


def test_every_picture_is_described() -> None:
    for svg in (gauge(0.5, 1.0), heat_map("1.1", "", [[1.0]], 1.0, ["a"], "what"), bar_chart("a", ["1"], [1], "b")):
        assert "role=img" in svg and re.search("aria-label='[^']+'", svg)


def test_an_axis_of_shares_ends_at_0_and_1() -> None:
    always_right = [Curve("one", [(0, 1.0), (1, 1.0)])]
    assert ">120 %<" not in line_chart("accuracy", always_right, "step", y_format=percent)
    assert ">100 %<" in line_chart("accuracy", always_right, "step", y_format=percent)
    assert ">1.2<" in line_chart("loss", always_right, "step")


def test_the_diagonal_of_a_calibration_stays_in_the_frame() -> None:
    overconfident = [Curve("one", [(0.88, 0.6), (0.97, 0.7)])]
    svg = line_chart("accuracy", overconfident, "probability", y_format=percent, diagonal="perfect")
    found = re.search("class=level d='M([-0-9.]+) ([-0-9.]+)L([-0-9.]+) ([-0-9.]+)'", svg)
    assert found is not None
    x, y, last_x, last_y = map(float, found.groups())
    assert LEFT <= x < last_x <= WIDTH - RIGHT
    assert TOP <= last_y < y <= HEIGHT - BOTTOM
