"""Test that text has a contrast of at least 4.5 to 1 to its backgrounds in both themes (WCAG 2.2, 1.4.3, AA)."""

from __future__ import annotations

import re

import pytest

from tfdbg_arrow.viewer.rendering import static_files

LEAST = 4.5
STYLE = static_files()["viewer.css"][0]
GROUNDS = {
    "text": ("bg", "card", "pill", "used", "lit", "bad-bg", "warn-bg", "good-bg"),
    "quiet": ("bg", "card", "pill", "used", "lit", "bad-bg"),
    "link": ("bg", "card", "pill", "used", "lit", "bad-bg"),
    "bad": ("bg", "card", "pill", "used", "lit", "bad-bg"),
    "warn": ("card", "warn-bg"),
    "good": ("card", "good-bg"),
    **dict.fromkeys(("t-k", "t-s", "t-c", "t-m", "t-f", "t-b"), ("card", "used", "lit", "bad-bg")),
}
"""The background colours of each text colour, by name."""


def colours(selector: str) -> dict[str, str]:
    """Returns the colour variables of a rule of viewer.css."""
    _, _, rule = STYLE.decode().partition(selector + " {")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", rule.partition("}")[0]))


def luminance(colour: str) -> float:
    """Returns the relative luminance, as WCAG defines it."""
    shares = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("selector", [":root", ':root[data-theme="dark"]'], ids=["light", "dark"])
@pytest.mark.parametrize("name", GROUNDS)
def test_the_contrast_of_text(selector: str, name: str) -> None:
    found = {**colours(":root"), **colours(selector)}
    low = {ground: round(contrast(found[name], found[ground]), 2) for ground in GROUNDS[name]}
    assert {ground: value for ground, value in low.items() if value < LEAST} == {}


def test_the_dark_theme_of_the_system_equals_the_chosen_dark_theme() -> None:
    assert colours(':root:not([data-theme="light"])') == colours(':root[data-theme="dark"]')


def test_the_contrast_of_black_on_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
