"""Parameters of a URL, parsed into the types that a page expects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tfdbg_arrow.errors import QueryError

MAX_TEXT = 10_000
"""Maximum number of characters of a text."""
_MAX_INTEGER = 2**63 - 1


class Parameters:
    """The parameters of one request. An empty parameter counts as not given.

    Args:
        values: The texts of the parameters, by name.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {name: text for name, text in (values or {}).items() if text.strip()}

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """The parameters in a fixed order, as a key that identifies the request."""
        return tuple(sorted(self._values.items()))

    def text(self, name: str) -> str | None:
        """Returns a text; None if it was not given."""
        text = self._values.get(name)
        if text is not None and len(text) > MAX_TEXT:
            raise QueryError(f"{name} has {len(text):,} characters, expected at most {MAX_TEXT:,}.")
        return text

    def needed(self, name: str) -> str:
        """Returns a text; raises a QueryError if it was not given."""
        text = self.text(name)
        if text is None:
            raise QueryError(f"the address has no {name}; add ?{name}=….")
        return text

    def integer(self, name: str) -> int | None:
        """Returns a non-negative integer; None if it was not given."""
        text = self._values.get(name)
        if text is None:
            return None
        text = text.strip().replace(",", "")
        if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > _MAX_INTEGER:
            raise QueryError(f"{name} is {text[:100]!r}, expected a whole number from 0 on.")
        return int(text)

    def integers(self, name: str) -> tuple[int, ...]:
        """Returns non-negative integers, separated by commas; an empty tuple if they were not given."""
        text = self.text(name) or ""
        found = [Parameters({name: one}).integer(name) for one in text.strip().strip("[]").split(",") if text]
        if None in found:
            raise QueryError(f"{name} is {text[:100]!r}, expected whole numbers from 0 on, separated by commas.")
        return tuple(number for number in found if number is not None)

    def choice(self, name: str, choices: Iterable[str]) -> str | None:
        """Returns a text that must be one of `choices`; None if it was not given."""
        text, known = self.text(name), tuple(choices)
        if text is not None and text not in known:
            raise QueryError(f"{name} is {text[:100]!r}, expected one of {', '.join(known)}.")
        return text

    def flag(self, name: str) -> bool:
        """Returns whether a switch is on: `1`."""
        return self.choice(name, ("0", "1")) == "1"
