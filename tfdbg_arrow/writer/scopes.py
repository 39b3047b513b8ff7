"""The scope of each thread's ops: a layer, a role, and the forward op whose gradient is being computed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tfdbg_arrow.safe_text import as_utf8
from tfdbg_arrow.spool.records import NO_VALUE
from tfdbg_arrow.writer.backend import Backend, EagerScope

FORWARD = "forward"
GRADIENT = "gradient"
OPTIMIZER = "optimizer"
LOSS = "loss"
METRIC = "metric"
INPUT = "input"


class Scope(NamedTuple):
    """The scope of ops. A NamedTuple, because each call of a layer makes a scope.

    Attributes:
        layer: Path of the layers and modules that are being called; None outside them.
        role: One of the roles above.
        forward_op: Graph id and name of the graph op whose gradient function runs; None if there is none.
        forward_execution: The execution whose gradient function runs; NO_VALUE if there is none.
        owner: id() of the innermost layer or module; 0 if there is none.
        part_stack: The stack where the innermost part of Keras was made; NO_VALUE if there is no such part, or if its
            stack is unknown.
        is_of_pipeline: Whether a function of a tf.data pipeline is being traced, which TensorFlow calls by itself.
    """

    layer: str | None = None
    role: str = FORWARD
    forward_op: tuple[int, str] | None = None
    forward_execution: int = NO_VALUE
    owner: int = 0
    part_stack: int = NO_VALUE
    is_of_pipeline: bool = False


class ForwardOp(NamedTuple):
    """A graph op whose gradient is computed."""

    graph_id: int
    op_name: str
    layer: str | None


class Entered(NamedTuple):
    """The scope that was active before another scope was entered."""

    scope: Scope
    eager: EagerScope


class Graphs(Protocol):
    """Looks up the ops of graphs."""

    def forward_op(self, op: Any, /) -> ForwardOp | None:
        """Returns the ForwardOp of an op whose gradient is computed; None if the op's graph is not recorded."""

    def op_of_attrs(self, attrs: object, graph: Any, /) -> Any:
        """Returns the op that passed these attributes to a tape, from a graph or its outer graphs; None if unknown."""


class _Thread(threading.local):
    scope = Scope()


class Scopes:
    """The scopes of one recording; each thread has its own.

    Args:
        backend: Labels executions, and interns layers and roles.

    Attributes:
        graphs: Looks up the ops of graphs. Set it before a program runs: the describer of graphs needs the scopes, too.
        intern_stack: `(skip)`: returns the ID of the calling thread's stack; see Backend.intern_stack.
        enter_gradient: The fast path for the gradients of eager ops; see Backend.enter_gradient.
    """

    graphs: Graphs

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.intern_stack = backend.intern_stack
        self.enter_gradient = backend.enter_gradient
        self._thread = _Thread()
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}

    def current(self) -> Scope:
        """Returns the scope of the calling thread's ops."""
        eager = self._backend.current_scope()
        if not eager.is_gradient:
            return self._thread.scope
        return Scope(role=GRADIENT, layer=self._texts.get(eager.layer), forward_execution=eager.forward_execution)

    def here(self) -> Entered:
        """Returns the calling thread's current scope, as the argument for leave()."""
        return Entered(self._thread.scope, self._backend.current_scope())

    def enter(self, scope: Scope) -> None:
        """Enters a scope in the calling thread."""
        self._thread.scope = scope
        layer = 0 if scope.layer is None else self._id(scope.layer)
        self._backend.set_scope(layer, self._id(scope.role), scope.forward_execution, scope.part_stack)

    def leave(self, outer: Entered) -> None:
        """Restores the calling thread's scope, as here() returned it."""
        self._thread.scope = outer.scope
        self._backend.restore_scope(outer.eager)

    def in_layer(self, owner: object, name: str) -> Scope:
        """Returns the scope of a layer or module that is called now; a layer that calls itself keeps its scope."""
        scope = self.current()
        if scope.owner == id(owner):
            return scope
        name = as_utf8(name)
        return scope._replace(layer=name if scope.layer is None else f"{scope.layer}/{name}", owner=id(owner))

    def in_role(self, role: str) -> Scope:
        """Returns the scope for a role; within a gradient, everything remains part of the gradient."""
        scope = self.current()
        return scope if scope.role in (role, GRADIENT) else scope._replace(role=role)

    def of_graph_op(self, op: Any) -> Scope:
        """Returns the scope for the gradient of a graph op."""
        forward = self.graphs.forward_op(op)
        if forward is None:
            return Scope(role=GRADIENT)
        return Scope(role=GRADIENT, layer=forward.layer, forward_op=(forward.graph_id, forward.op_name))

    def of_taped_op(self, attrs: object, graph: Any) -> Scope:
        """Returns the scope for the gradient of a graph op that is on a gradient tape.

        Args:
            attrs: The same object that was passed to the tape.
            graph: The graph in which the gradient is computed; None in eager code.
        """
        op = None if graph is None else self.graphs.op_of_attrs(attrs, graph)
        return Scope(role=GRADIENT) if op is None else self.of_graph_op(op)

    def of_results(self, outputs: Sequence[Any]) -> Scope:
        """Returns the scope for the gradient of the function call or `tf.custom_gradient` that has made the tensors."""
        layer = self.current().layer
        if not outputs:
            return Scope(role=GRADIENT, layer=layer)
        execution_index = self._backend.execution_of(outputs[0])
        if execution_index != NO_VALUE or not hasattr(outputs[0], "graph"):
            return Scope(role=GRADIENT, layer=layer, forward_execution=execution_index)
        return self.of_graph_op(outputs[0].op)

    def _id(self, text: str) -> int:
        string_id = self._ids.get(text)
        if string_id is None:
            string_id = self._backend.intern_string(text)
            self._texts[string_id] = text
            self._ids[text] = string_id
        return string_id
