"""Test that blocks have the same words in a terminal, in HTML and as plain text, and are safe in each form."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from tfdbg_arrow.cli.output import print_blocks
from tfdbg_arrow.query.present.blocks import Block, Code, Drawing, Facts, Heading, Line, Table
from tfdbg_arrow.query.present.html import MAX_BYTES, html_of
from tfdbg_arrow.query.present.text import text_of

BLOCKS: tuple[Block, ...] = (
    Heading("first"),
    Line("a line", ("; --limit raises the limit", "option"), (".", "bold"), indent=2),
    Line(),
    Facts([("op", "Log"), ("tensor", "float32")]),
    Heading("second ", ("quietly", "quiet")),
    Code((Line("  x = 1"),)),
    Table(("name", "number"), [("a", "1"), (("bb", "bad"), "22")], num_numbers=1),
    Drawing("map_drawing", "no_such_function", None, (Line("no drawing"),)),
)


def printed(blocks: Sequence[Block], capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_blocks(blocks)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_terminal_shows_every_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(BLOCKS, capsys) == [
        "first",
        "  a line; --limit raises the limit.",
        "",
        "  op      Log",
        "  tensor  float32",
        "",
        "second quietly",
        "  x = 1",
        "name  number",
        "a          1",
        "bb        22",
        "no drawing",
    ]


def test_plain_text_has_the_same_words_without_options(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.replace("; --limit raises the limit", "") for line in printed(BLOCKS, capsys)]
    assert text_of(BLOCKS).split() == " ".join(lines).split()


def test_html_has_the_same_words_without_options() -> None:
    html = html_of(BLOCKS[:-1])
    words = re.sub(r"<[^>]*>", " ", html).replace("&nbsp;", " ").split()
    assert " ".join(words) == ("first a line . op Log tensor float32 second quietly x = 1 name number a 1 bb 22")
    assert "<pre" in html


@pytest.mark.parametrize("make", [lambda text: Line(text), lambda text: Table(("",), [(text,)])])
def test_texts_are_safe_everywhere(make: Callable[[str], Block], capsys: pytest.CaptureFixture[str]) -> None:
    block = make("a\tb\x1b[31m<b>")
    assert printed([block], capsys)[-1] == "a   b\\x1b[31m<b>"
    assert text_of([block]).splitlines()[-1] == "a   b\\x1b[31m<b>"
    assert "a   b\\x1b[31m&lt;b&gt;" in html_of([block])


def test_a_list_leaves_room_for_what_follows_and_says_what_is_left_out() -> None:
    html = html_of([*(Line(f"line {number}") for number in range(5000)), Heading("the end"), Line("last")])
    assert len(html.encode()) <= MAX_BYTES
    assert f"… {5000 - html.count('>line '):,} more lines" in html
    assert "the end" in html
    assert "last" in html
