"""Figures of matplotlib without a display, and as SVG that stands inside a page. matplotlib is imported where
something is drawn."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of Okabe and Ito, whom colour-blind people tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_DPI = 110
# What has to differ on a dark page, by the names in base/page.py.
_SHADES = {"#000000": "currentColor", "#222222": "currentColor", "#ffffff": "var(--card)"}
_SHADES |= {"#d55e00": "var(--alarm)", "#a04000": "var(--alarm)"}
_SHADES |= {"#dddddd": "var(--band)", "#cccccc": "var(--band)"}


def new_figure(size: tuple[float, float]) -> Figure:
    """Inches."""
    # Without pyplot, which keeps figures and picks a display for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def literal(text: str) -> str:
    """The text as a label: no formula between dollars, one line, nothing that SVG cannot have, and no "_" at
    its beginning, which a legend takes for "leave this out"."""
    text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return ("./" if text.startswith("_") else "") + text.replace("$", r"\$")


def as_svg(figure: Figure, prefix: str) -> str:
    """An <svg> element for a page. `prefix`: of its ids, which no other element of the page has."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]  # without declaration and DTD
    text = re.sub(r"<style.*?</style>", "", text, count=1, flags=re.DOTALL)  # it would hold everywhere
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    shades = re.compile("|".join(_SHADES), re.IGNORECASE)
    text = re.sub(
        r'style="[^"]*"', lambda style: shades.sub(lambda hit: _SHADES[hit[0].lower()], style[0]), text
    )
    width = round(96 * figure.get_figwidth())  # CSS pixels; a page takes what it has of them
    size = f'style="max-width: {round(1.25 * width)}px; min-width: {round(0.6 * width)}px"'
    return text.replace("<svg", f"<svg {size}", 1).strip()
