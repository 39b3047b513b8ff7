"""CallChains: the calls through which TensorFlow inlined a graph, read from the text in `tensor_health.call_site`.

TensorFlow names an op of an inlined function `<calling op>/<op>`. For control flow, TensorFlow adds components of its
own: `while/body/_9/…`, `cond/then/_174/…`, `indexed_case/branch1/_74/…`. A call site is this path without the name of
the op. Names of ops may contain slashes, so the text alone does not show where one name ends. The recorded calls show
where each name ends.

Source: tensorflow/core/common_runtime/{inline_function_utils,lower_while_op,lower_if_op,lower_case_op}.cc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

LOOP = ("cond", "body")
"""Attributes of a calling op that hold the graphs of a loop."""
BRANCHES = ("then_branch", "else_branch", "branches")
"""Attributes of a calling op that hold a branch."""
_SUFFIXES = {"then_branch": "/then", "else_branch": "/else", "cond": "/cond", "body": "/body"}
_NUMBER = r"(?:/_\d+)?"
"""The number that TensorFlow may append to the call."""
_RENAMED = r"_\d+"
"""The suffix that TensorFlow appends to the name of a loop that it rebuilds for a gradient."""
_MAX_DEPTH = 64
"""Maximum depth of calls within calls. Only a hostile logdir exceeds this limit or the next limit."""
_MAX_TEXT = 20_000
"""Maximum number of characters of a call site."""


class CallingOp(Protocol):
    """An op that calls a graph: the columns of `graph_call` on which a call site depends."""

    @property
    def graph_id(self) -> int:
        """The graph of the op."""

    @property
    def op_name(self) -> str:
        """The name of the op."""

    @property
    def attribute(self) -> str:
        """The attribute that holds the function."""

    @property
    def branch_index(self) -> int:
        """The index of the branch."""


C = TypeVar("C", bound=CallingOp)


@dataclass(frozen=True)
class Level(Generic[C]):
    """One call in a chain of calls.

    Attributes:
        call: The calling op and the called graph.
        site: Call site of the calling op's graph.
        callee_site: Call site of the called graph.
    """

    call: C
    site: str
    callee_site: str

    @property
    def is_loop(self) -> bool:
        """Whether the called graph is a loop's body or condition."""
        return self.call.attribute in LOOP

    def is_of(self, other: Level[C]) -> bool:
        """Returns whether the same op makes both calls at the same call site. The called functions may differ."""
        one = (self.call.graph_id, self.call.op_name, self.site)
        return one == (other.call.graph_id, other.call.op_name, other.site)


class _Caller(NamedTuple, Generic[C]):
    """The call that leads to a graph (None for an outermost graph), and the number of renamed ops in the chain."""

    num_renamed: int
    call: C | None
    outer_site: str


class CallChains(Generic[C]):
    """Finds the chains of calls of one run.

    `while_1` may be an op of this name, or the renamed op `while`. The call sites inside such a loop fit both ops.
    `levels` returns the chain with the fewest renamed ops.

    Args:
        callers: Returns the calls that lead to a graph.
    """

    def __init__(self, callers: Callable[[int], Iterable[C]]) -> None:
        self._callers = callers
        self._caller_of: dict[tuple[int, str, int | None], _Caller[C] | None] = {}
        self._levels: dict[tuple[int, str, int | None], tuple[Level[C], ...] | None] = {}

    def levels(self, graph_id: int, site: str, *, root: int | None) -> tuple[Level[C], ...] | None:
        """Returns the calls from the outermost graph to a graph.

        Args:
            graph_id: The graph at the call site.
            site: The call site.
            root: The outermost graph; None if it is unknown.

        Returns:
            The levels, outermost first; an empty tuple for the outermost graph itself; None if no recorded calls fit
            the call site.
        """
        key = graph_id, site, root
        if key not in self._levels:
            self._levels[key] = self._chain(graph_id, site, root)
        return self._levels[key]

    def _chain(self, graph_id: int, site: str, root: int | None) -> tuple[Level[C], ...] | None:
        levels: list[Level[C]] = []
        while True:
            caller = self._caller(graph_id, site, root, depth=0)
            if caller is None:
                return None
            if caller.call is None:
                return tuple(reversed(levels))
            levels.append(Level(caller.call, caller.outer_site, site))
            graph_id, site = caller.call.graph_id, caller.outer_site

    def _caller(self, graph_id: int, site: str, root: int | None, *, depth: int) -> _Caller[C] | None:
        if not site:
            return _Caller(0, None, "") if root in (None, graph_id) else None
        if depth > _MAX_DEPTH or len(site) > _MAX_TEXT:
            return None
        key = graph_id, site, root
        if key not in self._caller_of:
            self._caller_of[key] = self._find_caller(graph_id, site, root, depth=depth)
        return self._caller_of[key]

    def _find_caller(self, graph_id: int, site: str, root: int | None, *, depth: int) -> _Caller[C] | None:
        best: _Caller[C] | None = None
        for is_renamed, renamed in enumerate(("", _RENAMED)):
            for call in self._callers(graph_id):
                pattern = f"(?:(.*)/)?{re.escape(call.op_name)}{renamed}{call_suffix(call)}{_NUMBER}"
                match = re.fullmatch(pattern, site, re.DOTALL)
                if match is None:
                    continue
                outer_site = match[1] or ""
                above = self._caller(call.graph_id, outer_site, root, depth=depth + 1)
                if above is not None and (best is None or above.num_renamed + is_renamed < best.num_renamed):
                    best = _Caller(above.num_renamed + is_renamed, call, outer_site)
        return best


def call_suffix(call: CallingOp) -> str:
    """Returns the text that follows the name of a calling op in a call site."""
    if call.attribute == "branches":
        return f"/branch{call.branch_index}"
    return _SUFFIXES.get(call.attribute, "")


def callee_pattern(site: str, call: CallingOp, *, is_renamed: bool = False) -> re.Pattern[str]:
    """Returns the pattern of the call sites of a callee.

    Args:
        site: The call site of the calling op's graph.
        call: The call.
        is_renamed: Whether TensorFlow renamed the calling op.
    """
    name = re.escape(join_site(site, call.op_name))
    return re.compile(f"{name}{_RENAMED if is_renamed else ''}{call_suffix(call)}{_NUMBER}")


def join_site(site: str, op_name: str) -> str:
    """Returns the call site of the graph that an op calls, as far as the op's name determines the call site."""
    return f"{site}/{op_name}" if site else op_name
