"""Runs of TensorFlow's sessions.

| hook | why |
|---|---|
| `BaseSession._call_tf_sessionrun` | a run begins: record ops are added to what it is asked to run |
| `BaseSession._make_callable_from_options` | the same for a run that is prepared once and called often |
| `BaseSession.partial_run_setup` | is noted: a run in pieces is not recorded |
| `WrappedFunction.__init__` | a graph of graph mode becomes a function, of which only what its results need runs |

Nothing runs an op of a session's graph but a run that is asked for it, so record ops are handed to the runtime as
further targets of the run. They take tensors and give none: the user's graph keeps its tensors and its edges.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.client import session as tf_session
from tensorflow.python.eager import wrap_function

from tfdbg_arrow.writer.hooks.must_run import has_low_level_control_flow
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import is_unobserved

TensorName = tuple[str, int]
"""Name of an op, and which of its outputs."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run of a session is asked for.

    Attributes:
        feeds: The tensors whose values are given, in order of name.
        fetches: The tensors whose values are returned.
        targets: Names of the ops that run without a result.
    """

    feeds: tuple[TensorName, ...]
    fetches: tuple[TensorName, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """How runs with one request are recorded.

    Attributes:
        function_name: What the runs are called: the op type of their executions.
        request: The request.
        record_ops: The ops to run with it.
        token: The Placeholder that is fed with the execution's index; None: no record op knows it.
        run_op: Name of the op in `record_ops` that our optimizer looks for; None: the run is recorded as it was made.
        optimized_graphs: Ids of the graphs of called functions that are recorded if TensorFlow optimizes them.
        feed_dtypes: Dtypes of the fed tensors.
        fetch_dtypes: Dtypes of the fetched tensors.
    """

    function_name: str
    request: RunRequest
    record_ops: tuple[Any, ...]
    token: Any
    run_op: str | None
    optimized_graphs: frozenset[int]
    feed_dtypes: tuple[Any, ...]
    fetch_dtypes: tuple[Any, ...]


class SessionObserver(Protocol):
    """What the hooks tell a recording. Nothing of it may raise."""

    def plan_run(self, session: Any, request: RunRequest) -> RunPlan | None:
        """Returns how runs with a request are recorded; None: not at all."""

    def begin_run(self, plan: RunPlan, values: Sequence[Any]) -> int:
        """A run begins; returns its execution index, -1 for none."""

    def end_run(
        self, plan: RunPlan, execution_index: int, values: Sequence[Any] | None, error_type: str | None
    ) -> None:
        """The run has returned the values of its fetches, or raised an error of a class, by name."""

    def note_partial_run(self) -> None:
        """A run in pieces is set up."""


class SessionHooks:
    """The hooks of one recording into sessions.

    Args:
        observer: Is told of runs.

    Attributes:
        observer: The same.
        is_active: Whether the recording lasts.
    """

    def __init__(self, observer: SessionObserver) -> None:
        self.observer = observer
        self._patches = Patches()
        self.is_active = False

    def install(self) -> None:
        """Puts the hooks in place."""
        self.is_active = True
        session = tf_session.BaseSession
        self._patches.put(session, "_call_tf_sessionrun", self._make_run)
        self._patches.put(session, "_make_callable_from_options", self._make_callable)
        self._patches.put(session, "partial_run_setup", self._make_partial_run_setup)
        self._patches.put(wrap_function.WrappedFunction, "__init__", self._make_wrap)

    def remove(self) -> None:
        """Takes the hooks away; sessions run on without recording."""
        self.is_active = False
        self._patches.remove()

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
                targets = [*target_list, *(op._c_op for op in plan.record_ops)]
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
            options.target.extend(op.name for op in plan.record_ops)
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

    def _make_wrap(self, original: Any) -> Any:
        def initialize(function: Any, fn_graph: Any, *args: Any, **kwargs: Any) -> None:
            _wrapped_graphs.add(fn_graph)
            original(function, fn_graph, *args, **kwargs)

        return initialize


_wrapped_graphs: weakref.WeakSet[Any] = weakref.WeakSet()


def is_pruned(graph: Any) -> bool:
    """Returns whether only those ops of a function's graph run that its results need: it is one of graph mode.

    It was wrapped as a whole, or holds the loops and branches of graph mode.
    """
    return graph in _wrapped_graphs or has_low_level_control_flow(graph)


class _ObservedCallable:
    """A prepared run, as it is recorded while recording lasts and as it was asked for afterwards."""

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
