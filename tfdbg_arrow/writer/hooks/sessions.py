"""Hooks into the runs of TensorFlow's sessions, and adds our ops to their graphs.

| hook | purpose |
|---|---|
| `BaseSession.__init__` | changes the configuration so that TensorFlow calls our graph optimizer |
| `BaseSession._call_tf_sessionrun` | notes that a run begins, and adds our ops to its targets |
| `BaseSession._make_callable_from_options` | the same for a run that is prepared once and called often |
| `BaseSession.partial_run_setup` | reports that partial runs are not recorded |

A session runs an op only if a fetch or target needs it, so our ops become further targets of the run. Our ops take none
of the program's tensors, so the edges of the program's graph stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto as _ConfigProto
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.client import session as tf_session
from tensorflow.python.framework import ops as framework_ops

from tfdbg_arrow.schema.op_traits import Trait, types_with
from tfdbg_arrow.writer.graphs.node_defs import FEEDS, MARK, NEEDS, own_name
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import is_unobserved
from tfdbg_arrow.writer.own_frames import own_frames_left_out

TensorName = tuple[str, int]
"""The name of an op, and the index of its output."""
STRING = tf.string
new_tensor_id: Callable[[], int] = framework_ops.uid
"""Returns an ID that no eager tensor of the process has or will get."""
_ATTRIBUTE = "_tfdbg_arrow_attached"
_CONTROL_FLOW = types_with(Trait.BRANCHES | Trait.LOOPS | Trait.ENTERS | Trait.SWITCHES)
_AttrValue = tf.compat.v1.AttrValue


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
    """Takes the reports of the hooks. Only end_run() may raise an error, which stops the program."""

    def session_config(self, config: Any, /) -> Any:
        """Returns the ConfigProto to create a session with, given the program's ConfigProto or None."""

    def plan_run(self, session: Any, request: RunRequest, /) -> RunPlan | None:
        """Returns how to record runs with this request; None means that they are not recorded."""

    def begin_run(self, plan: RunPlan, values: Sequence[Any], /) -> int:
        """Records that a run begins; returns its execution index, or -1 if it is not recorded."""

    def end_run(
        self, plan: RunPlan, execution_index: int, values: Sequence[Any] | None, error_type: str | None, /
    ) -> None:
        """Records that the run returned the values of its fetches, or raised an error of the class with this name."""

    def note_partial_run(self) -> None:
        """Reports once that a partial run is not recorded."""


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
            with own_frames_left_out:
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
            feeds = sorted(
                ((_output_name(feed), value) for feed, value in feed_dict.items()), key=lambda named_feed: named_feed[0]
            )
            request = RunRequest(
                feeds=tuple(name for name, _ in feeds),
                fetches=tuple(map(_output_name, fetch_list)),
                targets=tuple(map(pywrap_tf_session.TF_OperationName, target_list)),
            )
            plan = observer.plan_run(session, request)
            with own_frames_left_out:
                if plan is None:
                    return original(session, *plain)
                own_token, targets = plan.token, [*target_list, *(op._c_op for op in plan.own_ops)]

                def run(token: Sequence[Any]) -> Any:
                    own_feeds = {own_token._as_tf_output(): value for value in token}
                    return original(session, options, {**feed_dict, **own_feeds}, fetch_list, targets, run_metadata)

                return self._observed(plan, [value for _, value in feeds], run)

        return call_tf_sessionrun

    def _make_callable(self, original: Any) -> Any:
        def make_callable_from_options(session: Any, callable_options: Any) -> Any:
            with own_frames_left_out:
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
            recorded = original(session, options)

            def call(*args: Any, **kwargs: Any) -> Any:
                """Runs with our ops during the recording, and without them afterwards."""
                with own_frames_left_out:
                    if not self.is_active or is_unobserved() or len(args) != len(plan.request.feeds):
                        return plain(*args, **kwargs)
                    return self._observed(plan, args, lambda token: recorded(*args, *token, **kwargs))

            return call

        return make_callable_from_options

    def _observed(self, plan: RunPlan, feeds: Sequence[Any], run: Callable[[Sequence[Any]], Any]) -> Any:
        """Records a run; `run` gets the value for the plan's token, or no value if the plan has no token."""
        execution_index = self.observer.begin_run(plan, feeds)
        values, error_type = None, None
        try:
            values = run(() if plan.token is None else (np.array(execution_index, np.int64),))
            return values
        except BaseException as error:
            error_type = type(error).__name__
            raise
        finally:
            self.observer.end_run(plan, execution_index, values, error_type)

    def _make_partial_run_setup(self, original: Any) -> Any:
        def partial_run_setup(session: Any, fetches: Any, feeds: Any = None) -> Any:
            if self.is_active and not is_unobserved():
                self.observer.note_partial_run()
            with own_frames_left_out:
                return original(session, fetches, feeds)

        return partial_run_setup


