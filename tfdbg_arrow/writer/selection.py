"""What the user selects: the training steps to record, and the ops whose tensors are kept completely."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

from tfdbg_arrow.errors import SettingError

_RANGE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(\d+)?)?")
_STEP = re.compile(r"-?\d+")
_EXPECTED = (
    "expected a number k for every k-th step, a range or slice, text such as '0:100,1000:,::10', or a list of these, "
    "in which a number means that single step"
)


@dataclass(frozen=True)
class StepRange:
    """Every `stride`-th step from `start` up to but not including `stop`; None means no bound.

    Without a start, the strides count from step 0.
    """

    start: int | None
    stop: int | None
    stride: int

    def covers(self, step: int) -> bool:
        """Returns whether the range contains a step."""
        if self.start is not None and step < self.start:
            return False
        if self.stop is not None and step >= self.stop:
            return False
        return (step - (self.start or 0)) % self.stride == 0

    def __str__(self) -> str:
        bounds = ":".join("" if bound is None else str(bound) for bound in (self.start, self.stop))
        return bounds if self.stride == 1 else f"{bounds}:{self.stride}"


@dataclass(frozen=True)
class Schedule:
    """The steps that are recorded, as the union of ranges.

    Attributes:
        ranges: The ranges, at least one.
    """

    ranges: tuple[StepRange, ...]

    def covers(self, step: int | None) -> bool:
        """Returns whether a step is recorded; events before the first mark (None) are always recorded."""
        return step is None or any(range_.covers(step) for range_ in self.ranges)

    def __str__(self) -> str:
        return ",".join(map(str, self.ranges))


def parse_schedule(steps: object) -> Schedule:
    """Parses the user's schedule.

    Args:
        steps: A number k for every k-th step from 0 on; a range or slice; text with `start:stop:stride` and single
            steps, separated by commas; or a list of ranges, slices, texts and single steps.

    Raises:
        SettingError: The value has another form, or covers no step.
    """
    if is_integer(steps):
        ranges: Iterable[StepRange] = [_checked(None, None, steps, given=steps)]
    elif isinstance(steps, list | tuple | set | frozenset):
        ranges = [range_ for entry in steps for range_ in _ranges_of(entry, given=steps)]
    else:
        ranges = _ranges_of(steps, given=steps)
    step_ranges = tuple(ranges)
    if not step_ranges:
        raise SettingError(f"steps is {steps!r}, which contains no step; {_EXPECTED}")
    return Schedule(step_ranges)


def _ranges_of(entry: object, *, given: object) -> list[StepRange]:
    if isinstance(entry, str):
        return [_parse_text(text.strip(), given=given) for text in entry.split(",")]
    if isinstance(entry, range):
        if entry.step < 0:
            entry = entry[::-1]
        return [_checked(entry.start, entry.stop, entry.step, given=given)]
    if isinstance(entry, slice):
        return [_checked(entry.start, entry.stop, 1 if entry.step is None else entry.step, given=given)]
    if is_integer(entry):
        return [StepRange(entry, entry + 1, 1)]
    raise SettingError(f"steps is {given!r}, which contains {entry!r}; {_EXPECTED}")


def _parse_text(text: str, *, given: object) -> StepRange:
    if _STEP.fullmatch(text):
        return StepRange(int(text), int(text) + 1, 1)
    match = _RANGE.fullmatch(text)
    if match is None:
        raise SettingError(f"steps is {given!r}, which contains {text!r}; {_EXPECTED}")
    start, stop, stride = (None if group is None else int(group) for group in match.groups())
    return _checked(start, stop, 1 if stride is None else stride, given=given)


def _checked(start: Any, stop: Any, stride: Any, *, given: object) -> StepRange:
    if not all(bound is None or is_integer(bound) for bound in (start, stop)) or not is_integer(stride) or stride < 1:
        raise SettingError(f"steps is {given!r}; every bound must be an integer, and every stride an integer from 1 on")
    if start is not None and stop is not None and start >= stop:
        raise SettingError(f"steps is {given!r}, which has no step from {start} to before {stop}; {_EXPECTED}")
    return StepRange(start, stop, stride)


def is_integer(value: object) -> TypeGuard[int]:
    """Returns whether a setting is an integer; a bool does not count as one."""
    return isinstance(value, int) and not isinstance(value, bool)


Choice = Callable[[str, str | None], bool]
"""A function of (op_type, op_name); the name is None for an eager op."""


@dataclass(frozen=True)
class ChosenValues:
    """The choice of ops.

    Attributes:
        text: The regular expression, or the name of the callable.
        chooses: Returns whether an op is chosen. The function may call the user's callable, which can raise an error.
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
