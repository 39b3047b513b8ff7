"""What a comparison of two runs answers."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.health import TensorHealth
from tfdbg_arrow.query.stacks import Frame

KINDS = ("shape", "dtype", "nonfinite", "values", "magnitudes", "counts")
"""How two tensors can differ; see Divergence.kind."""


@dataclass(frozen=True, kw_only=True)
class DiffTensor(TensorHealth):
    """One side of two tensors that were compared; None is "not measured in this mode" or does not apply.

    It also has the attributes of TensorHealth.

    Attributes:
        run_id: The run.
        step: The training step, as marked.
        execution_index: The execution, or the call in which its op ran; of a tensor from outside its first user.
        iteration: Iteration of the loop, from 0; None outside graphs.
        graph_name: Its graph; None outside graphs.
        op_name: The op in it.
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
    """The elements of both tensors that lie furthest apart.

    Attributes:
        index: Their place, a number for each dimension.
        a: The element in A.
        b: The element in B.
    """

    index: tuple[int, ...]
    a: object
    b: object


@dataclass(frozen=True)
class DiffInput:
    """A tensor that the diverging op took, or that its values depend on where its input itself was not recorded.

    Attributes:
        a: In A.
        b: What is aligned with it in B; None where nothing is.
        excess: How far they lie apart, in units of the tolerance; None where that is no number, or not comparable.
    """

    a: DiffTensor
    b: DiffTensor | None
    excess: float | None


@dataclass(frozen=True)
class Divergence:
    """Two aligned tensors that lie further apart than rounding explains, while what they were made of agrees.

    Attributes:
        kind: `shape`; `dtype` (of another class, as float32 and int64); `nonfinite` (other NaN or infinities);
            `values` (the elements themselves); `magnitudes` (minimum, maximum, mean, standard deviation or largest
            magnitude); `counts` (how many are negative, zero, positive).
        excess: How far they lie apart, in units of the tolerance; None for the first three kinds: no measure.
        difference: Of `values` of floating dtypes and of `magnitudes` the greatest absolute difference; of `counts`
            and of other dtypes the elements that differ; None for the first three kinds.
        tolerance: How much `difference` may be; None as `difference`.
        worst: The elements furthest apart; None where values were not kept or the shapes differ.
        a: The tensor in A.
        b: The tensor in B.
        inputs: What it was made of, as far as it was recorded.
        is_proven: Whether all that it was made of was recorded, aligned and agrees.
        notes: What else is known about it, as sentences: a seed, ops that only one run has.
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
    """Something of the environment or the settings in which two runs differ: its name, in A, in B; None for NULL."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class UnalignedOp:
    """Tensors of one op that the other run has no counterpart of.

    Attributes:
        side: The run that has them: `a` or `b`.
        graph_name: Its graph; None outside graphs.
        op_name: The op in it; None outside graphs.
        op_type: Its type, or the name of a function; None for tensors from outside.
        num_tensors: How many tensors.
        first_event_index: The first of them in tensor_health.
        is_in_other: Whether the op itself is aligned: only some times that it ran have no counterpart.
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
    """What only one run has.

    Attributes:
        num_tensors: Recorded tensors.
        num_executions: Executions.
        num_ops: Ops, of those graphs that the other run also has.
    """

    num_tensors: int
    num_executions: int
    num_ops: int


@dataclass(frozen=True)
class DtypeChange:
    """Tensors that one run has in another dtype of the same class: the dtypes, and how many tensors."""

    a: str
    b: str
    num_tensors: int


@dataclass(frozen=True)
class Diff:
    """How two runs compare.

    Attributes:
        run_a: Id of run A.
        run_b: Id of run B.
        divergence: The first divergence in data-flow order; None where nothing diverges.
        num_aligned: Tensors of A with a counterpart in B.
        num_compared: Those of them of which both runs measured something beyond dtype and shape.
        num_differing: Those that lie further apart than the tolerance, whatever the reason.
        num_aligned_executions: Executions with a counterpart.
        num_aligned_ops: Ops in graphs with a counterpart.
        only_a: What only A has.
        only_b: What only B has.
        unaligned: The ops of tensors that only one run has, by side and first event.
        is_cut: Whether `unaligned` was cut to the limit asked for.
        is_search_cut: Whether the search ended before every candidate for the first divergence was looked at.
        dtype_changes: Where the runs compute in different precision.
        environment: What else differs: versions, host, command line, mode, devices, settings.
        incomparable: What could not be compared, as sentences.
        rtol: The relative tolerance; None: by dtype.
        atol: The absolute tolerance; None: by dtype.
        growth: How many times the relative difference of its inputs an op may show.
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
