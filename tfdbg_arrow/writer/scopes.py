"""What the ops of each thread belong to: a layer, a role, and the forward op whose gradient is being computed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from tfdbg_arrow.spool.records import NO_VALUE
from tfdbg_arrow.writer.stacks import as_utf8

FORWARD = "forward"
GRADIENT = "gradient"
OPTIMIZER = "optimizer"
LOSS = "loss"
METRIC = "metric"
INPUT = "input"


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What ops belong to.

    Attributes:
        layer: Path of the layers and modules that are being called; None outside them.
        role: One of the roles above.
        forward_op: Graph id and name of the graph op whose gradient function runs; None for none.
        forward_execution: The execution whose gradient function runs; NO_VALUE for none.
        owner: id() of the innermost layer or module, 0 for none.
    """

    layer: str | None = None
    role: str = FORWARD
    forward_op: tuple[int, str] | None = None
    forward_execution: int = NO_VALUE
    owner: int = 0


class ForwardOp(NamedTuple):
    """A graph op whose gradient is computed."""

    graph_id: int
    op_name: str
    layer: str | None


class EagerScope(Protocol):
    """What executions belong to, as a backend knows it."""

    @property
    def layer(self) -> int:
        """The interned layer, 0 for none."""

    @property
    def forward_execution(self) -> int:
        """The execution whose gradient is computed, -1 for none."""

    @property
    def is_gradient(self) -> bool:
        """Whether enter_gradient() made it."""


class EagerScopes(Protocol):
    """The part of a backend that labels executions."""

    def set_scope(self, layer: int, role: int, forward_execution: int) -> None:
        """Says what the calling thread's ops belong to from here on.

        Args:
            layer: Interned layer, 0 for none.
            role: Interned role, 0 for `forward`.
            forward_execution: The execution whose gradient is computed, -1 for none.
        """

    def enter_gradient(self, op_type: str, attrs: object) -> bool:
        """The calling thread runs the gradient function of an execution; returns whether that is known.

        Args:
            op_type: Its type.
            attrs: The very object that the op callback and the gradient tape were given.
        """

    def current_scope(self) -> EagerScope:
        """Returns what the calling thread's ops belong to."""

    def restore_scope(self, scope: Any) -> None:
        """Puts back what current_scope() gave."""

    def forget_forward(self, attrs: object) -> None:
        """Notes that these attributes are those of an op of a graph."""

    def execution_of(self, tensor: Any) -> int:
        """Returns the execution that made an eager tensor just now, -1 where that is not known."""


class Strings(Protocol):
    """Interns strings."""

    def intern_string(self, text: str) -> int:
        """Returns the id of a string."""


class ForwardOps(Protocol):
    """Knows the ops of graphs."""

    def forward_op(self, op: Any) -> ForwardOp | None:
        """Returns a graph op whose gradient is computed; None where its graph is not recorded."""

    def op_of_attrs(self, attrs: object, graph: Any) -> Any:
        """Returns the op of a graph, or of one around it, that gave a tape its attributes; None for none."""


class Entered(NamedTuple):
    """What was in force before a scope was entered."""

    scope: Scope
    eager: EagerScope


class _Thread(threading.local):
    scope = Scope()


class Scopes:
    """The scopes of one recording; each thread has its own.

    Args:
        eager: Labels executions.
        strings: Interns layers and roles.
        graphs: Knows the ops of graphs.
    """

    def __init__(self, eager: EagerScopes, *, strings: Strings, graphs: ForwardOps) -> None:
        self._eager = eager
        self._strings = strings
        self._graphs = graphs
        self._thread = _Thread()
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}

    def current(self) -> Scope:
        """Returns what the calling thread's ops belong to."""
        eager = self._eager.current_scope()
        if not eager.is_gradient:
            return self._thread.scope
        return Scope(role=GRADIENT, layer=self._texts.get(eager.layer), forward_execution=eager.forward_execution)

    def enter(self, scope: Scope) -> Entered:
        """The calling thread's ops belong to a scope from here on; returns what leave() puts back."""
        outer = Entered(self._thread.scope, self._eager.current_scope())
        self._thread.scope = scope
        layer = 0 if scope.layer is None else self._id(scope.layer)
        self._eager.set_scope(layer, self._id(scope.role), scope.forward_execution)
        return outer

    def leave(self, outer: Entered) -> None:
        """The calling thread's ops belong again to what they did before enter(), or enter_gradient()."""
        self._thread.scope = outer.scope
        self._eager.restore_scope(outer.eager)

    def enter_gradient(self, op_type: str, attrs: object) -> Entered | None:
        """The calling thread runs the gradient function of an execution; returns what leave() puts back.

        The quick way for eager ops. Returns None, and does nothing, where the execution is not known.

        Args:
            op_type: The execution's type.
            attrs: The very object that the tape was given.
        """
        outer = self._eager.current_scope()
        return Entered(self._thread.scope, outer) if self._eager.enter_gradient(op_type, attrs) else None

    def in_layer(self, owner: object, name: str) -> Scope:
        """Returns the scope of a layer or module that is called here; one that calls itself stays where it is."""
        scope = self.current()
        if scope.owner == id(owner):
            return scope
        name = as_utf8(name)
        return replace(scope, layer=name if scope.layer is None else f"{scope.layer}/{name}", owner=id(owner))

    def in_role(self, role: str) -> Scope:
        """Returns the scope of what has a role here. Within a gradient everything is part of it."""
        scope = self.current()
        return scope if scope.role in (role, GRADIENT) else replace(scope, role=role)

    def of_graph_op(self, op: Any) -> Scope:
        """Returns the scope of the gradient of a graph op."""
        found = self._graphs.forward_op(op)
        if found is None:
            return Scope(role=GRADIENT)
        return Scope(role=GRADIENT, layer=found.layer, forward_op=(found.graph_id, found.op_name))

    def of_taped_op(self, attrs: object, graph: Any) -> Scope:
        """Returns the scope of the gradient of an op of a graph that is on a gradient tape.

        Args:
            attrs: The very object that the tape was given.
            graph: The graph in which the gradient is computed; None in eager code.
        """
        op = None if graph is None else self._graphs.op_of_attrs(attrs, graph)
        return Scope(role=GRADIENT) if op is None else self.of_graph_op(op)

    def of_results(self, outputs: Sequence[Any]) -> Scope:
        """Returns the scope of the gradient of what just made some tensors: a function call, or a custom gradient."""
        layer = self.current().layer
        if not outputs:
            return Scope(role=GRADIENT, layer=layer)
        execution_index = self._eager.execution_of(outputs[0])
        if execution_index != NO_VALUE or not hasattr(outputs[0], "graph"):
            return Scope(role=GRADIENT, layer=layer, forward_execution=execution_index)
        return self.of_graph_op(outputs[0].op)

    def _id(self, text: str) -> int:
        known = self._ids.get(text)
        if known is None:
            known = self._ids[text] = self._strings.intern_string(text)
            self._texts[known] = text
        return known
