"""The parts of a report page: sections, tables, tiles and lists, as HTML."""

import html
from collections.abc import Sequence

from bertpre.reporting.style import STYLE

Section = tuple[str, str]  # a title, and its content as HTML


def page(title: str, parts: list[str], sections: Sequence[Section] = ()) -> str:
    """A self-contained page: its parts, links to the sections, and the sections; empty ones are left out."""
    filled = [(name, content) for name, content in sections if content]
    links = "".join(f"<a href='#{anchor(name)}'>{html.escape(name)}</a>" for name, _ in filled)
    nav = f"<nav aria-label='Sections'>{links}</nav>" if filled else ""
    below = "".join(
        f"<section id='{anchor(name)}'><h2>{html.escape(name)}</h2>{content}</section>" for name, content in filled
    )
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)} - bertpre</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}{nav}{below}</main></body></html>\n"
    )


def anchor(name: str) -> str:
    """A section's name as the target of a link."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    """Rows as an HTML table; the first column holds the names."""
    above = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in head)
    lines = []
    for name, *values in rows:
        cells = "".join(f"<td class=number>{html.escape(value)}</td>" for value in values)
        lines.append(f"<tr><th scope=row>{html.escape(name)}</th>{cells}</tr>")
    header = f"<thead><tr>{above}</tr></thead>" if above else ""
    return f"<div class=wide><table>{header}{''.join(lines)}</table></div>"


def heat_table(counts: list[list[int]], names: Sequence[str], corner: str) -> str:
    """Counts as a heat map: each cell with its share of the row, which also sets its colour."""
    head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in names)
    lines = []
    for name, row in zip(names, counts, strict=True):
        total, cells = max(sum(row), 1), ""
        for count in row:
            share = count / total
            dark = " class=dark" if share > 0.6 else ""
            cells += f"<td{dark} style='--share:{share:.2f}'>{count:,}<small>{share:.0%}</small></td>"
        lines.append(f"<tr><th scope=row>{html.escape(name)}</th>{cells}</tr>")
    header = f"<thead><tr><th>{html.escape(corner)}</th>{head}</tr></thead>"
    return f"<div class=wide><table class=heat>{header}{''.join(lines)}</table></div>"


def tile(label: str, value: str, note: str = "", gauge: str = "", unit: str = "") -> str:
    """One headline number with what to compare it with; `gauge` is an SVG."""
    small = f" <small>{html.escape(unit)}</small>" if unit else ""
    return (
        f"<div class=tile><div class=label>{html.escape(label)}</div><div class=value>{html.escape(value)}{small}</div>"
        f"{gauge}<div class=note>{html.escape(note)}</div></div>"
    )


def time_bars(seconds: dict[str, float], words: dict[str, str]) -> str:
    """Durations as horizontal bars; `words` are the durations as text."""
    longest = max(seconds.values(), default=0) or 1
    rows = [
        f"<span>{html.escape(name)}</span><i style='width:{100 * value / longest:.1f}%'></i>"
        f"<span>{html.escape(words[name])}</span>"
        for name, value in seconds.items()
    ]
    return f"<div class=times>{''.join(rows)}</div>"


def folded(title: str, content: str) -> str:
    """Content that a click opens."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text; `kind` is a class of the style sheet."""
    return f"<p{f' class={kind}' if kind else ''}>{html.escape(text)}</p>"
