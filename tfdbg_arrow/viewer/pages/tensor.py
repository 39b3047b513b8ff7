"""The tensor page: one recorded tensor with its health, inputs, path from the origin, source line and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.query import Frame, Growth, Hop, InputTensor, Logdir
from tfdbg_arrow.query.bad_samples import BadSamples
from tfdbg_arrow.query.display.tensor_window import TensorFilter, TensorRow, tensors
from tfdbg_arrow.query.nonfinite_search import tensor_context
from tfdbg_arrow.query.user_places import CallSite, Forward
from tfdbg_arrow.query.values import NUM_COLUMNS, NUM_ROWS, Histogram, TensorValues, read_histogram, read_values
from tfdbg_arrow.viewer.page import PageKind, Parameters, needed_run, needed_tensor
from tfdbg_arrow.viewer.source_text import Excerpt, read_excerpt

_MAX_HOPS = 40
"""Maximum number of tensors that the search for the path visits. The page `provenance` searches further."""


@dataclass(frozen=True, kw_only=True)
class TensorPage:
    """One recorded tensor.

    Attributes:
        tensor: The tensor.
        inputs: The inputs of the tensor's op in this call and iteration, in order.
        forward: For a gradient, the op that the gradient belongs to.
        called_from: The calls that led to this execution of the tensor's op, innermost first.
        layer: The Keras layer or module that the tensor's op belongs to.
        made_at: The line where the user created the layer, loss, metric or optimizer, as in `NonFinite`.
        role: The role of the tensor's op.
        samples: The samples that hold the tensor's bad elements, as in `NonFinite`.
        path: For a bad tensor, the path from the origin to this tensor, as in `Provenance.path`; otherwise empty.
        why: What the origin's op did, if the counts prove it.
        repair: How to fix the bad values.
        growth: A quantity that grew from step to step until the origin's op went bad.
        is_path_cut: Whether the search for the path stopped at its limit. The page `provenance` searches further.
        is_harmless: Whether it is proven that the bad values at the origin did no harm.
        stack: The Python stack that created the tensor's op, ran the op, or first used the tensor; innermost frame
            first.
        source: The lines around the relevant line; for a gradient, the line of the forward op.
        values: The elements from the requested element on, if they were recorded.
        num_rows: Maximum number of rows of elements on a page.
        num_columns: Maximum number of columns of elements on a page.
        histogram: The distribution of the elements, if they were recorded and are numbers.
        previous_event_index: The recorded tensor before this tensor; None for the first.
        next_event_index: The recorded tensor after this tensor; None for the last.
        previous_bad_event_index: The bad tensor before this tensor.
        next_bad_event_index: The bad tensor after this tensor.
    """

    tensor: TensorRow
    inputs: tuple[InputTensor, ...]
    forward: Forward | None
    called_from: tuple[CallSite, ...]
    layer: str | None
    made_at: Frame | None
    role: str | None
    samples: BadSamples | None
    path: tuple[Hop, ...]
    why: str | None
    repair: str | None
    growth: Growth | None
    is_path_cut: bool
    is_harmless: bool
    stack: tuple[Frame, ...]
    source: Excerpt | None
    values: TensorValues | None
    num_rows: int
    num_columns: int
    histogram: Histogram | None
    previous_event_index: int | None
    next_event_index: int | None
    previous_bad_event_index: int | None
    next_bad_event_index: int | None


def read_tensor_page(
    logdir: Logdir, event_index: int, *, run_id: str, values_at: Sequence[int] = (), num_rows: int = NUM_ROWS
) -> TensorPage:
    """Returns one recorded tensor.

    Args:
        logdir: The logdir.
        event_index: The tensor's row in tensor_health.
        run_id: The run.
        values_at: The index of the first element to return, one number per dimension. Trailing numbers can be omitted.
        num_rows: Maximum number of rows of elements.

    Raises:
        NoSuchPageError: The run has no such tensor.
    """
    tensor = needed_tensor(logdir, event_index, run_id=run_id)
    everything, bad = (tensors(logdir, TensorFilter(is_bad=is_bad), run_id=run_id) for is_bad in (False, True))
    context = tensor_context(logdir, event_index, run_id=run_id)
    path: tuple[Hop, ...] = ()
    is_path_cut = is_harmless = False
    growth: Growth | None = None
    if tensor.has_inf_or_nan:
        provenance = logdir.provenance(event_index, run_id=run_id, limit=_MAX_HOPS)
        path, is_path_cut, growth = provenance.path, provenance.is_cut, provenance.growth
        is_harmless = provenance.expected_reason is not None
    why, repair = next(((hop.why, hop.repair) for hop in path if hop.why is not None), (None, None))
    return TensorPage(
        tensor=tensor,
        inputs=context.inputs,
        forward=context.forward,
        called_from=context.called_from,
        layer=context.layer,
        made_at=context.made_at,
        role=context.role,
        samples=context.samples,
        path=path,
        why=why,
        repair=repair,
        growth=growth,
        is_path_cut=is_path_cut,
        is_harmless=is_harmless,
        stack=context.stack,
        source=read_excerpt(logdir, context.source, run_id=run_id),
        values=read_values(logdir, event_index, run_id=run_id, at=values_at, num_rows=num_rows),
        num_rows=num_rows,
        num_columns=NUM_COLUMNS,
        histogram=read_histogram(logdir, event_index, run_id=run_id),
        previous_event_index=everything.next(event_index, is_backwards=True),
        next_event_index=everything.next(event_index),
        previous_bad_event_index=bad.next(event_index, is_backwards=True),
        next_bad_event_index=bad.next(event_index),
    )


def _read(logdir: Logdir, parameters: Parameters) -> TensorPage:
    return read_tensor_page(
        logdir,
        parameters.needed_integer("event"),
        run_id=needed_run(logdir, parameters),
        values_at=parameters.integers("values_at"),
    )


PAGE = PageKind(name="tensor", title="Tensor", key=None, read=_read)
