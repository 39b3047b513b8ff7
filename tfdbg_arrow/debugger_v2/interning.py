"""The distinct messages of a dump's events, as tables of numbers for look-ups with NumPy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.debugger_v2.definitions import Definitions
from tfdbg_arrow.debugger_v2.health import TensorFacts, execution_facts, tensor_facts

Ints = npt.NDArray[np.int64]

NONE = -1
"""The number that stands for NULL in integer tables."""
_FUNCTION = re.compile(r"__(?:inference|forward|backward)_(?P<name>.+)_\d+")
"""Runtime names of functions. Source: tensorflow/python/eager/polymorphic_function/function_type_utils.py."""


class Growing:
    """A growing table of integers."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[tuple[int, ...]] = []
        self._array: Ints = np.empty((0, width), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows) + len(self._array)

    def add(self, *row: int) -> int:
        """Adds a row and returns its index."""
        self._rows.append(row)
        return len(self) - 1

    def array(self) -> Ints:
        """Returns the rows as an array of shape (rows, width)."""
        if self._rows:
            new = np.array(self._rows, dtype=np.int64).reshape(-1, self._width)
            self._array = np.concatenate([self._array, new])
            self._rows.clear()
        return self._array


@dataclass(frozen=True)
class TemplateColumns:
    """Columns of the table of templates."""

    kind: int = 0
    """One of EXECUTION, TRACE, OTHER."""
    op_type: int = 1
    graph: int = 2
    """For an execution, the called graph; for a trace, the graph that contains the op."""
    root: int = 3
    """For a trace, the outermost graph around its op; for a call of an unknown graph, NONE."""
    name: int = 4
    """For a trace, the name of its outermost graph; for a call of an unknown graph, the function's name."""
    num_outputs: int = 5
    stack: int = 6
    op_name: int = 7
    device: int = 8
    """For an execution, the device of all its outputs; NONE if the outputs are on several devices."""
    first_tensor: int = 9
    """Index of the template's first row in `tensors`."""
    num_tensors: int = 10
    first_device: int = 11
    """For an execution, the index of its outputs' devices in `output_devices`."""
    num_devices: int = 12


T = TemplateColumns()
EXECUTION, TRACE, OTHER = 0, 1, 2


@dataclass(frozen=True)
class TensorColumns:
    """Columns of the table of the templates' TensorProtos."""

    mode: int = 0
    """The TensorDebugMode; NONE for a TensorProto without measurements."""
    slot: int = 1
    dtype: int = 2
    facts: int = 3
    """Index in `facts`."""


P = TensorColumns()


class Templates:
    """Interprets the messages of events.

    Args:
        definitions: The definitions that the messages refer to.
    """

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self.templates = Growing(len(TemplateColumns.__dataclass_fields__))
        self.tensors = Growing(len(TensorColumns.__dataclass_fields__))
        self.output_devices = Growing(1)
        self.facts: list[TensorFacts] = []
        self.texts: dict[str, int] = {}
        """The number of each distinct text, counted from 0."""
        self.first_mode: int | None = None

    def intern(self, event: Any) -> int:
        """Adds a message without holes and returns its index in `templates`."""
        if event.HasField("execution"):
            return self._execution(event.execution)
        if event.HasField("graph_execution_trace"):
            return self._trace(event.graph_execution_trace)
        return self._add(kind=OTHER)

    def _execution(self, execution: Any) -> int:
        definitions = self._definitions
        self._note_mode(execution.tensor_debug_mode)
        # The ids are holes. All records of a template have the same number of output ids.
        facts = execution_facts(execution, num_output_ids=execution.num_outputs)
        graph_id = definitions.graph_ids.get(execution.graph_id) if execution.graph_id else None
        function = _FUNCTION.fullmatch(execution.op_type)
        if graph_id is not None:
            definitions.add_function(execution.op_type, graph_id)
        elif execution.graph_id:
            definitions.problems.note("failed", "graph", "is called, but not among the dump's graphs", None)
        stack = definitions.stack_id(execution.code_location)
        devices = list(execution.output_tensor_device_ids)
        first_device = len(self.output_devices)
        for device in devices:
            self.output_devices.add(device)
        is_unnamed = graph_id is None and function is not None
        return self._add(
            kind=EXECUTION,
            op_type=self._text(execution.op_type),
            graph=NONE if graph_id is None else graph_id,
            root=NONE if graph_id is None else definitions.outermost(graph_id),
            name=self._text(function["name"] if is_unnamed and function is not None else None),
            num_outputs=execution.num_outputs,
            stack=NONE if stack is None else stack,
            device=devices[0] if len(set(devices)) == 1 else NONE,
            tensors=facts,
            first_device=first_device,
            num_devices=len(devices),
        )

    def _trace(self, trace: Any) -> int:
        definitions = self._definitions
        self._note_mode(trace.tensor_debug_mode)
        graph_id = definitions.graph_ids.get(trace.tfdbg_context_id)
        root = None if graph_id is None else definitions.outermost(graph_id)
        if graph_id is None:
            definitions.problems.note("failed", "graph", "has tensors, but is not among the dump's graphs", None)
        op_type = None if graph_id is None else definitions.op_types.get((graph_id, trace.op_name))
        if graph_id is not None and op_type is None:
            definitions.problems.note("failed", "graph op", "has tensors, but is not among the dump's graphs", None)
        facts: Sequence[TensorFacts | None] = ()
        if trace.HasField("tensor_proto"):
            mode = trace.tensor_debug_mode
            facts = (tensor_facts(trace.tensor_proto, mode=mode, output_slot=trace.output_slot),)
        device = definitions.device_id(trace.device_name)
        return self._add(
            kind=TRACE,
            op_type=self._text(op_type),
            graph=NONE if graph_id is None else graph_id,
            root=NONE if root is None else root,
            name=self._text(None if root is None else definitions.graph_names.get(root)),
            num_outputs=trace.output_slot,
            op_name=self._text(trace.op_name),
            device=NONE if device is None else device,
            tensors=facts,
        )

    def _add(self, *, tensors: Sequence[TensorFacts | None] = (), **columns: int) -> int:
        first = len(self.tensors)
        for facts in tensors:
            if facts is None:
                self.tensors.add(NONE, NONE, NONE, NONE)
                continue
            self.facts.append(facts)
            slot = NONE if facts.output_slot is None else facts.output_slot
            self.tensors.add(facts.mode, slot, self._text(facts.dtype), len(self.facts) - 1)
        columns.update(first_tensor=first, num_tensors=len(tensors))
        return self.templates.add(*(columns.get(name, NONE) for name in TemplateColumns.__dataclass_fields__))

    def _text(self, text: str | None) -> int:
        """Returns the number of a text; NONE for None."""
        return NONE if text is None else self.texts.setdefault(text, len(self.texts))

    def _note_mode(self, mode: int) -> None:
        if self.first_mode is None:
            self.first_mode = mode
