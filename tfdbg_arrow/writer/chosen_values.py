"""Chosen values: the ops whose tensors are kept completely, while only the health of all others is kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tfdbg_arrow.errors import SettingError

Choice = Callable[[str, str | None], bool]
"""A function of (op_type, op_name); the name is None for an eager op."""


@dataclass(frozen=True)
class ChosenValues:
    """The choice of ops.

    Attributes:
        text: The regular expression, or the name of the callable.
        chooses: Returns whether an op is chosen. It may call the user's callable, which can raise an error.
    """

    text: str
    chooses: Choice


def parse_values(values: object) -> ChosenValues:
    """Parses the user's choice of ops.

    Args:
        values: A regular expression that the name or the type of an op must match (`re.match`), or a callable that
            takes (op_type, op_name).

    Raises:
        SettingError: `values` is neither, or the regular expression is invalid.
    """
    if isinstance(values, str | re.Pattern):
        try:
            pattern = re.compile(values)
            pattern.match("")
        except (re.error, TypeError) as error:
            raise SettingError(
                f"values is {values!r}, which is not a valid regular expression for text: {error}"
            ) from error

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