def _output_name(output: Any) -> TensorName:
    return pywrap_tf_session.TF_OperationName(output.oper), output.index


def _tensor_name(text: str) -> TensorName:
    name, _, slot = text.partition(":")
    return name, int(slot or 0)


def attach(owner: Any, generation: int, value: object) -> None:
    """Attaches a value of a recording to a graph or a session."""
    setattr(owner, _ATTRIBUTE, (generation, value))


def attached(owner: Any, generation: int) -> Any:
    """Returns the value that a recording attached to a graph or a session; None if there is none."""
    attachment = getattr(owner, _ATTRIBUTE, None)
    return attachment[1] if attachment is not None and attachment[0] == generation else None


def extend_session(session: Any) -> None:
    """Adds the new ops of a session's graph to the session's runtime."""
    session._extend_graph()


def has_loops_or_branches(graph: Any) -> bool:
    """Returns True if a graph has a loop or a branch, in either version of TensorFlow's control flow."""
    return any(op.type in _CONTROL_FLOW for op in graph.get_operations())


def is_reference(tensor: Any) -> bool:
    """Returns True if a tensor of a graph is a reference to a variable's memory, not a value."""
    return bool(tensor.dtype._is_ref_dtype)


def add_token(graph: Any, node: int, *, generation: int) -> tuple[Any, Any]:
    """Adds a Placeholder for the index of an execution, and the op that assigns the step to this execution.

    Args:
        graph: The graph; it may be finalized.
        node: The key of the token.
        generation: The number of the recording in this process.

    Returns:
        The tensor of the Placeholder, and the op.
    """
    attrs = {
        "dtype": _AttrValue(type=tf.int64.as_datatype_enum),
        "shape": _AttrValue(shape=tf.TensorShape([]).as_proto()),
    }
    token = _create_op(graph, "Placeholder", own_name("call"), [], attrs).outputs[0]
    attrs = {"node": _AttrValue(i=node), "generation": _AttrValue(i=generation)}
    return token, _create_op(graph, "TfdbgArrowCallToken", own_name(), [token], attrs)


def create_run_op(graph: Any, mark: int, *, needs: Sequence[str], feeds: Sequence[str], min_nodes: int) -> Any:
    """Adds the op that stands for a run; our optimizer makes this op wait for record ops that no other op needs.

    Args:
        graph: The graph; it may be finalized.
        mark: The value of our attribute for the graph.
        needs: The fetches and targets of the run.
        feeds: The fed tensors.
        min_nodes: A graph with fewer ops gets NoOps, because TensorFlow would not optimize it.
    """
    for _ in range(min_nodes - len(graph.get_operations())):
        _create_op(graph, "NoOp", own_name("padding"), [], {})
    attrs = {
        MARK: _AttrValue(i=mark),
        NEEDS: _AttrValue(s="\n".join(needs).encode()),
        FEEDS: _AttrValue(s="\n".join(feeds).encode()),
    }
    return _create_op(graph, "NoOp", own_name("run"), [], attrs)


def _create_op(graph: Any, op_type: str, name: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    """Adds an op outside of all scopes and loops of the graph, without op callbacks, even if the graph is finalized.

    An op whose inputs are in a loop or a branch runs there, regardless of its control flow context in Python.
    """
    node_def = tf.compat.v1.NodeDef(op=op_type, name=name)
    for key, value in attrs.items():
        node_def.attr[key].CopyFrom(value)
    with graph._mutation_lock():
        c_op = framework_ops._create_c_op(graph, node_def, inputs, [])
        op = framework_ops.Operation._from_c_op(c_op, graph)
        op._set_control_flow_context(None)
    return op
