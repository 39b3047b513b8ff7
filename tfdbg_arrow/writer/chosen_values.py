"""Chosen values: the ops whose tensors are kept whole while of all others only the health is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tfdbg_arrow.errors import SettingError

Choice = Callable[[str, str | None], bool]
"""`(op_type, op_name)`; the name is None for an eager op."""


@dataclass(frozen=True)
class ChosenValues:
    """Which ops were chosen.

    Attributes:
        text: The regular expression, or the name of the callable.
        chooses: Whether an op is among them. The user's own callable: it may raise.
    """

    text: str
    chooses: Choice


def parse_values(values: object) -> ChosenValues:
    """Returns the choice that the user means.

    Args:
        values: A regular expression that the name or the type of an op must match (`re.match`), or a callable that
            takes (op_type, op_name).

    Raises:
        SettingError: It is neither.
    """
    if isinstance(values, str | re.Pattern):
        try:
            pattern = re.compile(values)
            pattern.match("")
        except (re.error, TypeError) as error:
            raise SettingError(f"values is {values!r}, no regular expression of text: {error}") from error

        def matches(op_type: str, op_name: str | None) -> bool:
            return pattern.match(op_type) is not None or (op_name is not None and pattern.match(op_name) is not None)

        return ChosenValues(pattern.pattern, matches)
    if callable(values):
        chooses = values

        def calls(op_type: str, op_name: str | None) -> bool:
            return bool(chooses(op_type, op_name))

        return ChosenValues(str(getattr(values, "__qualname__", repr(values))), calls)
    raise SettingError(
        f"values is {values!r}; expected a regular expression of op names or types, or a callable that takes "
        "(op_type, op_name) and returns True or False"
    )
