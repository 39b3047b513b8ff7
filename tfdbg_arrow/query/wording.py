"""Texts about answers: phrases for the command line, notebooks and error messages."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from tfdbg_arrow.query.headline import bad_kinds_text, sample_numbers_text
from tfdbg_arrow.query.stacks import executed_span
from tfdbg_arrow.safe_text import number_of, printable_line
from tfdbg_arrow.schema.op_traits import READERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tfdbg_arrow.query.bad_samples import BadSamples
    from tfdbg_arrow.query.model_health.answers import ColumnCalls, LayerMap, TrainingCurves
    from tfdbg_arrow.query.model_health.histograms import Distributions
    from tfdbg_arrow.query.nonfinite_tensor import FunctionCall, InputTensor, NonFinite
    from tfdbg_arrow.query.recorded import TensorHealth
    from tfdbg_arrow.query.stacks import Frame
    from tfdbg_arrow.query.step_inputs import SampleInput
    from tfdbg_arrow.query.trace_back import Provenance
    from tfdbg_arrow.query.trace_forward import Spread
    from tfdbg_arrow.query.user_places import CallSite, Forward

_COUNTS = (
    ("num_nan", "NaN"),
    ("num_neg_inf", "-Inf"),
    ("num_pos_inf", "+Inf"),
    ("num_neg_finite", "negative"),
    ("num_zero", "zero"),
    ("num_pos_finite", "positive"),
)
_NUM_SIMILAR = 3
"""Maximum number of names that a message suggests. More names would hide the right one."""
_MAX_TEXT = 40
"""Maximum number of characters that are shown of a string element in a sample."""
HOW: Mapping[str, str] = {
    "argument": "passed as an argument",
    "capture": "captured by the function",
    "loop": "passed on by the loop",
    "call": "returned by a call",
    "variable": "written to the variable that was read",
    "unrecorded": "through unrecorded tensors",
    "zeros": "as exp(-Inf), which is 0",
    "gradient": "created by the gradient of the op",
}
"""How a tensor reached the op that took the tensor, by `how`. A tensor that the op took directly has no entry."""
_EFFECTS = {
    "variable": "reached a variable",
    "result": "reached a result of the program",
    "metric": "only a metric took it",
    "absorbed": "absorbed: a check found it, but the branch that would have used it never ran",
}


class _Op(Protocol):
    """An op, or an output of an op if the object has the attribute `output_slot`."""

    @property
    def op_type(self) -> str | None: ...
    @property
    def op_name(self) -> str | None: ...


def output_text(output: _Op) -> str:
    """Returns the name of an op or of an output, such as `Log:0 (Log)`, or `Log:0, run eagerly`."""
    if output.op_type is None and output.op_name is None:
        return "a tensor from outside"
    slot = getattr(output, "output_slot", None)
    slot_text = "" if slot is None else f":{slot}"
    if output.op_name is None:
        return f"{output.op_type}{slot_text}, run eagerly"
    return f"{output.op_name}{slot_text}" + ("" if output.op_type is None else f" ({output.op_type})")


def op_text(tensor: NonFinite) -> str:
    """Returns the op of a bad tensor, such as `Sqrt_grad:0 (SqrtGrad), the gradient of Sqrt, line 9`."""
    text = output_text(tensor)
    if tensor.forward is not None:
        text += f", {gradient_text(tensor.forward)}"
    if tensor.equal_lines and tensor.source is not None:
        lines = (tensor.source, *tensor.equal_lines)
        is_one_file = len({line.file_path for line in lines}) == 1
        *first, last = (str(line.lineno) if is_one_file else line.place for line in lines)
        text += f", computed once for {'lines ' if is_one_file else ''}{', '.join(first)} and {last}"
    return text


def op_in_graph_text(tensor: NonFinite) -> str:
    """Returns the op of a bad tensor and its graph, such as `Log:0 (Log) in loss, iteration 2`."""
    graph = graph_text(tensor)
    return op_text(tensor) + ("" if graph is None else f" in {graph}")


def gradient_text(forward: Forward) -> str:
    """Returns a text about the forward op of a gradient, such as `the gradient of Sqrt, line 9`."""
    line = "" if forward.source is None else f", line {forward.source.lineno}"
    return f"the gradient of {forward.op_type or forward.op_name or 'an unknown op'}{line}"


def effect_text(answer: NonFinite | Provenance | Spread) -> str | None:
    """Returns the effect of a bad value, such as `no harm: nothing used it`, or None if the effect is not known."""
    if answer.expected_reason is not None:
        return f"no harm: {answer.expected_reason}"
    if answer.ended_in_error:
        return "the call stopped with an error"
    return None if answer.effect is None else _EFFECTS[answer.effect]


def frame_text(frame: Frame) -> str:
    """Returns a frame on one line, such as `/home/me/train.py:9 in loss: y = tf.sqrt(x)`."""
    return f"{frame.place} in {frame.func}" + (f": {frame.code}" if frame.code else "")


def carets(frame: Frame, text: str) -> str | None:
    """Returns a line of carets to print below a line of code. The carets mark the part that a frame executes.

    Args:
        frame: The frame.
        text: The whole line of code.

    Returns:
        The line of carets; None if the part is not known, or if it is the whole line without its indentation.
    """
    span = executed_span(frame, text)
    if span is None:
        return None
    start, end = (_width(printable_line(text[:column])) for column in span)
    return " " * start + "^" * (end - start)


def _width(text: str) -> int:
    """Returns the number of columns that a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def made_at_text(frame: Frame) -> str:
    """Returns the line that made a Keras object, such as `/home/me/train.py:9: model.add(Dense(1))` for a layer."""
    return frame.place + (f": {frame.code}" if frame.code else "")


