"""The pictures that several notebooks draw, in one style."""

import warnings
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's, where ipywidgets is not installed
plt.rcParams.update({"figure.dpi": 96, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY = "#2f6db5", "#d9730d", "#2e8b57", "#888888"


def heat_map(
    ax: Axes,
    values: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    digits: int | None = 2,
    *,
    ylabel: str = "",
    xlabel: str = "",
    bound: float | None = None,
) -> None:
    """Draw (S, T) numbers as colours with words on the axes; the numbers are written in where there are few.

    `ylabel` says what the rows are, and `xlabel` what the columns are. The darkest colour is `bound`, by default the
    largest number of this picture; pictures that are to be compared need the same bound.
    """
    values = values.detach()
    low = min(0.0, values.min().item())
    bound = max(values.max().item(), -low) if bound is None else bound
    colours = "Blues" if low == 0 else "RdBu"
    ax.imshow(values, cmap=colours, vmin=low and -bound, vmax=bound, aspect="auto")
    ax.set_xticks(range(len(columns)), columns, rotation=45, ha="left", rotation_mode="anchor")
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title, loc="left", fontsize=9)
    if digits is not None and values.numel() <= 100:
        for row, numbers in enumerate(values.tolist()):
            for column, number in enumerate(numbers):
                is_dark = abs(number) > 0.6 * bound
                ax.text(
                    column, row, f"{number:z.{digits}f}", ha="center", va="center", fontsize=8,
                    color="white" if is_dark else "black",
                )  # fmt: skip


def coloured_text(
    tokens: Sequence[str], colours: Sequence[str], notes: Sequence[str] = (), width: float = 9.0, size: int = 9
) -> None:
    """Draw tokens in boxes of these colours, line after line, each with a small note under it where there are notes."""
    letter, gap = 0.602 * size / 72, 0.09  # inches; DejaVu Sans Mono
    places, x, line = [], 0.0, 0
    for number, token in enumerate(tokens):
        wide = letter * max(len(token), 0.8 * len(notes[number]) if notes else 0)
        if x and x + wide > width:
            x, line = 0.0, line + 1
        places.append((x, line))
        x += wide + gap
    high = 0.42 if any(notes) else 0.25  # of a line
    height = high * (line + 1)
    fig = plt.figure(figsize=(width + 0.1, height), dpi=120)
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(-0.05, width + 0.05), ylim=(height, 0))
    ax.axis("off")
    for number, (token, colour, (x, line)) in enumerate(zip(tokens, colours, places, strict=True)):
        box = {"facecolor": colour, "edgecolor": "#dddddd", "linewidth": 0.5, "boxstyle": "square,pad=0.15"}
        style = {"family": "DejaVu Sans Mono", "va": "center"}
        ax.text(x, line * high + 0.12, token, fontsize=size, bbox=box, **style)
        if notes and notes[number]:
            ax.text(x, line * high + 0.31, notes[number], fontsize=0.8 * size, color="#222222", **style)
