"""Text out of a logdir, made fit to be shown: what would act on a terminal or a page's direction is escaped.

What a logdir holds is untrusted: file names, op names and source lines can carry control sequences.
"""

from __future__ import annotations

import unicodedata

_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""Returns a text with control and format characters escaped, as `\x1b`, `\n`, `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if unicodedata.category(character) not in _UNPRINTABLE else _escape(character) for character in text
    )


def printable_line(text: str) -> str:
    """Returns a line of source as `printable` does, its tabs as spaces."""
    return printable(text.expandtabs(4))


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
