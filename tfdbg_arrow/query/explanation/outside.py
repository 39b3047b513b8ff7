"""Rules for bad values that no op computed: data, constants, and tensors from outside the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.explanation.computed import Computed, Explanation, Rule, bad_text, in_sentence, infs, is_finite
from tfdbg_arrow.query.headline import bad_kinds_text
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.op_traits import READERS, Trait, types_with

_DATA = "Check the source of the data for NaN and infinities, and replace them or leave them out."
_CHECK_DATA = (
    "Check where the program got it, such as the data, NumPy code or loaded weights, and replace the bad elements or "
    "leave them out."
)
_CHECK_ARGUMENT = (
    "Check what passes the argument to the function, such as an earlier step of the data set, and replace the bad "
    "elements or leave them out."
)
_CHECK_SCALAR = "Check where the program got it, such as a schedule, NumPy code or a division in Python."
_CHECK_CONSTANT = "Check the constant and how the program got it, such as a weight from NumPy or a default value."
_MASK_TIMES_INFINITY = (
    "If the program multiplies a mask by an infinity, use tf.where in place of the product, or a large finite number "
    f"of the same sign, such as 1e9, in place of the infinity. Otherwise, {in_sentence(_CHECK_CONSTANT)}"
)
_KEEPS_KINDS = types_with(Trait.CARRIES | Trait.EQUAL) | {"Cast", "Const", "MatrixBandPart"}
"""Types of ops that return or leave out the bad elements of their inputs. Such ops make no other bad elements."""
_OF_TWO = {
    "Pow": "If the exponent is negative, keep the base away from 0, for example with tf.maximum.",
    "RealDiv": "Use tf.math.divide_no_nan, or a divisor that is never 0.",
}
"""The fix for a function of two constants, by op type."""
ARGUMENT = "Placeholder"
"""The type of the op that stands for an argument of a function."""
READS_BYTES = ("DecodePaddedRaw", "DecodeRaw")
"""Types of ops that read bytes as numbers. Bytes of another dtype or byte order may give very large numbers."""
_EXAMPLE_PARSERS = frozenset({"ParseExample", "ParseExampleV2", "ParseSingleExample"})


@dataclass(frozen=True, kw_only=True)
class FromOutside:
    """An op that returns data that it did not compute: from a file, Python, a dataset or memory.

    Attributes:
        source: The subject and the verb, such as `the checkpoint holds`.
        repair: The fix.
    """

    source: str
    repair: str

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        if not all(map(is_finite, computed.inputs.values())):
            return None
        return Explanation(f"{computed.op}: {self.source} {bad_text(computed.output)}.", self.repair)


def tensor_from_outside(tensor: TensorEvent) -> Explanation:
    """Explains a tensor that no recorded op made, or an argument of a function if nothing shows what made it."""
    if tensor.op_type == ARGUMENT:
        return Explanation(
            f"No op of the function made the tensor: the argument already held {bad_text(tensor)}.", _CHECK_ARGUMENT
        )
    return Explanation(
        f"No recorded op made the tensor: it already held {bad_text(tensor)} when the program first used it.",
        _CHECK_SCALAR if tensor.shape == () else _CHECK_DATA,
    )


def _csv(computed: Computed) -> Explanation | None:
    """Explains a field of CSV records. Each output of the op is a field that the program reads."""
    source = f"the field of its output {computed.output.output_slot}, counted from 0, holds"
    return FromOutside(source=source, repair=_DATA)(computed)


def _python_function(computed: Computed) -> Explanation | None:
    """Explains a result of a Python function that the program calls, or that reads a generator for a data set."""
    functions = {name for _, name in computed.library_functions()}
    component = f"component {computed.output.output_slot}, counted from 0, of"
    if "PyDatasetAdapter.get_tf_dataset" in functions:
        given = FromOutside(
            source=f"{component} a batch of the PyDataset holds",
            repair="Check what __getitem__ of the PyDataset returns, and the data that it takes.",
        )
    elif "DatasetV2.from_generator" in functions:
        given = FromOutside(
            source=f"{component} a record that the generator yielded holds",
            repair="Check what the generator yields, and the data that it takes.",
        )
    else:
        given = FromOutside(source="your Python function returned", repair="Check the Python function that was called.")
    return given(computed)


def _restored(computed: Computed) -> Explanation | None:
    """Explains a value of a checkpoint, with the owner of the variable that gets it."""
    explanation = FromOutside(source="the checkpoint holds", repair="Restore an earlier checkpoint.")(computed)
    owner = None if explanation is None else computed.stored_in()
    if explanation is None or owner is None:
        return explanation
    return Explanation(
        f"{explanation.sentence[:-1]} for a variable {owner}.",
        "Restore an earlier checkpoint, or assign finite numbers to this variable afterwards.",
    )


def _read_from_variable(computed: Computed) -> Explanation | None:
    """Explains a value of a variable that no recorded op wrote."""
    if not all(map(is_finite, computed.inputs.values())):
        return None
    return Explanation(
        f"The variable already held {bad_kinds_text(computed.output)}, and no recorded op is known to have written it.",
        "Check what the variable got before, such as loaded weights or the updates of an earlier training. If this "
        "happened before the recording began, begin the recording earlier.",
    )


def _constant(computed: Computed) -> Explanation | None:
    """Explains a constant. A constant that a parser of records takes is the default value of missing fields."""
    takers = computed.takers()
    if {types[0] for types in takers} == {"DecodeCSV"}:
        return Explanation(
            f"A field of a record is missing or bad: the default of missing fields holds {bad_text(computed.output)}.",
            "Leave out the records with missing fields, or give tf.io.decode_csv a finite default (record_defaults).",
        )
    ends = {types[-1] for types in takers} - {"Reshape"}
    if ends and ends <= _EXAMPLE_PARSERS:
        return Explanation(
            f"A feature of an example is missing or bad: its default value holds {bad_text(computed.output)}.",
            "Leave out the examples without the feature, or give it a finite default_value.",
        )
    return FromOutside(source="this constant of the program holds", repair=_CHECK_CONSTANT)(computed)


def of_constants(computed: Computed, repairs: Mapping[str, str]) -> Explanation:
    """Explains a result that TensorFlow computed in advance from constants of the program.

    Args:
        computed: The result, with the recorded inputs of the program's op.
        repairs: The fix for a function of one argument, by op type.
    """
    maker = next(iter(computed.makers), "An op")
    if maker == "Const":
        may_be_product = bool(computed.output.num_nan and infs(computed.output)) and "Mul" in computed.program_ops
        held = (
            bad_kinds_text(computed.output) if _KEEPS_KINDS.issuperset(computed.program_ops) else "an infinity or a NaN"
        )
        return Explanation(
            f"TensorFlow folded a constant that holds {held} and the ops that take it into one constant with "
            f"{bad_text(computed.output)}." + (" An infinity times 0 is NaN." if may_be_product else ""),
            _MASK_TIMES_INFINITY if may_be_product else _CHECK_CONSTANT,
        )
    dividend = computed.inputs.get(0)
    if maker == "RealDiv" and dividend is not None and dividend.op_type != "Const":
        return Explanation(
            f"RealDiv by a constant: TensorFlow divided another constant by it in advance, and that quotient holds "
            f"{bad_text(computed.output)}. If the other constant is finite, the divisor is 0 or next to 0.",
            "Check how the program sets the divisor.",
        )
    if maker == "Mul" and any(factor.op_type != "Const" for factor in computed.inputs.values()):
        return Explanation(
            f"Mul by constants: TensorFlow multiplied the constant factors in advance, and their product holds "
            f"{bad_text(computed.output)}.",
            "Use smaller constant factors, so that their product is finite, or compute in a wider dtype.",
        )
    *first, last = (maker, *computed.later)
    names = f"{', '.join(first)} and {last}" if first else last
    return Explanation(
        f"{names} of constants: TensorFlow computed the result in advance, and it holds {bad_text(computed.output)}.",
        " ".join(filter(None, (f"Check the constants that {maker} takes.", _OF_TWO.get(maker) or repairs.get(maker)))),
    )


FROM_OUTSIDE: dict[str, Rule] = {
    **dict.fromkeys(["PyFunc", "PyFuncStateless", "EagerPyFunc"], _python_function),
    **dict.fromkeys(["RestoreV2", "Restore"], _restored),
    **dict.fromkeys(READERS, _read_from_variable),
    **dict.fromkeys(
        ["IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue"],
        FromOutside(
            source="the dataset returned", repair="Check the dataset, for example with tf.debugging.check_numerics."
        ),
    ),
    **dict.fromkeys(
        ["ParseExampleV2", "ParseSingleExample", "StringToNumber", "ReadFile"],
        FromOutside(source="the text or the record holds", repair=_DATA),
    ),
    "DecodeCSV": _csv,
    **dict.fromkeys(
        ["Bitcast", *READS_BYTES],
        FromOutside(
            source="the bytes, read as numbers, hold",
            repair="Check that the bytes are numbers of that dtype and byte order.",
        ),
    ),
    "Const": _constant,
    "Empty": FromOutside(source="the uninitialized memory holds", repair="Use tf.zeros."),
}
"""The rule for each type of op whose result comes from outside the program."""
