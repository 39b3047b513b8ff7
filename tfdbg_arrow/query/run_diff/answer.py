"""The answer of a comparison of two runs."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.recorded import TensorHealth
from tfdbg_arrow.query.stacks import Frame


@dataclass(frozen=True, kw_only=True, repr=False)
class DiffTensor(TensorHealth):
    """One of two compared tensors. None means that a fact was not measured in this mode, or does not apply.

    It also has the attributes of TensorHealth.

    Attributes:
        run_id: The run.
        step: The training step that the program marked.
        execution_index: The execution, or the call in which the op ran; for a tensor from outside, its first user.
        iteration: Iteration of the loop, from 0; None outside graphs.
        graph_name: The graph of the op; None outside graphs.
        op_name: The name of the op in the graph; None outside graphs.
        op_type: Type of the op, or the name of a function; None for a tensor from outside.
        output_slot: Which output of the op, from 0; None for a tensor from outside.
        stack: The Python stack that created the op (in a graph), executed it (eagerly) or first used the tensor
            (from outside), innermost frame first.
        source: The user's innermost frame, or None.
    """

    run_id: str
    step: int | None
    execution_index: int | None
    iteration: int | None
    graph_name: str | None
    op_name: str | None
    op_type: str | None
    output_slot: int | None
    stack: tuple[Frame, ...]
    source: Frame | None


@dataclass(frozen=True)
class WorstElement:
    """The two elements, one of each tensor, that are furthest apart.

    Attributes:
        index: The position of the elements, one number per dimension.
        a: The element in A.
        b: The element in B.
    """

    index: tuple[int, ...]
    a: object
    b: object


@dataclass(frozen=True)
class DiffInput:
    """A recorded input of the diverging op. An unrecorded input is replaced by a tensor that it was computed from.

    Attributes:
        a: The tensor in A.
        b: The counterpart in B; None if there is no counterpart.
        excess: The difference in units of the tolerance; None if the difference has no measure, or the tensors cannot
            be compared.
    """

    a: DiffTensor
    b: DiffTensor | None
    excess: float | None


@dataclass(frozen=True)
class Divergence:
    """Two aligned tensors that differ by more than rounding explains, although their inputs agree.

    Attributes:
        kind: What differs:
            * `shape`: the shapes.
            * `dtype`: the dtypes, which are of different classes, such as float32 and int64.
            * `nonfinite`: NaN or infinities.
            * `values`: the elements.
            * `magnitudes`: the minimum, maximum, mean, standard deviation or largest magnitude.
            * `counts`: how many elements are negative, zero or positive.
        excess: The difference in units of the tolerance; None for the first three kinds, which have no measure.
        difference: The greatest absolute difference for `magnitudes`, and for `values` of floating dtypes; the number
            of differing elements for `counts`, and for `values` of other dtypes; None for the first three kinds.
        tolerance: The greatest accepted `difference`; None if `difference` is None.
        worst: The two elements that are furthest apart; None if the values were not recorded or the shapes differ.
        a: The tensor in A.
        b: The tensor in B.
        inputs: The recorded tensors that the diverging tensor was computed from.
        is_proven: Whether all tensors that the diverging tensor was computed from were recorded and aligned, and agree.
        notes: Further facts as sentences, such as a seed, or ops that only one run has.
    """

    kind: str
    excess: float | None
    difference: float | None
    tolerance: float | None
    worst: WorstElement | None
    a: DiffTensor
    b: DiffTensor
    inputs: tuple[DiffInput, ...]
    is_proven: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """A difference in the environment or settings of two runs: the name, and the values in A and B (None for NULL)."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class UnalignedOp:
    """An op with tensors that have no counterpart in the other run.

    Attributes:
        side: The run that has the tensors: `a` or `b`.
        graph_name: The graph of the op; None outside graphs.
        op_name: The name of the op in the graph; None outside graphs.
        op_type: The type of the op, or the name of a function; None for tensors from outside.
        num_tensors: Number of tensors.
        first_event_index: The event_index of the first of these tensors.
        is_in_other: Whether the op itself is aligned, so that only some of its executions have no counterpart.
        source: The user's innermost frame, or None.
    """

    side: str
    graph_name: str | None
    op_name: str | None
    op_type: str | None
    num_tensors: int
    first_event_index: int
    is_in_other: bool
    source: Frame | None


@dataclass(frozen=True)
class Unaligned:
    """How many tensors, executions and ops only one run has.

    Attributes:
        num_tensors: Number of recorded tensors.
        num_executions: Number of executions.
        num_ops: Number of ops in graphs that the other run also has.
    """

    num_tensors: int
    num_executions: int
    num_ops: int


@dataclass(frozen=True)
class DtypeChange:
    """The number of tensors that have a certain dtype in A and another dtype of the same class in B."""

    a: str
    b: str
    num_tensors: int


@dataclass(frozen=True, repr=False)
class Diff(Displayed):
    """The result of comparing two runs.

    Attributes:
        run_a: Id of run A.
        run_b: Id of run B.
        divergence: The first divergence in data-flow order; None if no tensor diverges.
        num_aligned: Number of tensors of A with a counterpart in B.
        num_compared: Number of these tensors for which both runs measured more than dtype and shape.
        num_differing: Number of the compared tensors that differ by more than the tolerance, for any reason.
        num_aligned_executions: Number of executions with a counterpart.
        num_aligned_ops: Number of graph ops with a counterpart.
        only_a: The numbers of items that only A has.
        only_b: The numbers of items that only B has.
        unaligned: The ops whose tensors only one run has, ordered by side and first event.
        is_cut: Whether `unaligned` was cut to the requested limit.
        is_search_cut: Whether the search ended before every candidate for the first divergence was examined.
        dtype_changes: Tensors that the runs compute in different precision.
        environment: Other differences: versions, host, command line, mode, devices, settings.
        incomparable: Sentences about data that could not be compared.
        rtol: The relative tolerance; None means that it depends on the dtype.
        atol: The absolute tolerance; None means that it depends on the dtype.
        growth: The relative difference of an op's output may be at most this many times the relative difference of its
            inputs.
    """

    run_a: str
    run_b: str
    divergence: Divergence | None
    num_aligned: int
    num_compared: int
    num_differing: int
    num_aligned_executions: int
    num_aligned_ops: int
    only_a: Unaligned
    only_b: Unaligned
    unaligned: tuple[UnalignedOp, ...]
    is_cut: bool
    is_search_cut: bool
    dtype_changes: tuple[DtypeChange, ...]
    environment: tuple[Setting, ...]
    incomparable: tuple[str, ...]
    rtol: float | None
    atol: float | None
    growth: float
