"""The colours of maps and distributions: a scale for magnitudes, a scale for numbers around 0, colours for bad cells.

Each element of a drawing has two attributes for its colour. The attribute `fill` contains the light colour, because a
notebook has no style sheet. The attribute `class` selects the dark colour from the style sheet `colours.css`, which
pages and reports load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True, kw_only=True)
class Colours:
    """The colours on one background, light or dark.

    Attributes:
        sequential: The colours from the lowest to the greatest value. Their lightness changes evenly.
        diverging: The colours from negative values over 0 to positive values.
        bad: The colour of bad cells. No colour of the scales is similar to it.
        harmless: The colour of bad cells if no bad value of the run is known to have done harm. No colour of the
            scales is similar to it.
        zero: The colour of the cells of a map that are not bad, if the measure is 0 in all of them.
    """

    sequential: tuple[str, ...]
    diverging: tuple[str, ...]
    bad: str
    harmless: str
    zero: str


# Source of the sequential colours: seaborn's colour map mako.
LIGHT = Colours(
    sequential=("#def5e5", "#a9e1bd", "#60ceac", "#3eb4ad", "#348fa7", "#366da0", "#3b4a8a", "#403a72"),
    diverging=("#1f4e9c", "#5b8fd0", "#a9c6ea", "#f1f1ee", "#f0c48c", "#d98a2b", "#9c5a00"),
    bad="#b3173f",
    harmless="#857a6c",
    zero="#def5e5",
)
DARK = Colours(
    sequential=LIGHT.sequential,  # a colour has the same meaning on both backgrounds
    diverging=("#8fc1ff", "#4d86cf", "#2c4f80", "#2a2f37", "#7d5216", "#c27f22", "#ffc66e"),
    bad="#e04060",
    harmless=LIGHT.harmless,
    zero="#27503f",
)
BAD = "bad-cell"
"""The CSS class of bad cells."""
HARMLESS = "harmless-cell"
"""The CSS class of bad cells if no bad value of the run is known to have done harm."""
ZERO = "zero-cell"
"""The CSS class of the cells that are not bad, if the measure is 0 in all of them."""
_NUM_LEVELS = 24
"""Number of colours of a scale, minus one. Neighbouring colours are hard to tell apart."""


def colour_at(stops: Sequence[str], place: float) -> str:
    """Returns the colour at a position from 0 to 1 between evenly spaced colours."""
    at = place * (len(stops) - 1)
    index = min(int(at), len(stops) - 2)
    pairs = [(int(stops[index][c : c + 2], 16), int(stops[index + 1][c : c + 2], 16)) for c in (1, 3, 5)]
    return "#" + "".join(f"{round(one + (other - one) * (at - index)):02x}" for one, other in pairs)


def colour_class(place: float, *, is_diverging: bool = False) -> str:
    """Returns the CSS class of the colour at a position from 0 to 1 on a scale."""
    return f"{'diverging' if is_diverging else 'sequential'}-{round(place * _NUM_LEVELS)}"


def _fills(colours: Colours) -> dict[str, str]:
    scales = {"sequential": colours.sequential, "diverging": colours.diverging}
    levels = {
        f"{name}-{level}": colour_at(stops, level / _NUM_LEVELS)
        for name, stops in scales.items()
        for level in range(_NUM_LEVELS + 1)
    }
    return {**levels, BAD: colours.bad, HARMLESS: colours.harmless, ZERO: colours.zero}


_LIGHT_FILLS = _fills(LIGHT)


def paint(name: str) -> Markup:
    """Returns the attributes that give an element the colour of a CSS class."""
    return Markup(f'class="{name}" fill="{_LIGHT_FILLS[name]}"')


def style_sheet() -> str:
    """Returns the style sheet `colours.css`."""
    dark = [(name, fill) for name, fill in _fills(DARK).items()]
    chosen = "\n".join(f':root[data-theme="dark"] .{name} {{ fill: {fill}; }}' for name, fill in dark)
    preferred = "\n".join(f':root:not([data-theme="light"]) .{name} {{ fill: {fill}; }}' for name, fill in dark)
    return f"{chosen}\n@media (prefers-color-scheme: dark) {{\n{preferred}\n}}\n"
