"""Test the number and the times of the repetitions of a failing action."""

from __future__ import annotations

import time

import pytest

from tfdbg_arrow.storage.retries import jittered, repeated


class Action:
    """Fails a number of times."""

    def __init__(self, num_failures: int, error: type[Exception] = OSError) -> None:
        self._left, self._error = num_failures, error
        self.num_calls = 0

    def __call__(self) -> int:
        self.num_calls += 1
        if self._left:
            self._left -= 1
            raise self._error(self.num_calls)
        return self.num_calls


def is_os_error(error: Exception) -> bool:
    return isinstance(error, OSError)


@pytest.mark.parametrize("num_failures", [0, 1, 2])
def test_an_action_is_repeated_until_it_succeeds(num_failures: int) -> None:
    assert repeated(Action(num_failures), attempts=3, may_pass=is_os_error) == num_failures + 1


@pytest.mark.parametrize("attempts", [1, 3])
def test_the_error_of_the_last_attempt_is_raised(attempts: int) -> None:
    action = Action(10)
    with pytest.raises(OSError, match=str(attempts)):
        repeated(action, attempts=attempts, may_pass=is_os_error)
    assert action.num_calls == attempts


def test_an_error_that_cannot_pass_is_raised_at_once() -> None:
    action = Action(1, ValueError)
    with pytest.raises(ValueError, match="1"):
        repeated(action, attempts=3, may_pass=is_os_error)
    assert action.num_calls == 1


def test_each_pause_is_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert repeated(Action(3), attempts=5, may_pass=is_os_error, first_pause_s=1.0) == 4
    assert len(pauses) == 3
    for number, pause in enumerate(pauses):
        assert 2**number / 2 <= pause <= 2**number


def test_without_a_pause_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits"))
    assert repeated(Action(1), attempts=2, may_pass=is_os_error) == 2


def test_random_delays_differ() -> None:
    delays = {jittered(2.0) for _ in range(10)}
    assert len(delays) > 1
    assert all(1.0 <= delay <= 2.0 for delay in delays)