def call_lines(tensor: NonFinite) -> list[str]:
    """Returns one text for each call that led to an op, innermost call first. Consecutive equal texts are merged."""
    lines = [_call_text(call) for call in tensor.called_from]
    return [line for index, line in enumerate(lines) if index == 0 or line != lines[index - 1]]


def _call_text(call: CallSite) -> str:
    """Returns a call on one line, such as `/home/me/train.py:9 in main, layer dense: model(x)`."""
    layer = "" if call.layer is None else f", layer {call.layer}"
    if call.source is not None:
        code = f": {call.source.code}" if call.source.code else ""
        return f"{call.source.place} in {call.source.func}{layer}{code}"
    if call.op_name is None:
        return f"eager code{layer}"
    return call.op_name + (f" in {call.graph_name}" if call.graph_name else "") + layer


def label_facts(tensor: NonFinite) -> tuple[tuple[str, str], ...]:
    """Returns facts such as the layer, step and effect of a bad tensor, as (name, text). Omits unknown facts."""
    facts = (
        ("layer", tensor.layer),
        ("created at", None if tensor.made_at is None else made_at_text(tensor.made_at)),
        ("step", None if tensor.step is None else f"{tensor.step:,}"),
        ("call", None if tensor.call is None else call_text(tensor.call)),
        ("role", tensor.role),
        ("effect", effect_text(tensor)),
    )
    return tuple((name, text) for name, text in facts if text is not None)


def call_text(call: FunctionCall) -> str:
    """Returns the number of a call and its function, such as `10 of train_step, execution 24`."""
    return f"{call.number:,} of {call.function}, execution {call.execution_index:,}"


def column_unit(answer: LayerMap | TrainingCurves | Distributions) -> str:
    """Returns the unit of the columns of an answer: `step`, `event`, `execution` or `call`."""
    return answer.axis if _calls_of(answer) is None else "call"


def column_start(answer: LayerMap | TrainingCurves | Distributions, column: int) -> int:
    """Returns the number of the first step, event, execution or call of a column."""
    calls = _calls_of(answer)
    return answer.columns[column].first if calls is None else calls.ranges[column][0]


def columns_text(answer: LayerMap | TrainingCurves | Distributions) -> str:
    """Returns the range of the columns of an answer, such as `steps 0 to 95` or `calls 1 to 60 of train_step`."""
    unit, calls = column_unit(answer), _calls_of(answer)
    if not answer.columns:
        return f"no {unit}s"
    last = answer.columns[-1].last if calls is None else calls.ranges[-1][1]
    first = column_start(answer, 0)
    if calls is not None:
        first = min(max(first, 1), last)
    of_function = "" if calls is None else f" of {calls.function}"
    return f"{unit}s {first:,} to {last:,}{of_function}"


