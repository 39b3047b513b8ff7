"""Computes the slow answers of a page: in a thread, so that a page can show those that are ready, or in turn."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tfdbg_arrow.errors import TfdbgArrowError, TimeLimitError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.viewer.page import NoAnswerError, TookTooLongError

_LOG = logging.getLogger(__name__)
_MAX_KEPT = 500
"""Maximum number of answers that are kept."""
_CLOSE_S = 1.0
"""Seconds that the end of the server waits for the thread."""
WAIT_S = 0.5
"""How long a request waits for answers that are computed in the background, in seconds. Most answers are ready by
then."""
_LEAST_S = 0.05
"""With less time left, no computation is started."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class ReadyAnswers(Generic[_Result]):
    """The state of some answers: ready, pending or failed.

    Attributes:
        answers: The answers that are ready, by key. While a logdir grows, an answer may come from an earlier state of
            the logdir.
        pending: The keys whose answers are not ready for the current state of the logdir.
        failed: The keys whose answers could not be computed, for example because the time was up, with the reason.
    """

    answers: Mapping[Hashable, _Result]
    pending: tuple[Hashable, ...]
    failed: Mapping[Hashable, str]


@dataclass(frozen=True)
class _Kept:
    """An answer, or else the reason why there is none, and the logdir's state before the computation."""

    answer: object
    failure: str | None
    state: str


class Background:
    """Computes answers one after the other in a thread. The thread ends when there is nothing more to compute.

    Args:
        read: Takes a key and a function, and returns what the function reads from the logdir.
        state: Returns the state of the logdir.

    Attributes:
        left_s: The time that is left for all answers together, as in InTurn.
    """

    left_s = math.inf

    def __init__(
        self, read: Callable[[Hashable, Callable[[Logdir], object]], object], state: Callable[[], str]
    ) -> None:
        self._read = read
        self._state = state
        self._condition = threading.Condition()
        self._answers: dict[Hashable, _Kept] = {}
        self._queued: dict[Hashable, Callable[[Logdir], object]] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def close(self) -> None:
        """Stops computing answers, and waits briefly for the answer that is being computed."""
        with self._condition:
            self._is_closed = True
            self._queued.clear()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)

    def ready(self, wanted: Mapping[Hashable, Callable[[Logdir], _Result]], *, wait_s: float) -> ReadyAnswers[_Result]:
        """Returns the answers that are ready, and starts to compute the others.

        Args:
            wanted: The functions that compute the answers, by key. The most important function comes first. A key must
                always have the same function.
            wait_s: Maximum time to wait for answers that are not ready, in seconds.
        """
        end = time.monotonic() + wait_s
        state = self._state()
        with self._condition:
            # The answers of the newest request are computed first.
            missing = {key: compute for key, compute in wanted.items() if self._is_missing(key, state)}
            self._queued = {**missing, **self._queued}
            if self._queued and self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="background answers", daemon=True)
                self._thread.start()
            while any(self._is_missing(key, state) for key in wanted) and (left_s := end - time.monotonic()) > 0:
                self._condition.wait(left_s)
            computed = {key: self._answers[key] for key in wanted if key in self._answers}
            pending = tuple(key for key in wanted if self._is_missing(key, state))
        return ReadyAnswers(
            answers={key: one.answer for key, one in computed.items() if one.failure is None},  # type: ignore[misc]
            pending=pending,
            failed={
                key: one.failure for key, one in computed.items() if one.failure is not None and key not in pending
            },
        )

    def _is_missing(self, key: Hashable, state: str) -> bool:
        return key not in self._answers or self._answers[key].state != state

    def _run(self) -> None:
        while True:
            with self._condition:
                key = next(iter(self._queued), None)
                if key is None:
                    self._thread = None
                    return
                compute = self._queued.pop(key)
            computed = self._computed(key, compute)
            with self._condition:
                self._answers.pop(key, None)
                self._answers[key] = computed
                while len(self._answers) > _MAX_KEPT:
                    del self._answers[next(iter(self._answers))]
                self._condition.notify_all()

    def _computed(self, key: Hashable, compute: Callable[[Logdir], object]) -> _Kept:
        state = self._state()
        try:
            return _Kept(self._read(key, compute), None, state)
        except TfdbgArrowError as error:  # such as a time limit; the page names the failed answers
            _LOG.debug("%r could not be computed", key, exc_info=error)
            return _Kept(None, str(error), state)
        except Exception as error:  # a defect must not end the thread
            _LOG.error("%r could not be computed", key, exc_info=error)
            return _Kept(None, "an error occurred; the log of the viewer has it", state)


class SinceRequest:
    """The background for one request. It waits only for what is left of a time that began with the request.

    Args:
        background: The background.
        began: When the request began, as `time.monotonic`.

    Attributes:
        left_s: The time that is left for all answers together, as in InTurn.
    """

    left_s = Background.left_s

    def __init__(self, background: Background, *, began: float) -> None:
        self._background = background
        self._began = began

    def ready(self, wanted: Mapping[Hashable, Callable[[Logdir], _Result]], *, wait_s: float) -> ReadyAnswers[_Result]:
        """Returns the answers, as Background does; `wait_s` counts from the beginning of the request."""
        return self._background.ready(wanted, wait_s=self._began + wait_s - time.monotonic())


class InTurn:
    """Computes answers at once, one after the other, until the time is up. It keeps them, as Background does.

    Args:
        logdir: The logdir; only one thread may use it at a time.
        budget_s: Time limit for all answers together, in seconds.
    """

    def __init__(self, logdir: Logdir, *, budget_s: float) -> None:
        self._logdir = logdir
        self._end = time.monotonic() + budget_s
        self._answers: dict[Hashable, Any] = {}

    @property
    def left_s(self) -> float:
        """Time that is left for all answers together, in seconds."""
        return max(_LEAST_S, self._end - time.monotonic())

    def ready(self, wanted: Mapping[Hashable, Callable[[Logdir], _Result]], *, wait_s: float) -> ReadyAnswers[_Result]:
        """Returns the answers, as Background does; `wait_s` has no effect."""
        failed: dict[Hashable, str] = {}
        for key, compute in wanted.items():
            if key in self._answers:
                continue
            try:
                if time.monotonic() > self._end - _LEAST_S:
                    raise TookTooLongError("the time was up.")
                with bounded(self._logdir, self.left_s):
                    self._answers[key] = compute(self._logdir)
            except (TookTooLongError, NoAnswerError) as error:
                failed[key] = str(error)
        answers = {key: self._answers[key] for key in wanted if key in self._answers}
        return ReadyAnswers(answers=answers, pending=(), failed=failed)


Answers = Background | SinceRequest | InTurn
"""Computes the slow answers of a page."""


@contextlib.contextmanager
def bounded(logdir: Logdir, timeout_s: float) -> Iterator[None]:
    """Limits the time of the logdir's queries in the body of a `with` statement.

    Args:
        logdir: The logdir; only one thread may use it at a time.
        timeout_s: Time limit for all queries together, in seconds.

    Raises:
        TookTooLongError: The queries took longer than `timeout_s`.
    """
    try:
        with logdir.within(timeout_s):
            yield
    except TimeLimitError as error:
        raise TookTooLongError(
            f"this took longer than {timeout_s:g} seconds and was stopped; narrow it down by run, step or op."
        ) from error
