"""Hooks into the runs of TensorFlow's sessions.

| hook | purpose |
|---|---|
| `BaseSession.__init__` | changes the configuration so that TensorFlow calls our graph optimizer |
| `BaseSession._call_tf_sessionrun` | notes that a run begins, and adds our ops to its targets |
| `BaseSession._make_callable_from_options` | the same for a run that is prepared once and called often |
| `BaseSession.partial_run_setup` | reports that partial runs are not recorded |

A session runs an op only if a fetch or target needs it, so our ops become further targets of the run. They take none of
the program's tensors, so the edges of the program's graph stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tensorflow.core.protobuf.config_pb2 import ConfigProto as _ConfigProto
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.client import session as tf_session

from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import is_unobserved

TensorName = tuple[str, int]
"""Name of an op, and the index of the output."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The feeds, fetches and targets of a run of a session.

    Attributes:
        feeds: The tensors whose values are given, ordered by name.
        fetches: The tensors whose values are returned.
        targets: Names of the ops that run without a result.
    """

    feeds: tuple[TensorName, ...]
    fetches: tuple[TensorName, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """How to record runs with one request.

    Attributes:
        function_name: The name of the runs, which is the op type of their executions.
        request: The request.
        own_ops: The ops to add to the run.
        token: The Placeholder that is fed with the execution's index. None if no tensor of the run is recorded.
        run_op: Name of the op in `own_ops` that our optimizer looks for. None if no tensor of the run is recorded.
        feed_dtypes: Dtypes of the fed tensors.
        fetch_dtypes: Dtypes of the fetched tensors.
    """

    function_name: str
    request: RunRequest
    own_ops: tuple[Any, ...]
    token: Any
    run_op: str | None
    feed_dtypes: tuple[Any, ...]
    fetch_dtypes: tuple[Any, ...]


class SessionObserver(Protocol):
    """Takes the reports of the hooks. Only end_run() may raise an error, the one that stops the program."""

    def session_config(self, config: Any) -> Any:
        """Returns the ConfigProto to create a session with, given the program's ConfigProto or None."""

    def plan_run(self, session: Any, request: RunRequest) -> RunPlan | None:
        """Returns how to record runs with this request; None means that they are not recorded."""

    def begin_run(self, plan: RunPlan, values: Sequence[Any]) -> int:
        """Records that a run begins; returns its execution index, or -1 if it is not recorded."""

    def end_run(
        self, plan: RunPlan, execution_index: int, values: Sequence[Any] | None, error_type: str | None
    ) -> None:
        """Records that the run returned the values of its fetches, or raised an error of the class with this name."""

    def note_partial_run(self) -> None:
        """Notes that a partial run is set up."""


class SessionHooks:
    """The hooks of one recording into sessions.

    Args:
        observer: Takes the reports of the hooks.

    Attributes:
        observer: As given.
        is_active: Whether the recording is active.
    """

    def __init__(self, observer: SessionObserver) -> None:
        self.observer = observer
        self._patches = Patches()
        self.is_active = False

    def install(self) -> None:
        """Installs the hooks."""
        self.is_active = True
        session = tf_session.BaseSession
        self._patches.put(session, "__init__", self._make_init)
        self._patches.put(session, "_call_tf_sessionrun", self._make_run)
        self._patches.put(session, "_make_callable_from_options", self._make_callable)
        self._patches.put(session, "partial_run_setup", self._make_partial_run_setup)

    def remove(self) -> None:
        """Removes the hooks; sessions continue without recording."""
        self.is_active = False
        self._patches.remove()

    def _make_init(self, original: Any) -> Any:
        def initialize(session: Any, target: Any, graph: Any = None, config: Any = None) -> None:
            if self.is_active and not is_unobserved() and not target and isinstance(config, _ConfigProto | None):
                config = self.observer.session_config(config)
            original(session, target, graph, config)

        return initialize

    def _make_run(self, original: Any) -> Any:
        observer = self.observer

        def call_tf_sessionrun(
            session: Any,
            options: Any,
            feed_dict: Mapping[Any, Any],
            fetch_list: Sequence[Any],
            target_list: Sequence[Any],
            run_metadata: Any,
        ) -> Any:
            plain = (options, feed_dict, fetch_list, target_list, run_metadata)
            if not self.is_active or is_unobserved():
                return original(session, *plain)
            feeds = sorted(((_output_name(feed), value) for feed, value in feed_dict.items()), key=lambda item: item[0])
            request = RunRequest(
                feeds=tuple(name for name, _ in feeds),
                fetches=tuple(map(_output_name, fetch_list)),
                targets=tuple(map(pywrap_tf_session.TF_OperationName, target_list)),
            )
            plan = observer.plan_run(session, request)
            if plan is None:
                return original(session, *plain)
            execution_index = observer.begin_run(plan, [value for _, value in feeds])
            values, error_type = None, None
            try:
                targets = [*target_list, *(op._c_op for op in plan.own_ops)]
                if plan.token is not None:
                    feed_dict = {**feed_dict, plan.token._as_tf_output(): np.array(execution_index, np.int64)}
                values = original(session, options, feed_dict, fetch_list, targets, run_metadata)
                return values
            except BaseException as error:
                error_type = type(error).__name__
                raise
            finally:
                observer.end_run(plan, execution_index, values, error_type)

        return call_tf_sessionrun

    def _make_callable(self, original: Any) -> Any:
        def make_callable_from_options(session: Any, callable_options: Any) -> Any:
            plain = original(session, callable_options)
            if not self.is_active or is_unobserved():
                return plain
            request = RunRequest(
                feeds=tuple(map(_tensor_name, callable_options.feed)),
                fetches=tuple(map(_tensor_name, callable_options.fetch)),
                targets=tuple(callable_options.target),
            )
            plan = self.observer.plan_run(session, request)
            if plan is None:
                return plain
            options = type(callable_options)()
            options.CopyFrom(callable_options)
            options.target.extend(op.name for op in plan.own_ops)
            if plan.token is not None:
                options.feed.append(plan.token.name)
            return _ObservedCallable(self, plan, plain=plain, recorded=original(session, options))

        return make_callable_from_options

    def _make_partial_run_setup(self, original: Any) -> Any:
        def partial_run_setup(session: Any, fetches: Any, feeds: Any = None) -> Any:
            if self.is_active and not is_unobserved():
                self.observer.note_partial_run()
            return original(session, fetches, feeds)

        return partial_run_setup


class _ObservedCallable:
    """A prepared run. During the recording it runs with our ops, and afterwards without them."""

    def __init__(self, hooks: SessionHooks, plan: RunPlan, *, plain: Any, recorded: Any) -> None:
        self._hooks, self._plan = hooks, plan
        self._plain, self._recorded = plain, recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hooks, plan = self._hooks, self._plan
        if not hooks.is_active or is_unobserved() or len(args) != len(plan.request.feeds):
            return self._plain(*args, **kwargs)
        execution_index = hooks.observer.begin_run(plan, args)
        values, error_type = None, None
        try:
            token = () if plan.token is None else (np.array(execution_index, np.int64),)
            values = self._recorded(*args, *token, **kwargs)
            return values
        except BaseException as error:
            error_type = type(error).__name__
            raise
        finally:
            hooks.observer.end_run(plan, execution_index, values, error_type)


def _output_name(output: Any) -> TensorName:
    return pywrap_tf_session.TF_OperationName(output.oper), output.index


def _tensor_name(text: str) -> TensorName:
    name, _, slot = text.partition(":")
    return name, int(slot or 0)