def axis_text(answer: LayerMap | TrainingCurves | Distributions) -> str:
    """Returns the name of the axis of an answer, such as `steps` or `calls of train_step`."""
    calls = _calls_of(answer)
    return f"{answer.axis}s" if calls is None else f"calls of {calls.function}"


def _calls_of(answer: LayerMap | TrainingCurves | Distributions) -> ColumnCalls | None:
    return getattr(answer, "calls", None)


def place_facts(health: TensorHealth, samples: BadSamples | None) -> tuple[tuple[str, str], ...]:
    """Returns facts about the bad samples or rows of a tensor, as (name, text).

    An example of a text is `sample 17 of the batch, the only bad one of 64`.
    """
    name = [] if samples is None or samples.name in (None, samples.whole) else [f"this is {samples.name}"]
    data = [] if samples is None else [*name, *data_texts(samples)]
    facts = [("where", slices_text(health, samples)), ("data", "; ".join(data))]
    if samples is not None:
        facts += [(f"{samples.unit} {samples.first:,}", f"{name} = {text}") for name, text in sample_texts(samples)]
    return tuple((name, text) for name, text in facts if text)


def slices_text(health: TensorHealth, samples: BadSamples | None) -> str | None:
    """Returns which samples, rows or elements of a bad tensor are bad.

    The result is None if this is unknown. If no samples are known, the result is also None if most rows are bad.
    """
    if samples is not None:
        unit, whole = samples.unit, f" of {samples.whole}"
        # The bad elements are computed from the rows of an argument, so the rows themselves may be healthy.
        is_computed = samples.unit != "sample" and samples.name is None
        is_one_each = health.num_bad == samples.num_bad == health.num_bad_slices and samples.num_samples != health.size
        one_in_each = ", with one bad element each" if is_one_each and not is_computed else ""
        if samples.num_bad == samples.num_samples:
            return f"every {unit}{whole}{one_in_each}; it has {samples.num_samples:,}"
        if samples.num_bad is None:
            return f"{unit} {samples.first:,}{whole}"
        if samples.num_bad == 1:
            only = f"the only bad one of {samples.num_samples:,}"
            if is_computed:
                only = f"the only one of {samples.num_samples:,} that leads to bad elements"
            return f"{unit} {samples.first:,}{whole}, {only}"
        return (
            f"{samples.num_bad:,} of the {samples.num_samples:,} {unit}s{whole} "
            f"{'lead to bad elements' if is_computed else 'are bad'}{one_in_each}{':' if samples.numbers else ','} "
            f"{sample_numbers_text(samples)}"
        )
    first_bad, bad = health.first_bad_place, health.num_bad_slices
    if first_bad is None or bad is None or health.shape is None or 2 * bad > health.shape[0]:
        return None
    if len(first_bad) == 1:
        if bad == 1:
            return f"element {first_bad[0]:,}, the only bad one of {health.shape[0]:,}"
        return f"{bad:,} of {health.shape[0]:,} elements are bad, the first is element {first_bad[0]:,}"
    if bad == 1:
        return f"row {first_bad[0]:,} of the tensor, the only bad one of {health.shape[0]:,}"
    return f"{bad:,} of the {health.shape[0]:,} rows of the tensor are bad, the first is row {first_bad[0]:,}"


def sample_texts(samples: BadSamples) -> tuple[tuple[str, str], ...]:
    """Returns (name, elements as text) of each input of the step for the first bad sample.

    An example is (`x`, `[0.5, 0, 0, …] (784 elements)`).
    """
    return tuple((input_.name, _sample_text(input_)) for input_ in samples.first_sample)


def _sample_text(input_: SampleInput) -> str:
    if not input_.elements:
        return f"{input_.dtype} {list(input_.shape)}"
    shown = list(map(_element_text, input_.elements))
    size = math.prod(input_.shape)
    if not input_.shape:
        return shown[0]
    if size > len(shown):
        which = f", all of them {shown[0]}" if input_.are_equal else ""
        if input_.first_bad is not None:
            place, value = input_.first_bad
            which = f", the first bad one is [{', '.join(map(str, place))}] = {_element_text(value)}"
        return f"[{', '.join(shown)}, …] ({size:,} elements{which})"
    return f"[{', '.join(shown)}]"


