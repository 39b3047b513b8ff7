"""Runtime functions without record ops, which run in place of the recorded ones while recording is paused.

A record op that returns at once still has a cost: TensorFlow schedules it, cannot fuse across its input tensor, and
cannot reuse that tensor's memory. So a call in a step that is not recorded goes to a copy of the function without
record ops. The copy is made once, without tracing.

A copy has its own kernels. That would change the program if a kernel keeps a state, as TensorFlow's stateful random ops
do. So functions with such ops are not copied.

The copies stay when the recording ends, because another thread may be about to call one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from tfdbg_arrow.writer.graphs.node_defs import functions_of, runs_inline

SUFFIX = "_tfdbg_arrow_plain"
"""The suffix of the names of the copies."""

_STATE_IS_ELSEWHERE = frozenset(
    (
        *(
            "Assert",
            "Print",
            "PrintV2",
            "PyFunc",
            "EagerPyFunc",
            "Timestamp",
            "VarHandleOp",
            "TensorArrayV3",
            "StackV2",
        ),
        *("StatefulPartitionedCall", "If", "While", "Case"),
        *("SaveV2", "RestoreV2", "MergeV2Checkpoints", "ReadFile", "WriteFile"),
    )
)
"""Stateful ops whose kernels keep nothing from one run to the next."""


class FunctionLibrary(Protocol):
    """TensorFlow's runtime functions."""

    def function_def(self, name: str) -> Any:
        """Returns a copy of a function's FunctionDef."""

    def add_function_def(self, function_def: Any) -> None:
        """Adds a function."""

    def strip_function(self, function_def: Any) -> bool:
        """Removes all of our ops from a FunctionDef; returns True if there were any."""

    def keeps_state(self, op_type: str) -> bool:
        """Returns True if ops of this type are stateful and do not take a resource that holds the state."""


class PlainFunctions:
    """Makes the copies, for one recording.

    Args:
        library: Stores functions.
        on_error: `(function_name, error)`: called if a function could not be copied.
    """

    def __init__(self, library: FunctionLibrary, *, on_error: Callable[[str, object], None]) -> None:
        self._library = library
        self._on_error = on_error
        self._lock = threading.Lock()
        self._plain: dict[bytes, bytes] = {}
        self._made: set[str] = set()

    def name_of(self, function_name: bytes) -> bytes:
        """Returns the name of the copy of a function; its own name if it cannot be copied."""
        known = self._plain.get(function_name)
        if known is None:
            with self._lock:
                known = self._plain.get(function_name)
                if known is None:
                    known = self._plain[function_name] = self._copy(function_name.decode()).encode()
        return known

    def _copy(self, function_name: str) -> str:
        try:
            stripped = self._strip_all(function_name)
            if stripped is None:
                return function_name
            for name, function_def in stripped.items():
                if name + SUFFIX not in self._made:
                    _rename(function_def, set(stripped))
                    self._library.add_function_def(function_def)
                    self._made.add(name + SUFFIX)
        except Exception as error:
            self._on_error(function_name, error)
            return function_name
        return function_name + SUFFIX

    def _strip_all(self, function_name: str) -> dict[str, Any] | None:
        """Returns a function and all functions that run inline in it, without our ops.

        Returns None if one of them keeps a state, or if none of them has ops of ours.
        """
        found: dict[str, Any] = {}
        has_own = False
        waiting = [function_name]
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            function_def = found[name] = self._library.function_def(name)
            has_own |= self._library.strip_function(function_def)
            if "api_implements" in function_def.attr:  # TensorFlow may replace it by another function
                return None
            for node in function_def.node_def:
                if may_keep_state(node.op) and self._library.keeps_state(node.op):
                    return None
                if runs_inline(node.op):
                    waiting += [callee for _, _, callee in functions_of(node)]
        return found if has_own else None


def may_keep_state(op_type: str) -> bool:
    """Returns True if kernels of a stateful op of this type may keep something from one run to the next."""
    return op_type not in _STATE_IS_ELSEWHERE and "Dataset" not in op_type


def _rename(function_def: Any, names: set[str]) -> None:
    """Renames a FunctionDef and the copied functions that it calls to the names of the copies."""
    function_def.signature.name += SUFFIX
    for node in function_def.node_def:
        if not runs_inline(node.op):
            continue
        for value in node.attr.values():
            for func in (value.func, *value.list.func) if value.WhichOneof("value") in ("func", "list") else ():
                if func.name in names:
                    func.name += SUFFIX
