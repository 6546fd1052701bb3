"""The pictures that several notebooks draw, in one style."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

plt.rcParams.update({"figure.dpi": 80, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY = "#2f6db5", "#d9730d", "#2e8b57", "#888888"


def heat_map(
    ax: Axes, values: Tensor, rows: Sequence[str], columns: Sequence[str], title: str = "", digits: int | None = 2
) -> None:
    """Draw (S, T) numbers as colours with words on the axes; the numbers are written in where there are few."""
    values = values.detach()
    low = min(0.0, values.min().item())
    bound = max(values.max().item(), -low)
    colours = "Blues" if low == 0 else "RdBu"
    ax.imshow(values, cmap=colours, vmin=low and -bound, vmax=bound, aspect="auto")
    ax.set_xticks(range(len(columns)), columns, rotation=45, ha="left", rotation_mode="anchor")
    ax.xaxis.tick_top()
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title, loc="left", y=-0.14, fontsize=9)
    if digits is not None and values.numel() <= 100:
        for row, numbers in enumerate(values.tolist()):
            for column, number in enumerate(numbers):
                is_dark = abs(number) > 0.6 * bound
                ax.text(
                    column, row, f"{number:.{digits}f}", ha="center", va="center", fontsize=7,
                    color="white" if is_dark else "black",
                )  # fmt: skip
