"""The ops that a repro script may run, and how to call them.

op_signatures.json lists the ops of `tf.raw_ops` that compute numbers from numbers, and ops that TensorFlow's optimizer
makes from them. `tools/op_signatures.py` writes this file. Because a logdir is untrusted, a script runs no other op.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice, product
from typing import Any

from tfdbg_arrow.errors import ReproError
from tfdbg_arrow.safe_text import printable
from tfdbg_arrow.schema.dtypes import DTYPES

MAX_CHOICES = 64
"""Maximum number of combinations of attributes that a script tries."""
_INT64 = range(-(2**63), 2**63)
_DTYPES = {dtype.number: dtype.name for dtype in DTYPES}
_DIMENSIONS = ([1, 1, 1, 1], [1, 2, 2, 1], [1, 3, 3, 1], [1, 4, 4, 1], [1, 1, 1, 1, 1], [1, 2, 2, 2, 1])
_GUESSES: dict[str, tuple[Any, ...]] = {"strides": _DIMENSIONS, "ksize": _DIMENSIONS[1:], "padding": ("SAME", "VALID")}
"""Common values of attributes without a default."""

Value = Any
"""The value of an attribute: None, bool, int, float, str, a DtypeName, or a list of these."""


@dataclass(frozen=True)
class DtypeName:
    """TensorFlow's name of a dtype, as the value of an attribute."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """One attribute that a call of an op takes.

    Attributes:
        argument: The name of the argument.
        name: The name of the attribute in a NodeDef.
        type: The type of the attribute, as in TensorFlow's OpDef, such as `list(int)`.
        values: The allowed texts; empty if any text is allowed or the attribute is not a text.
        has_default: Whether the attribute has a default.
        default: The default.
    """

    argument: str
    name: str
    type: str
    values: tuple[str, ...] = ()
    has_default: bool = False
    default: Value = None


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How to call an op.

    Attributes:
        op_type: The type of the op.
        inputs: The op's inputs as pairs (argument, attribute). The attribute gives the length of a list of tensors; it
            is an empty text if the argument takes one tensor.
        attributes: The attributes.
        is_single: Whether the op returns one tensor, and not several tensors or a list.
        is_random: Whether the op draws random numbers, so that it returns different numbers each time.
        is_raw: Whether the op is in `tf.raw_ops`. If not, only a graph can run the op.
        types: For an op that is not in `tf.raw_ops`, pairs (attribute, argument). The attribute holds the dtype of the
            input; for a list of tensors, it holds a list of dtypes.
    """

    op_type: str
    inputs: tuple[tuple[str, str], ...]
    attributes: tuple[Attribute, ...]
    is_single: bool
    is_random: bool
    is_raw: bool = True
    types: tuple[tuple[str, str], ...] = ()


