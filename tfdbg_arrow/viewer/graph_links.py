"""Links from a page about a graph to its ops, to their tensors, and to other graphs."""

from __future__ import annotations

from collections.abc import Sequence

from tfdbg_arrow.query.display.graph_borders import Border, CalledGraph, Caller
from tfdbg_arrow.query.display.graph_runs import GraphRun
from tfdbg_arrow.query.display.graph_scopes import ROOT, ScopeGraph
from tfdbg_arrow.query.display.neighbourhood import MAX_DEPTH
from tfdbg_arrow.viewer.links import Links, Url
from tfdbg_arrow.viewer.pages.graph import DEFAULT_DEPTH, GraphView

_MAX_LINKED = 4000
"""Maximum number of characters of an op's name in an address."""


class GraphLinks:
    """Links to ops and graphs. The links keep the depth and the call that a page shows.

    Args:
        links: Links between pages.
        run_id: The run.
        view: The view that the page shows.
        run: The single run of the graph that the page shows; None if the page shows all runs of the graph.
    """

    def __init__(self, links: Links, run_id: str, view: GraphView, run: GraphRun | None) -> None:
        self._links = links
        self._run_id = run_id
        self._view = view
        self._run = run

    def op(self, op_name: str) -> Url | None:
        """Returns the link to an op of the graph; None if its name is too long for an address."""
        return self._to(op=op_name)

    def over_the_run(self, op_name: str) -> Url | None:
        """Returns the link to an op that shows its worst health over the whole run."""
        return self._to(op=op_name, event=None)

    def at(self, event_index: int | None, op_name: str | None = None) -> Url | None:
        """Returns the link to an op in the call of a tensor; without an op, to the tensor's own op."""
        return None if event_index is None else self._to(graph=None, op=op_name, event=event_index)

    def farther(self, *, up: int = 0, down: int = 0) -> Url | None:
        """Returns the link to the same op with a changed depth; None if the new depth is out of range."""
        wanted = (self._view.up + up, self._view.down + down)
        if not all(0 <= number <= MAX_DEPTH for number in wanted):
            return None
        return self._to(op=self._view.op_name, up=wanted[0], down=wanted[1])

    def control(self, is_shown: bool) -> Url | None:
        """Returns the link to the same view with or without control edges."""
        return self._to(op=self._view.op_name, control=None if is_shown else 0)

    def caller(self, caller: Caller) -> Url | None:
        """Returns the link to an op that calls the graph."""
        return self._to(graph=caller.graph_id, op=caller.op_name, event=None)

    def tensors(self, op_name: str) -> Url | None:
        """Returns the link to the list of an op's recorded tensors."""
        name = op_name if len(op_name) <= _MAX_LINKED else None
        return self._links.page("tensors", run=self._run_id, graph=self._view.graph_id, name=name)

    def graph(self, graph_id: int | None) -> Url | None:
        """Returns the link to the list of a graph's ops; None if `graph_id` is None."""
        return None if graph_id is None else self._links.page("graph", run=self._run_id, graph=graph_id)

    def unfolded(self, model: ScopeGraph, scope_id: int) -> Url | None:
        """Returns the link to the model graph with one more scope unfolded."""
        return self._scopes((*model.open_ids, scope_id))

    def folded(self, model: ScopeGraph, scope_id: int) -> Url | None:
        """Returns the link to the model graph with one scope and all scopes in it folded."""
        outer = {scope.scope_id: scope.outer_id for scope in model.open_scopes}
        closed = {scope_id}
        for open_id in outer:  # an inner scope comes after its outer scope
            if outer[open_id] in closed:
                closed.add(open_id)
        return self._scopes(tuple(open_id for open_id in model.open_ids if open_id not in closed))

    def _scopes(self, open_ids: Sequence[int]) -> Url | None:
        graph = {"run": self._run_id, "graph": self._view.graph_id}
        return self._links.page("graph", **graph, open=",".join(map(str, open_ids or (ROOT,))))

    def callee(self, call: CalledGraph, event_index: int | None = None) -> Url | None:
        """Returns the link into a called graph, to a certain call if `event_index` is given."""
        if event_index is not None:
            return self.at(event_index)
        if call.graph_id is None:
            return None
        return self._to(graph=call.graph_id, op=call.entry_op_name, event=None)

    def border(self, border: Border) -> Url | None:
        """Returns the link to the other side of a border, in the call that corresponds to the shown call."""
        event_index = None
        if self._run is not None and border.kind == "loop":
            event_index = self._run.previous_event_index if border.other_graph_id == self._run.graph_id else None
        elif self._run is not None and self._is_outer(border):
            event_index = self._run.outer_event_index
        op_name = border.other_op_name or border.caller_op_name
        return self._to(graph=border.other_graph_id, op=op_name, event=event_index)

    def _is_outer(self, border: Border) -> bool:
        run = self._run
        return run is not None and (border.caller_graph_id, border.caller_op_name) == (
            run.outer_graph_id,
            run.outer_op_name,
        )

    def _to(self, *, op: str | None, **changed: object) -> Url | None:
        if op is not None and len(op) > _MAX_LINKED:
            return None
        view = self._view
        shown: dict[str, object] = {
            "run": self._run_id,
            "graph": view.graph_id,
            "op": op,
            "event": view.event_index,
            "up": view.up,
            "down": view.down,
            "control": None if view.has_control else 0,
            **changed,
        }
        for name in ("up", "down"):
            shown[name] = None if shown[name] == DEFAULT_DEPTH else shown[name]
        return self._links.page("graph", **shown)
