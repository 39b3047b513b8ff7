"""Writes tfdbg_arrow/reproduction/op_signatures.json: the ops that a repro script may run, and how to call these ops.

A logdir is untrusted, so a script only runs ops from this list. These ops compute numbers from numbers, and do not use
files, the network, Python functions or resources. Only the ops that draw random numbers have a state.

    python tools/op_signatures.py            # renews the file
    python tools/op_signatures.py --print    # prints it
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

PATH = Path(__file__).parent.parent / "tfdbg_arrow" / "reproduction" / "op_signatures.json"
_NUMBERS = frozenset(
    types_pb2.DataType.Value(f"DT_{name}")
    for name in (
        "FLOAT",
        "DOUBLE",
        "HALF",
        "BFLOAT16",
        "FLOAT8_E5M2",
        "FLOAT8_E4M3FN",
        "COMPLEX64",
        "COMPLEX128",
        "BOOL",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
    )
)
_STRING = types_pb2.DT_STRING
_RANDOM = re.compile(r"Multinomial|ParameterizedTruncatedNormal|Random\w+|TruncatedNormal")
_OF_STRINGS = frozenset({
    "AsString", "DecodeCSV", "DecodePaddedRaw", "DecodeRaw", "StringJoin", "StringLength", "StringLower", "StringStrip",
    "StringToHashBucketFast", "StringToHashBucketStrong", "StringToNumber", "StringUpper", "Substr",
})  # fmt: skip
"""The allowed ops that take or return strings. Other such ops read files, or decode formats that no script needs."""
_OTHERS = re.compile(
    r"(Audio|Batch$|BoostedTrees|Check|Collective|ConvertTo|Copy|Cudnn|Debug|Enter$|Exit$|FakeParam|FixedUnigram|GetStats"
    r"|ImmutableConst|LoopCond|Merge$|NextIteration|Placeholder|PyFunc|Quantized|Sdca|SortList|Switch|TPU|TensorArray"
    r"|Unbatch|Xla)"
)
"""Ops that read files, take part in control flow, or run only inside other ops."""
_FUSED = {
    "_FusedBatchNormEx": "FusedBatchNormV3",
    "_FusedConv2D": "Conv2D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
    "_UnaryOpsComposition": None,
}
"""Ops that only TensorFlow's optimizer makes. Each op has all attributes of the given op of `tf.raw_ops`."""


def signatures() -> dict[str, dict[str, Any]]:
    """Returns, by op type, the arguments of `tf.raw_ops` for its inputs and attributes.

    `inputs` is a list of [argument, attribute that gives the length of a list of tensors, or an empty text].
    `attributes` maps an argument to `type`, `name` (the attribute in a NodeDef, if it differs), `values` (the allowed
    texts) and `default`. `is_single` is false if the op returns several tensors or a list. Only ops that are not in
    `tf.raw_ops` have `types`: a list of [attribute that holds a dtype, input with this dtype].
    """
    found = {}
    for op_type in sorted(dir(tf.raw_ops)):
        op_def = op_def_registry.get(op_type)
        if op_def is not None and is_numeric(op_def):
            found[op_type] = signature(op_def)
    for op_type, base in _FUSED.items():
        found[op_type] = fused_signature(op_def_registry.get(op_type), found[base]["attributes"] if base else {})
    return found


def is_numeric(op_def: Any) -> bool:
    """Returns whether an op only computes numbers from numbers."""
    name = op_def.name
    if _OTHERS.match(name) or (op_def.is_stateful and not _RANDOM.fullmatch(name)) or not op_def.output_arg:
        return False
    attributes = {attr.name: attr for attr in op_def.attr}
    if any("func" in attr.type or "tensor" in attr.type for attr in op_def.attr):
        return False
    allowed = _NUMBERS | ({_STRING} if name in _OF_STRINGS else frozenset())
    for arg in (*op_def.input_arg, *op_def.output_arg):
        if arg.is_ref or (arg.type and arg.type not in allowed):
            return False
        values = attributes[arg.type_attr].allowed_values.list.type if arg.type_attr else ()
        if values and not set(values) & allowed:
            return False
    return True


def signature(op_def: Any) -> dict[str, Any]:
    """Returns the arguments of an op in `tf.raw_ops`, which renames some inputs and attributes of the NodeDef."""
    parameters = dict(inspect.signature(getattr(tf.raw_ops, op_def.name)).parameters)
    parameters.pop("name", None)
    attributes = {attr.name: attr for attr in op_def.attr}
    inferred = {getattr(arg, key) for arg in op_def.input_arg for key in ("type_attr", "number_attr", "type_list_attr")}
    known = {arg.name for arg in op_def.input_arg} | set(attributes)
    renamed = [name for name in parameters if name not in known]
    inputs = []
    for arg in op_def.input_arg:
        argument = arg.name if arg.name in parameters else renamed.pop(0)
        inputs.append([argument, arg.number_attr or arg.type_list_attr])
    arguments: dict[str, Any] = {}
    for attr in op_def.attr:
        if attr.name in inferred and attr.name not in parameters:
            continue
        argument = attr.name if attr.name in parameters else renamed.pop(0)
        entry: dict[str, Any] = {"type": attr.type}
        if argument != attr.name:
            entry["name"] = attr.name
        if attr.allowed_values.list.s:
            entry["values"] = [value.decode() for value in attr.allowed_values.list.s]
        default = parameters[argument].default
        if default is not inspect.Parameter.empty:
            entry["default"] = default.as_datatype_enum if isinstance(default, tf.DType) else default
        arguments[argument] = entry
    outputs = op_def.output_arg
    is_single = len(outputs) == 1 and not (outputs[0].number_attr or outputs[0].type_list_attr)
    return {"inputs": inputs, "attributes": arguments, "is_single": is_single, "is_random": bool(op_def.is_stateful)}


def fused_signature(op_def: Any, base: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of an op that is not in `tf.raw_ops`.

    `base` has the attributes of the op that it replaces.
    """
    args = [arg for arg in op_def.input_arg if arg.name != "host_args"]  # the optimizer adds none
    types: dict[str, str] = {}
    for arg in args:
        types.setdefault(arg.type_attr or arg.type_list_attr, arg.name)
    inferred = {*types, *(arg.number_attr for arg in op_def.input_arg), "num_args"}
    own = {attr.name: fused_attribute(attr) for attr in op_def.attr if attr.name not in inferred}
    names = [*(name for name in own if name not in base), *(name for name in base if name in own)]
    return {
        "inputs": [[arg.name, "num_args" if arg.type_list_attr else arg.number_attr] for arg in args],
        "attributes": {name: own[name] for name in names},
        "is_single": len(op_def.output_arg) == 1,
        "is_random": False,
        "types": [[attribute, argument] for attribute, argument in types.items()],
    }


def fused_attribute(attr: Any) -> dict[str, Any]:
    """Returns the type, the allowed texts and the default of an attribute of an OpDef."""
    entry: dict[str, Any] = {"type": attr.type}
    if attr.allowed_values.list.s:
        entry["values"] = [value.decode() for value in attr.allowed_values.list.s]
    default = attr.default_value
    match default.WhichOneof("value"):
        case "list":
            entry["default"] = list(default.list.i)
        case "s":
            entry["default"] = default.s.decode()
        case "f":
            entry["default"] = float(f"{default.f:.7g}")  # a float32
        case "b":
            entry["default"] = default.b
    return entry


def text() -> str:
    """Returns the content of the file, with one op per line."""
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in signatures().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        sys.stdout.write(text())
    else:
        PATH.write_text(text(), encoding="utf-8")