def _element_text(element: object) -> str:
    if isinstance(element, str):
        text = printable_line(element)
        return f'"{text[:_MAX_TEXT]}…"' if len(text) > _MAX_TEXT else f'"{text}"'
    return f"{element:.6g}" if isinstance(element, (float, complex)) else str(element)


def data_texts(samples: BadSamples) -> list[str]:
    """Returns sentences about the records that the bad samples come from, and about the other inputs of the step."""
    texts = []
    if samples.row is not None and samples.num_bad != samples.num_samples:
        record = "row {} of the arrays" if samples.is_row_of_arrays else "record {} of the data set"
        record = f"{record} that the batches come from"
        if samples.is_row_of_arrays and samples.whole.endswith("of the validation"):
            record = "row {} of the validation data"  # the validation data may be only a part of the arrays
        after = ", counted after the skipped ones" if samples.follows_skipped else ""
        texts.append(f"sample {samples.first:,} is {record.format(f'{samples.row:,}')}{after}")
    for input_ in samples.inputs:
        index = input_.health.first_bad_place
        if input_.health.has_inf_or_nan:
            first = "" if index is None or index[0] == samples.first else ", first"
            where = "" if index is None else f"{first} in {samples.unit} {index[0]:,}"
            texts.append(f"{input_.name} already has {bad_kinds_text(input_.health)}{where}")
    if (
        samples.name is None
        and samples.inputs
        and all(input_.health.has_inf_or_nan is False for input_ in samples.inputs)
    ):
        texts.append(f"{samples.whole} itself has no NaN and no infinity")
    return texts


def nonfinite_facts(tensor: NonFinite) -> list[tuple[str, str]]:
    """Returns facts about a bad tensor, as (name, text). The inputs and the stack are not included."""
    facts = (
        ("op", op_text(tensor)),
        ("graph", graph_text(tensor)),
        *label_facts(tensor),
        ("tensor", facts_text(tensor)),
        *place_facts(tensor, tensor.samples),
        ("ran as", tensor.ran_as),
        *(("same op", f"{line.place}: {line.code or ''}") for line in tensor.equal_lines),
        *(("also at", f"{line.place}: {line.code or ''}") for line in tensor.also_bad),
        ("device", tensor.device_name),
        ("worker", tensor.worker),
        ("event", f"{tensor.event_index}, {_time_text(tensor.wall_time_ns)}, run {tensor.run_id}"),
        ("origin", origin_text(tensor)),
        *(("but", f"the recording is incomplete: {text}") for text in tensor.left_out),
    )
    return [(name, text) for name, text in facts if text is not None]


def origin_text(tensor: NonFinite) -> str:
    """Returns a text that says whether the op of a bad tensor created the bad value, and why this is known or not."""
    if not tensor.is_origin:
        return "not proven: an input was not recorded, or contains the value too"
    if tensor.op_type is None:
        return "yes: the value came from outside with this tensor"
    if tensor.op_type in READERS:
        return "yes: the variable already held the value; no recorded op wrote it"
    healths = (input_.health for input_ in tensor.inputs)
    if any(health is not None and set(_bad_counts(health)) & set(_bad_counts(tensor)) for health in healths):
        return "yes: the program itself wrote the bad values of its inputs"
    return "yes: this op created the value; its inputs do not contain it"


def _bad_counts(health: TensorHealth) -> list[str]:
    """Returns the kinds of bad values that were counted in a tensor."""
    infinities = (health.num_neg_inf or 0) + (health.num_pos_inf or 0)
    return [kind for kind, number in (("nan", health.num_nan), ("inf", infinities)) if number]


