"""Writes the headers of the native core that repeat declarations of the Python code.

* `op_traits.h`: what types of ops do, from schema/op_traits.py.
* `measures.h`: the counts and magnitudes of a tensor, from `COUNTS` and `MAGNITUDES` in spool/records.py.
* `record.h`: the layout of a record, from spool/records.py.

    python tools/native_headers.py            # renews the headers
    python tools/native_headers.py --check    # fails if a header is stale

`make lint` runs the check.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, IntFlag
from pathlib import Path

import numpy as np

from tfdbg_arrow.schema.op_traits import BORDERS, Trait, types_with
from tfdbg_arrow.spool import records
from tfdbg_arrow.spool.records import ALIASES, COUNTS, MAGNITUDES, RECORD_DTYPE, Flag, Kind, Measure

_DIRECTORY = Path(__file__).resolve().parents[1] / "tfdbg_arrow" / "writer" / "native"
_FUNCTIONS: tuple[tuple[str, Trait, str], ...] = (
    ("is_enter", Trait.ENTERS, "Nodes that hand a tensor into a loop."),
    ("is_exit", Trait.EXITS, "Nodes that hand a tensor out of a loop."),
    ("is_next", Trait.NEXT, "Nodes that hand a tensor to the next iteration."),
    ("is_switch", Trait.SWITCHES, "Nodes that hand a tensor to one of several branches, or into the body of a loop."),
    ("is_merge", Trait.MERGES, "Nodes that hand on the one of their inputs that was computed."),
    ("is_argument", Trait.ARGUMENT, "Arguments of the outermost function."),
    ("is_result", Trait.RESULT, "Results of the outermost function."),
    ("is_call", Trait.CALLS | Trait.BRANCHES | Trait.LOOPS, "Ops that run functions."),
    ("has_to_be_fed", Trait.FED, "Ops whose output has to be fed in a run of a session."),
    (
        "has_own_memory",
        Trait.OWN_MEMORY,
        "Ops whose output never lies in the memory of an input that something else holds.",
    ),
    (
        "forwards_or_fails",
        Trait.CAN_FAIL,
        "Ops that hand their input on, or fail because of its elements or its shape.",
    ),
    (
        "passes_on",
        Trait.STANDS_FOR_CALL,
        "Nodes that TensorFlow puts in place of a call. Their output is equal to their input.",
    ),
    (
        "is_plumbing",
        (BORDERS & ~Trait.ARGUMENT) | Trait.SENDS | Trait.ORDERS,
        "Nodes that control loops, branches and calls, or that pass tensors between devices and functions.",
    ),
)
_TYPES = {"<u8": "uint64_t", "<i8": "int64_t", "<f8": "double", "<i4": "int32_t", "<i2": "int16_t", "|u1": "uint8_t"}
"""The types of the native core, by the formats of NumPy."""
_CONSTANTS: Mapping[str, tuple[str, int]] = {
    "kSpoolVersion": ("uint32_t", records.SPOOL_VERSION),
    "kNumInlineDims": ("int", records.NUM_INLINE_DIMS),
    "kPayloadLength": ("int", records.PAYLOAD_LENGTH),
    "kBucketsShift": ("int", records.BUCKETS_SHIFT),
    "kNoValue": ("int64_t", records.NO_VALUE),
}


def _op_traits() -> str:
    functions = [
        f"// {comment}\n"
        f"inline bool {name}(std::string_view op) {{\n"
        "  static const std::unordered_set<std::string_view> types = {\n"
        + "".join(f'      "{op_type}",\n' for op_type in sorted(types_with(traits)))
        + "  };\n  return types.count(op) != 0;\n}\n"
        for name, traits, comment in _FUNCTIONS
    ]
    return _header(
        "What types of ops do.", "schema/op_traits.py", ("<string_view>", "<unordered_set>"), "\n".join(functions)
    )


def _measures() -> str:
    kinds = (("Health", "health", COUNTS), ("Magnitudes", "magnitudes", MAGNITUDES))
    body = [f"constexpr int kNumCounts = {len(COUNTS)};\nconstexpr int kNumMagnitudes = {len(MAGNITUDES)};\n"]
    for name, short_name, measures in kinds:
        writes = (f"  row[{i}] = static_cast<double>(numbers.{measure.field});" for i, measure in enumerate(measures))
        reads = (f"static_cast<{_type_of(measure)}>(row[{i}])" for i, measure in enumerate(measures))
        body += [
            f"struct {name} {{\n" + "".join(f"  {_type_of(m)} {m.field};\n" for m in measures) + "};\n",
            f"inline void write_row(const {name}& numbers, double* row) {{\n" + "\n".join(writes) + "\n}\n",
            f"inline {name} {short_name}_of_row(const double* row) {{\n  return {{\n{_listed(reads)}  }};\n}}\n",
        ]
    sums = (f"  sums->{measure.field} += counts.{measure.field};\n" for measure in COUNTS)
    body.append("inline void add_counts(const Health& counts, Health* sums) {\n" + "".join(sums) + "}\n")
    are_counts = ("true" if measure.format == "<i8" else "false" for measure in (*COUNTS, *MAGNITUDES))
    body.append(
        "// Whether a number of a row, which has the counts and then the magnitudes, is a number of elements.\n"
        f"constexpr bool kIsCount[kNumCounts + kNumMagnitudes] = {{\n{_listed(are_counts)}}};\n"
    )
    return _header("The numbers that are measured of a tensor.", "spool/records.py", ("<cstdint>",), "\n".join(body))


def _listed(items: Iterable[str]) -> str:
    return "".join(f"    {item},\n" for item in items)


def _record() -> str:
    places = [(name, *place[:2]) for name, place in (RECORD_DTYPE.fields or {}).items() if name not in ALIASES]
    measures = [measure.field for measure in (*COUNTS, *MAGNITUDES)]
    facts_offset = records.RECORD_SIZE - records.PAYLOAD_BYTES
    facts: list[str] = []
    shared: list[str] = []
    for name, dtype, offset in places:
        if name in (COUNTS[0].field, MAGNITUDES[0].field):
            facts.append("  Health health;" if name == COUNTS[0].field else "  Magnitudes magnitudes;")
        if name not in measures:
            (shared if offset < facts_offset else facts).append(_member(name, dtype))
    lines = [
        *(f"constexpr {type_} {name} = {value};" for name, (type_, value) in _CONSTANTS.items()),
        "constexpr int64_t kNoStep = INT64_MIN;\n",
        _enum("Kind", "uint8_t", Kind),
        _enum("Flag", "int32_t", Flag),
        "// The facts that a tensor's record has besides the fields that all kinds of records share.",
        "struct TensorFacts {\n" + "\n".join(facts) + "\n};\n",
        "// `commit` is event_index + 1. It is stored last, with release order. Any other value means that the record",
        "// is not written yet.",
        "struct Record {\n" + "\n".join(shared),
        "  union {\n    TensorFacts tensor;\n    int64_t payload[kPayloadLength];\n  };\n};\n",
        f"static_assert(sizeof(Record) == {records.RECORD_SIZE});",
    ]
    for name, _, offset in places:
        path = name if offset < facts_offset else f"tensor.{_group(name)}{name}"
        lines.append(f"static_assert(offsetof(Record, {path}) == {offset});")
    return _header(
        "One event in the spool, in little-endian order.",
        "spool/records.py, which explains the fields",
        ("<cstddef>", "<cstdint>", '"measures.h"'),
        "\n".join(lines) + "\n",
    )


def _member(name: str, dtype: np.dtype[np.generic]) -> str:
    type_ = _TYPES[dtype.base.str]
    aliases = [alias for alias, original in ALIASES.items() if original == name]
    if aliases:
        members = "".join(f"    {type_} {member};\n" for member in (name, *aliases))
        return f"  union {{\n{members}  }};"
    return f"  {type_} {name}" + "".join(f"[{length}]" for length in dtype.shape) + ";"


def _group(name: str) -> str:
    if any(measure.field == name for measure in COUNTS):
        return "health."
    return "magnitudes." if any(measure.field == name for measure in MAGNITUDES) else ""


def _enum(name: str, type_: str, members: type[IntEnum] | type[IntFlag]) -> str:
    lines = (f"  k{member.name.title().replace('_', '')} = {member.value}," for member in members if member.name)
    return f"enum {name} : {type_} {{\n" + "\n".join(lines) + "\n};\n"


def _type_of(measure: Measure) -> str:
    return _TYPES[measure.format]


def _header(subject: str, source: str, includes: Sequence[str], body: str) -> str:
    return (
        f"// {subject}\n// Generated by `python tools/native_headers.py` from {source}.\n#pragma once\n\n"
        + _include_lines(includes)
        + f"\nnamespace tfdbg_arrow {{\n\n{body}\n}}  // namespace tfdbg_arrow\n"
    )


def _include_lines(includes: Sequence[str]) -> str:
    system = "".join(f"#include {name}\n" for name in includes if name.startswith("<"))
    own = "".join(f"#include {name}\n" for name in includes if name.startswith('"'))
    return f"{system}\n{own}" if own else system


HEADERS = {"op_traits.h": _op_traits, "measures.h": _measures, "record.h": _record}


def main() -> int:
    """Writes or checks the headers, and returns the exit code."""
    is_check = sys.argv[1:] == ["--check"]
    is_stale = False
    for name, content in HEADERS.items():
        path = _DIRECTORY / name
        if not is_check:
            path.write_text(content(), encoding="utf-8")
        elif path.read_text(encoding="utf-8") != content():
            print(f"{path} is stale. Run: python tools/native_headers.py")
            is_stale = True
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