@cache
def _file() -> dict[str, Any]:
    text = files("tfdbg_arrow.reproduction").joinpath("op_signatures.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def signature_of(op_type: str | None) -> Signature | None:
    """Returns the signature of an op, or None if a script may not run it."""
    entry = _file().get(op_type or "")
    if entry is None:
        return None
    return Signature(
        op_type=str(op_type),
        inputs=tuple((argument, length) for argument, length in entry["inputs"]),
        attributes=tuple(
            Attribute(
                argument=argument,
                name=about.get("name", argument),
                type=about["type"],
                values=tuple(about.get("values", ())),
                has_default="default" in about,
                default=about.get("default"),
            )
            for argument, about in entry["attributes"].items()
        ),
        is_single=entry["is_single"],
        is_random=entry["is_random"],
        is_raw="types" not in entry,
        types=tuple((attribute, argument) for attribute, argument in entry.get("types", ())),
    )


def known_attributes(signature: Signature, recorded: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the recorded attributes that a call of an op takes, by argument, without default values.

    Args:
        signature: The op.
        recorded: The recorded attributes, by the name in the NodeDef. Attributes that the call does not take are
            ignored, such as the attributes that TensorFlow infers from the inputs.

    Raises:
        ReproError: A value does not have the attribute's type.
    """
    value_of_argument = {}
    for attribute in signature.attributes:
        if attribute.name not in recorded:
            continue
        value = _checked(attribute, recorded[attribute.name], signature.op_type)
        if not _is_default(attribute, value, signature.op_type):
            value_of_argument[attribute.argument] = value
    return value_of_argument


def _is_default(attribute: Attribute, value: Value, op_type: str) -> bool:
    """Returns whether a value is the default. Floats may differ by rounding, because a NodeDef holds float32."""
    if not attribute.has_default:
        return False
    default = _checked(attribute, attribute.default, op_type)
    if isinstance(value, float) and isinstance(default, float):
        return math.isclose(value, default, rel_tol=1e-6)
    return bool(value == default)


def _checked(attribute: Attribute, value: Value, op_type: str) -> Value:
    kind = attribute.type
    if kind.startswith("list("):
        if isinstance(value, (list, tuple)):
            return [_scalar(kind[5:-1], attribute, element, op_type) for element in value]
    else:
        return _scalar(kind, attribute, value, op_type)
    raise _wrong(attribute, value, op_type)


def _scalar(kind: str, attribute: Attribute, value: Value, op_type: str) -> Value:
    is_int = isinstance(value, int) and not isinstance(value, bool) and value in _INT64
    match kind:
        case "bool" if isinstance(value, bool):
            return value
        case "int" if is_int:
            return value
        case "float" if is_int or isinstance(value, float):
            return float(value)
        case "float" if value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        case "string" if isinstance(value, str) and (not attribute.values or value in attribute.values):
            return value
        case "type" if is_int and value in _DTYPES:
            return DtypeName(_DTYPES[value])
        case "shape" if value is None:
            return None
        case "shape" if isinstance(value, list) and all(
            isinstance(size, int) and not isinstance(size, bool) and size in _INT64 for size in value
        ):
            return [None if size < 0 else size for size in value]
    raise _wrong(attribute, value, op_type)


def _wrong(attribute: Attribute, value: Value, op_type: str) -> ReproError:
    text = printable(repr(value))[:80]
    return ReproError(
        f"the attribute {attribute.name} of {op_type} is {text} in the recording, expected a value of the type "
        f"{attribute.type}."
    )


def choices(
    signature: Signature, known_values: Mapping[str, Value], *, dtype: str | None, is_recorded: bool
) -> list[dict[str, Value]]:
    """Returns the combinations of attributes to try, from the most likely to the least likely.

    Args:
        signature: The op.
        known_values: The known attributes, by argument.
        dtype: The dtype of the op's output; None if unknown.
        is_recorded: Whether the recording has the attributes of the op that ran. If not, values other than
            `known_values` are tried too: a recording has no attributes of eager ops, and TensorFlow's optimizer can
            change the attributes of graph ops.

    Raises:
        ReproError: An attribute has no default, and the recording does not show it.
    """
    options: list[tuple[str, list[Value]]] = []
    for attribute in signature.attributes:
        if attribute.argument in known_values:
            values = [known_values[attribute.argument]]
            if not is_recorded and attribute.type == "bool":
                values.append(not known_values[attribute.argument])
        elif is_recorded and attribute.has_default:
            continue
        else:
            values = list(_options(attribute, dtype))
        if not values:
            raise ReproError(
                f"the attribute {attribute.name} of {signature.op_type} is not in the recording, and has no default. "
                "Record the op in a tf.function: the attributes of eager ops are not recorded."
            )
        options.append((attribute.argument, values))
    # The first value of each attribute is the most likely, so combinations with many first values come first.
    indexes = sorted(
        islice(product(*(range(len(values)) for _, values in options)), 4096), key=lambda picks: (sum(picks), picks)
    )
    combinations = []
    for combination in indexes[:MAX_CHOICES]:
        chosen = {name: values[index] for (name, values), index in zip(options, combination, strict=True)}
        combinations.append(_without_defaults(signature, chosen))
    return combinations


def _options(attribute: Attribute, dtype: str | None) -> Iterable[Value]:
    """Returns likely values of an unrecorded attribute, beginning with the default."""
    default = [_checked(attribute, attribute.default, "the op")] if attribute.has_default else []
    if attribute.type == "bool":
        return [*default, *({False, True} - set(default))]
    if attribute.argument in _GUESSES:
        return [*default, *(value for value in _GUESSES[attribute.argument] if value not in default)]
    if attribute.type == "type" and dtype is not None:
        return [DtypeName(dtype), *(value for value in default if value != DtypeName(dtype))]
    return default or list(attribute.values)


def _without_defaults(signature: Signature, chosen: Mapping[str, Value]) -> dict[str, Value]:
    by_argument = {attribute.argument: attribute for attribute in signature.attributes}
    return {
        name: value for name, value in chosen.items() if not _is_default(by_argument[name], value, signature.op_type)
    }


def split_inputs(signature: Signature, number: int, recorded: Mapping[str, Value]) -> list[tuple[str, int | None]]:
    """Returns each argument of an op with the number of inputs that it takes, in order.

    Args:
        signature: The op.
        number: Number of inputs.
        recorded: The recorded attributes, which can contain the lengths of lists.

    Returns:
        Pairs (argument, length). The length is None if the argument takes one tensor, and not a list of tensors.

    Raises:
        ReproError: The op cannot have this number of inputs.
    """
    lists = [length for _, length in signature.inputs if length]
    rest = number - (len(signature.inputs) - len(lists))
    lengths: list[int] = []
    for length in lists:
        value = recorded.get(length)
        if isinstance(value, list):
            lengths.append(len(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            lengths.append(value)
    if len(lengths) != len(lists) and lists:
        lengths = [rest // len(lists)] * len(lists)
    if sum(lengths) != rest or any(length < 0 for length in lengths):
        raise ReproError(
            f"{signature.op_type} takes {len(signature.inputs)} inputs, and the recording has {number} for it."
        )
    split: list[tuple[str, int | None]] = []
    for argument, length in signature.inputs:
        split.append((argument, lengths.pop(0) if length else None))
    return split
