"""Charts as inline SVG. Colours are classes of the style sheet, so they suit light, dark and paper."""

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 40
MOST_POINTS = 300  # of a curve; a longer one is averaged in groups
HEAT_LEVELS = 12
Point = tuple[float, float]
Format = Callable[..., str]  # of a value and the number of its digits


@dataclass(frozen=True)
class Curve:
    """A named line of points (x, y); `marks` shows each point, hollow where `doubtful` says so."""

    name: str
    points: Sequence[Point]
    marks: bool = False
    doubtful: tuple[bool, ...] = ()
    errors: tuple[float, ...] = ()  # half the height of each point's error bar
    color: int | None = None  # of the style sheet, from 1; by default the curve's place in the chart


Shown = tuple[int, Curve, list[Point]]  # a curve's colour, the curve, its points as drawn


@dataclass(frozen=True)
class Axis:
    """Where values lie on the page: `start` and `end` are the places, in the SVG's units, of `low` and `high`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log(end) if self.is_log else end for end in (self.low, self.high))
        share = ((math.log(value) if self.is_log else value) - low) / (high - low)
        return self.start + share * (self.end - self.start)


def line_chart(
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    levels: dict[str, float] | None = None,
    y_format: Format | None = None,
    note: str = "",
    is_log: bool = False,
    diagonal: str = "",
) -> str:
    """Curves and horizontal reference levels in one figure; empty where no curve has a point.

    `is_log` is the scale of x, and `diagonal` names a line y = x.
    """
    levels = levels or {}
    shown = [
        (curve.color or place % 6 + 1, curve, points)
        for place, curve in enumerate(curves)
        if (points := thinned(curve))
    ]
    if not shown:
        return ""
    xs = [x for _, _, points in shown for x, _ in points]
    x_axis = Axis(*(log_spread(xs) if is_log else spread(xs, 0.0)), LEFT, WIDTH - RIGHT, is_log)
    beside = [*levels.values(), *((x_axis.low, x_axis.high) if diagonal else ())]
    y_axis = Axis(*y_range(shown, beside, y_format is percent), HEIGHT - BOTTOM, TOP)
    form = precise(y_format or number, ticks(y_axis.low, y_axis.high, 5))
    parts = [frame(x_axis, y_axis, x_label, form)]
    for place, value in enumerate(levels.values()):
        y = y_axis(value)
        parts.append(f"<path class='{level_class(place)}' d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}'/>")
    if diagonal:
        low, high = max(x_axis.low, y_axis.low), min(x_axis.high, y_axis.high)
        ends = f"M{x_axis(low):.1f} {y_axis(low):.1f}L{x_axis(high):.1f} {y_axis(high):.1f}"
        parts.append(f"<path class=level d='{ends}'/>")
    parts += [drawn(color, curve, points, x_axis, y_axis) for color, curve, points in shown]
    said = [f"{c.name or 'values'} from {form(points[0][1])} to {form(points[-1][1])}" for _, c, points in shown]
    said += [f"{name} {form(value)}" for name, value in levels.items()]
    keys = legend([(color, curve.name) for color, curve, _ in shown], levels, form, diagonal)
    return figure(title, note, f"{title} by {x_label}: {'; '.join(said)}", "".join(parts), keys)


def y_range(shown: Sequence[Shown], beside: list[float], is_share: bool) -> tuple[float, float]:
    """The ends of an axis for all values, those `beside` them, and error bars; for shares within 0 and 1."""
    ys = [y for _, _, points in shown for _, y in points] + beside
    for _, curve, points in shown:
        for (_, y), error in zip(points, curve.errors, strict=False):
            ys += [y - error, y + error]
    low, high = spread(ys, 0.06)
    return (max(low, min(0.0, *ys)), min(high, max(1.0, *ys))) if is_share else (low, high)


def legend(
    names: Sequence[tuple[int, str]], levels: dict[str, float], form: Callable[[float], str], diagonal: str
) -> str:
    """The names of curves, by colour, of reference levels with their values, and of the diagonal."""
    keys = [f"<span><i class=k{color}></i>{html.escape(name)}</span>" for color, name in names if name]
    for place, (name, value) in enumerate(levels.items()):
        keys.append(f"<span><i class='{level_class(place)}'></i>{html.escape(name)} {form(value)}</span>")
    return "".join(keys) + (f"<span><i class=level></i>{html.escape(diagonal)}</span>" if diagonal else "")


def level_class(place: int) -> str:
    """The first level is dashed, later ones are dotted."""
    return "level two" if place else "level"


def thinned(curve: Curve) -> list[Point]:
    """The finite points of a curve; a long curve's are means over groups of neighbours."""
    points = [(x, y) for x, y in curve.points if math.isfinite(x) and math.isfinite(y)]
    size = -(-len(points) // MOST_POINTS) or 1
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def drawn(color: int, curve: Curve, points: list[Point], x_axis: Axis, y_axis: Axis) -> str:
    """One curve, with its marks and error bars."""
    places = [(x_axis(x), y_axis(y)) for x, y in points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    parts = [f"<path class='curve k{color}{' faint' * (not curve.marks)}' d='{path}'/>"] if len(places) > 1 else []
    for (x, _), (_, value), error in zip(places, points, curve.errors, strict=False):
        ends = f"M{x:.1f} {y_axis(value - error):.1f}V{y_axis(value + error):.1f}"
        parts.append(f"<path class='curve k{color}' d='{ends}'/>")
    if curve.marks or len(places) == 1:
        doubtful = curve.doubtful or (False,) * len(places)
        for (x, y), is_doubtful in zip(places, doubtful, strict=False):
            fill = "class='hollow k{}'" if is_doubtful else "class=k{} fill=currentColor"
            parts.append(f"<circle {fill.format(color)} stroke-width=2 cx={x:.1f} cy={y:.1f} r=3.2 />")
    return "".join(parts)


def frame(x_axis: Axis, y_axis: Axis, x_label: str, form: Callable[[float], str]) -> str:
    """Grid lines, ticks and the name of the x axis."""
    parts, bottom = [], HEIGHT - BOTTOM
    for value in ticks(y_axis.low, y_axis.high, 5):
        y = y_axis(value)
        parts.append(f"<path class=grid d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}'/>")
        parts.append(f"<text x={LEFT - 6} y={y + 4:.1f} text-anchor=end>{form(value)}</text>")
    places = log_ticks(x_axis.low, x_axis.high) if x_axis.is_log else ticks(x_axis.low, x_axis.high, 5)
    x_form = precise(number, places)
    for value in places:
        parts.append(f"<text x={x_axis(value):.1f} y={bottom + 16} text-anchor=middle>{x_form(value)}</text>")
    parts.append(f"<path class=axis d='M{LEFT} {bottom}H{WIDTH - RIGHT}'/>")
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "".join(parts) + f"<text x={middle:.0f} y={HEIGHT - 6} text-anchor=middle>{html.escape(x_label)}</text>"


def bar_chart(title: str, names: Sequence[str], values: Sequence[float], x_label: str, note: str = "") -> str:
    """Vertical bars; every name is shown, or every second or third where there are many."""
    top = Axis(0, max([*values, 1]), HEIGHT - BOTTOM, TOP)
    step, bottom = (WIDTH - LEFT - RIGHT) / max(len(values), 1), HEIGHT - BOTTOM
    parts = []
    for value in ticks(top.low, top.high, 4):
        parts.append(f"<path class=grid d='M{LEFT} {top(value):.1f}H{WIDTH - RIGHT}'/>")
        parts.append(f"<text x={LEFT - 6} y={top(value) + 4:.1f} text-anchor=end>{number(value)}</text>")
    every = -(-len(values) * max((len(name) for name in names), default=1) // 52) or 1
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        x, y = LEFT + place * step, top(value)
        parts.append(
            f"<rect class=bar x={x + step * 0.06:.1f} y={y:.1f} width={step * 0.88:.1f} height={bottom - y:.1f} />"
        )
        if place % every == 0:
            middle = x + step / 2
            parts.append(f"<text x={middle:.1f} y={bottom + 16} text-anchor=middle>{html.escape(name)}</text>")
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f"<text x={middle:.0f} y={HEIGHT - 6} text-anchor=middle>{html.escape(x_label)}</text>")
    said = ", ".join(f"{name}: {value:,}" for name, value in zip(names, values, strict=True))
    return figure(title, note, f"{title} by {x_label}: {said}", "".join(parts))


def gauge(value: float, end: float, reference: float | None = None, interval: Sequence[float] | None = None) -> str:
    """A value on a scale from 0 to `end`, with a tick at a reference and a line over its confidence interval."""
    place = Axis(0.0, end, 0, 200)
    parts = ["<rect class=pale x=0 y=5 width=200 height=5 rx=2.5 />"]
    parts.append(f"<rect class=bar x=0 y=5 width={max(0.0, min(200.0, place(value))):.1f} height=5 rx=2.5 />")
    said = [f"{number(value)} on a scale from 0 to {number(end)}"]
    if interval:
        low, high = (max(0.0, min(200.0, place(each))) for each in interval)
        bracket = f"M{low:.1f} 3V12M{high:.1f} 3V12M{low:.1f} 7.5H{high:.1f}"
        parts.append(f"<path class=bracket d='{bracket}'/>")
        said.append(f"95 % CI {number(interval[0])} to {number(interval[1])}")
    if reference is not None:
        x = max(1.0, min(199.0, place(reference)))
        parts.append(f"<path class='curve k2' d='M{x:.1f} 0V14' style='stroke-width:2.5'/>")
        said.append(f"compared with {number(reference)}")
    return (
        f"<svg viewBox='0 0 200 14' preserveAspectRatio=none role=img aria-label='{', '.join(said)}'>"
        f"{''.join(parts)}</svg>"
    )


def heat_map(
    title: str, note: str, rows: Sequence[Sequence[float]], top: float, names: Sequence[str], said: str
) -> str:
    """A square of weights from 0 to `top`, each row's name to its left; one path for each level of colour."""
    cell, left, size = 14, 66, len(names)
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(rows):
        for x, weight in enumerate(row):
            level = min(HEAT_LEVELS, round(weight / top * HEAT_LEVELS))
            paths.setdefault(level, []).append(f"M{left + x * cell} {y * cell}h{cell}v{cell}h-{cell}z")
    parts = [
        f"<path class=cell opacity={level / HEAT_LEVELS:.3g} d='{''.join(places)}'/>"
        for level, places in sorted(paths.items())
        if level
    ]
    for y, name in enumerate(names):
        short = html.escape(name if len(name) < 10 else f"{name[:8]}…")
        parts.append(f"<text x={left - 5} y={(y + 0.75) * cell:.1f} text-anchor=end>{short}</text>")
    parts.append(f"<rect class=mesh x={left} y=.5 width={size * cell - 1} height={size * cell - 1} />")
    return figure(title, note, said, "".join(parts), width=left + size * cell, height=size * cell)


def figure(
    title: str, note: str, said: str, content: str, keys: str = "", width: int = WIDTH, height: int = HEIGHT
) -> str:
    """An SVG with its caption and legend; `said` describes it to a screen reader."""
    small = f" <small>{html.escape(note)}</small>" if note else ""
    legend = f"<div class=legend>{keys}</div>" if keys else ""
    svg = f"<svg viewBox='0 0 {width} {height}' role=img aria-label='{html.escape(said, quote=True)}'>{content}</svg>"
    return f"<figure><figcaption>{html.escape(title)}{small}</figcaption>{svg}{legend}</figure>"


def spread(values: Iterable[float], margin: float) -> tuple[float, float]:
    """The ends of an axis that shows all values, with a share of its length beyond them."""
    listed = list(values)
    low, high = min(listed), max(listed)
    if low == high:
        return low - (abs(low) or 1) * 0.5, high + (abs(high) or 1) * 0.5
    return low - margin * (high - low), high + margin * (high - low)


def log_spread(values: Sequence[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis."""
    return min(values) / 1.2, max(values) * 1.2


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(place * step, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from `low` to `high`; powers alone over more than two decades; else the middle."""
    sizes = (1,) if high / low > 100 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [size * 10.0**power for power in powers for size in sizes if low <= size * 10.0**power <= high]
    return found or [math.sqrt(low * high)]


def precise(form: Format, values: Sequence[float]) -> Callable[[float], str]:
    """The format with as few digits as tell these values apart."""
    for digits in range(3, 10):
        chosen = partial(form, digits=digits)
        if len({chosen(value) for value in values}) == len(values):
            break
    return chosen


def number(value: float, digits: int = 3) -> str:
    """A number as short as its size and `digits` allow: 12 k, 3.4 M, 0.003, 2e-5."""
    size = abs(float(f"{value:.{digits}g}"))
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * (10 if name == "k" else 1):
            return f"{value / unit:.{digits}g} {name}"
    if 0 < size < 0.001:
        mantissa, _, power = f"{value:.{digits - 2}e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(power)}"
    return f"{value:,.{digits - 3}f}" if size >= 1000 else f"{value:.{digits + 1}g}"


def percent(value: float, digits: int = 3) -> str:
    """A fraction as a percentage."""
    return f"{value * 100:.{digits}g} %"
