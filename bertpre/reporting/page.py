"""The parts of a report page: HTML tables and embedded pictures."""

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { margin-bottom: 0; } h2 { margin-top: 2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
th { white-space: nowrap; }
td.number { font-variant-numeric: tabular-nums; } .note { color: #666; } img { max-width: 100%; }
pre { background: #f6f6f6; padding: .8rem; overflow: auto; font-size: 13px; } mark { background: #ffe9a8; }
"""


def page(title: str, parts: list[str]) -> str:
    """A self-contained page."""
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)} - bertpre</title>"
    return f"{head}<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"


def table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    """Rows as an HTML table; the first column holds the names."""
    above = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = []
    for name, *values in rows:
        cells = "".join(f"<td class=number>{html.escape(value)}</td>" for value in values)
        lines.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
    return f"<table>{f'<tr>{above}</tr>' if above else ''}{''.join(lines)}</table>"


def new_figure(columns: int) -> tuple[Any, list[Any]]:
    """A matplotlib figure with this many axes side by side; it needs no display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * columns, 3.4), dpi=110, layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, columns)))


def to_png(figure: Any) -> bytes:
    """A figure as a PNG file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def image(png: bytes) -> str:
    """A picture inside the page."""
    return f"<img alt='' src='data:image/png;base64,{base64.b64encode(png).decode()}'>"