def _time_text(wall_time_ns: int) -> str:
    time = datetime.fromtimestamp(wall_time_ns // 1_000_000_000, tz=UTC)
    return f"{time:%Y-%m-%d %H:%M:%S}.{wall_time_ns % 1_000_000_000 // 1000:06d} UTC"


def graph_text(tensor: NonFinite) -> str | None:
    """Returns the name of a tensor's graph and the loop iteration, or None outside graphs."""
    if tensor.graph_name is None:
        return None
    return tensor.graph_name + ("" if tensor.iteration is None else f", iteration {tensor.iteration}")


def facts_text(health: TensorHealth) -> str:
    """Returns the dtype, the shape, the counts that are not 0, and the index of the first bad element.

    If all elements are bad, the index is omitted. An example is `float32 [2, 3]: 1 NaN, 5 positive of 6 elements, the
    first NaN at [1, 0]`.
    """
    text = health.dtype or "dtype not known"
    if health.shape is not None:
        text += f" [{', '.join(map(str, health.shape))}]"
    is_complex = (health.dtype or "").startswith("complex")
    names = _COUNTS[:-3] if is_complex else _COUNTS
    counts = [f"{getattr(health, column):,} {name}" for column, name in names if getattr(health, column)]
    if is_complex:
        # Complex numbers have no sign. The negative and positive counts of a complex tensor together are the number of
        # finite elements that are not 0.
        num_nonzero = (health.num_neg_finite or 0) + (health.num_pos_finite or 0)
        counts += [
            f"{number:,} {name}" for number, name in ((health.num_zero, "zero"), (num_nonzero, "nonzero")) if number
        ]
    if counts:
        text += ": " + ", ".join(counts)
    if health.size is not None:
        text += f"{' of' if counts else ','} {number_of(health.size, 'element')}"
    first = first_bad_text(health)
    return text if first is None else f"{text}, the {first}"


def first_bad_text(health: TensorHealth) -> str | None:
    """Returns the index of the first bad element as text, such as `first NaN at [1, 0]`.

    The result is None if the index is not known, for a scalar, and if every element is bad.
    """
    if health.first_bad_place is None or health.num_bad == health.size:
        return None
    names = [name for column, name in _COUNTS[:3] if getattr(health, column)]
    what = names[0] if len(names) == 1 else "infinity or NaN"
    return f"first {what} at [{', '.join(map(str, health.first_bad_place))}]"


def range_text(health: TensorHealth, *, digits: int) -> str:
    """Returns the range and the mean of the finite elements as text; an empty text if they are not known."""
    least, greatest, mean = health.min_finite, health.max_finite, health.mean_finite
    if least is None or greatest is None or mean is None:
        return ""
    return f"from {least:.{digits}g} to {greatest:.{digits}g}, mean {mean:.{digits}g}"


def producer_text(input_: InputTensor) -> str:
    """Returns the source of an input as text, such as `Softmax:0 (Softmax) in model, passed as an argument`."""
    producer = input_.producer
    if producer is None:
        return "of unknown source"
    graph = f" in {producer.graph_name}" if producer.op_name and producer.graph_name else ""
    output = output_text(producer) + graph
    if producer.how == "variable":
        return f"a variable, last written by {output}"
    return output + (f", {HOW[producer.how]}" if producer.how in HOW else "")


def input_health_text(input_: InputTensor) -> str:
    """Returns the health of an input as text; `not recorded` if the input was not recorded."""
    return "not recorded" if input_.health is None else facts_text(input_.health)


def unjudged_text(num_unjudged: int) -> str:
    """Returns a sentence about the alerts that were not checked for harm."""
    return f"Not checked for harm because of a limit: {number_of(num_unjudged, 'alert')} with the severity of the rule."


def folded_text(num_folded: int) -> str:
    """Returns a sentence about the layers or lines that have no row of their own on a map."""
    number = number_of(num_folded, "layer or line has", "layers or lines have")
    own = "its" if num_folded == 1 else "their"
    return f"{number} no row of {own} own, because there are too many; the tensors count in the rows around."


def similar_text(text: str, names: Sequence[str]) -> str:
    """Returns a sentence with names that are similar to a text, such as ` Did you mean Log?`.

    The result is an empty text if no name is similar. Names of ops and layers are paths. The text is compared with the
    whole path and with the last part of the path.

    Args:
        text: The name that the user wrote.
        names: The existing names.
    """
    from difflib import get_close_matches

    wanted = text.lower()
    paths: dict[str, list[str]] = {}
    for name in names:
        for key in {name.lower(), name.lower().rpartition("/")[2]}:
            paths.setdefault(key, []).append(name)
    close = get_close_matches(wanted, paths, n=_NUM_SIMILAR)
    inside = [key for key in paths if len(wanted) > 2 and wanted in key]
    similar = list(dict.fromkeys(name for key in (*close, *inside) for name in paths[key]))[:_NUM_SIMILAR]
    return f" Did you mean {' or '.join(similar)}?" if similar else ""
