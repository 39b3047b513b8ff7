"""Makes text from a logdir safe to print: escapes control and format characters.

The content of a logdir is untrusted. File names, op names and source lines can contain control sequences that change a
terminal or the text direction of a page.
"""

from __future__ import annotations

import unicodedata

_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""Returns a text with control and format characters escaped, e.g. as `\x1b`, `\n`, `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if unicodedata.category(character) not in _UNPRINTABLE else _escape(character) for character in text
    )


def printable_line(text: str) -> str:
    """Returns a line of source code with tabs expanded, escaped as by `printable`."""
    return printable(text.expandtabs(4))


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
