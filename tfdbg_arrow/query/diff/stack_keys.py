"""Stack keys: equal numbers for stacks with the same content in both runs, regardless of ids and line numbers."""

from __future__ import annotations

from tfdbg_arrow.query.logdir import Logdir

NO_STACK = -1


class StackKeys:
    """Assigns numbers to the stacks of two runs. Equal stacks get equal numbers.

    A frame is identified by its function and the text of its line, not by its line number, which edits above it change.

    Args:
        sides: The logdir and the run id of each side.
    """

    def __init__(self, sides: tuple[tuple[Logdir, str], ...]) -> None:
        numbers: dict[object, int] = {}
        self._whole: list[dict[int, int]] = []
        self._user: list[dict[int, int]] = []
        self._line: list[dict[int, int]] = []
        for logdir, run_id in sides:
            whole: dict[int, int] = {}
            users: dict[int, int] = {}
            lines: dict[int, int] = {}
            frames: list[tuple[str, str]] = []
            of_user: list[tuple[str, str]] = []
            rows = logdir.rows(
                "SELECT stack_trace_id, depth, func, coalesce(code, CAST(lineno AS VARCHAR)), owner FROM stack "
                "WHERE run_id = ? ORDER BY stack_trace_id, depth DESC",
                [run_id],
            )
            for stack_trace_id, depth, func, code, owner in rows:
                frames.append((func, code))
                if owner == "user":
                    of_user.append((func, code))
                if depth == 0:
                    whole[stack_trace_id] = numbers.setdefault(("stack", *frames), len(numbers))
                    users[stack_trace_id] = numbers.setdefault(("user", *of_user), len(numbers))
                    lines[stack_trace_id] = numbers.setdefault(("line", *of_user[-1:]), len(numbers))
                    frames, of_user = [], []
            self._whole.append(whole)
            self._user.append(users)
            self._line.append(lines)

    def whole(self, side: int, stack_trace_id: int | None) -> int:
        """Returns the number of a whole stack."""
        return NO_STACK if stack_trace_id is None else self._whole[side].get(stack_trace_id, NO_STACK)

    def user(self, side: int, stack_trace_id: int | None) -> int:
        """Returns the number of the part of a stack that belongs to the user."""
        return NO_STACK if stack_trace_id is None else self._user[side].get(stack_trace_id, NO_STACK)

    def line(self, side: int, stack_trace_id: int | None) -> int:
        """Returns the number of the user's innermost frame."""
        return NO_STACK if stack_trace_id is None else self._line[side].get(stack_trace_id, NO_STACK)
