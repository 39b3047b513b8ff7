"""Mutates files: bytes, JSON, protobuf, records with checksums, and the footer and rows of Parquet files."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.debugger_v2.file_sets import frame
from tfdbg_arrow.spool.journal import MAGIC
from tfdbg_arrow.spool.records import RECORD_DTYPE
from tfdbg_arrow.spool.spool_file import HEADER_SIZE
from tfdbg_arrow.storage.manifest import CHECKSUM_KEY, with_checksum

INTEGERS = (0, 1, -1, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    "", "\0", "\u202e\x1b[31m", "x" * 70_000, "[" * 5_000, '{"a":' * 900, "NaN", "1e999", "9" * 5_000,
    "../../etc/passwd", "__inference_f_0", "while/body", "/job:x/replica:y", "{}", "[1]",
    '"a"', "null", "'; DROP VIEW run; --",
)  # fmt: skip
BROKEN_UTF8 = (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80" * 9)
FLOATS = (0.0, -1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
LISTS: tuple[Any, ...] = ([], [-1], [0, 0], [2**63 - 1] * 3, [None], list(range(300)))


def spoiled(data: bytes, random: Random, *, hot: range | None = None) -> bytes:
    """Returns bytes with one to four mutations.

    Args:
        data: The bytes.
        random: Generator that makes the choices.
        hot: Range of positions that gets most mutations. None means all positions.
    """
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        place = hot if hot and random.random() < 0.8 else range(len(changed))
        random.choice(_BYTE_MUTATORS)(changed, _position(place, len(changed), random), random)
    return bytes(changed)


def _position(place: range, size: int, random: Random) -> int:
    return min(random.choice(place), max(0, size - 1)) if place else 0


def _flip(data: bytearray, at: int, random: Random) -> None:
    if data:
        data[at] ^= 1 << random.randrange(8)


def _overwrite(data: bytearray, at: int, random: Random) -> None:
    length = random.choice((1, 2, 4, 8, 16, 64))
    data[at : at + length] = random.randbytes(length)[: len(data) - at]


def _number(data: bytearray, at: int, random: Random) -> None:
    """Writes a large or a small number, little-endian or as a varint."""
    value = random.choice(INTEGERS) % 2**64
    if random.random() < 0.4:
        made = bytearray()
        while value >= 0x80:
            made.append(value & 0x7F | 0x80)
            value >>= 7
        made.append(value)
    else:
        size = random.choice((1, 2, 4, 8))
        made = bytearray((value % 2 ** (8 * size)).to_bytes(size, "little"))
    data[at : at + len(made)] = made


def _truncate(data: bytearray, at: int, random: Random) -> None:
    del data[at:]


def _remove(data: bytearray, at: int, random: Random) -> None:
    del data[at : at + random.choice((1, 3, 8, 100, 4096))]


def _duplicate(data: bytearray, at: int, random: Random) -> None:
    block = data[at : at + random.choice((1, 8, 100, 4096))]
    data[at:at] = block * random.choice((1, 2, 20))


def _splice(data: bytearray, at: int, random: Random) -> None:
    source = random.randrange(len(data)) if data else 0
    length = random.choice((4, 16, 100, 1000))
    data[at : at + length] = data[source : source + length]


def _no_text(data: bytearray, at: int, random: Random) -> None:
    data[at:at] = random.choice(BROKEN_UTF8)


def _digits(data: bytearray, at: int, random: Random) -> None:
    data[at : at + 1] = str(random.choice(INTEGERS)).encode() * random.choice((1, 1, 300))


_BYTE_MUTATORS: Sequence[Callable[[bytearray, int, Random], None]] = (
    _flip, _flip, _overwrite, _number, _number, _truncate, _remove, _duplicate, _splice, _no_text, _digits,
)  # fmt: skip


def spoiled_json(text: str, random: Random) -> str:
    """Returns a JSON text in which one value is replaced, removed, duplicated or wrapped."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if text.startswith("[["):  # it was wrapped before, and is nested too deeply for recursion
        return text
    holders = list(_holders(value))
    if not holders:
        return json.dumps(_any_value(random))
    holder, key = random.choice(holders)
    match random.randrange(5):
        case 0:
            del holder[key]
        case 1:
            holder[key] = [holder[key]]
        case 2 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case _:
            holder[key] = _any_value(random)
    if random.random() < 0.03:
        depth = random.choice((200, 900, 20_000))
        return "[" * depth + json.dumps(value) + "]" * depth
    return json.dumps(value)


def _holders(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _holders(value[key])


def _any_value(random: Random) -> Any:
    return random.choice((*INTEGERS, *TEXTS, *FLOATS[:5], None, True, False, {}, [], [[]], {"a": [1]}, 10**400))


def spoiled_lines(data: bytes, random: Random) -> bytes:
    """Returns a file of JSON lines in which some lines are changed, duplicated, moved or removed."""
    lines = data.decode("utf-8", "replace").split("\n")
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(lines))
        match random.randrange(6):
            case 0:
                lines.insert(at, lines[random.randrange(len(lines))])
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines.insert(0, lines.pop(at))
            case _:
                lines[at] = spoiled_json(lines[at], random)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def spoiled_lines_with_checksums(data: bytes, random: Random) -> bytes:
    """Returns the result of `spoiled_lines` with valid checksums, as an attacker would write it."""
    made = b""
    for line in spoiled_lines(data, random).decode("utf-8", "surrogatepass").split("\n"):
        begin, has_checksum, _ = line.rpartition(f', "{CHECKSUM_KEY}": ')
        text = with_checksum(begin + "}\n", before=zlib.crc32(made)) if has_checksum else line + "\n"
        made += text.encode("utf-8", "surrogatepass")
    return made


def spoiled_records(records: list[bytes], random: Random) -> bytes:
    """Returns a TFRecord file with mutated records and valid checksums."""
    changed = list(records)
    for _ in range(random.choice((1, 1, 3))):
        at = random.randrange(len(changed)) if changed else 0
        match random.randrange(6):
            case 0 if changed:
                changed.insert(random.randrange(len(changed)), changed[at])
            case 1 if changed:
                del changed[at]
            case 2 if changed:
                changed.insert(0, changed.pop(at))
            case _ if changed:
                changed[at] = spoiled(changed[at], random)
    return b"".join(map(frame, changed))


def spoiled_journal(data: bytes, random: Random) -> bytes:
    """Returns a journal with mutated entries and valid checksums."""
    pieces = data.split(MAGIC)[1:]
    payloads = [piece[8:] for piece in pieces]
    for _ in range(random.choice((1, 1, 3))):
        if not payloads:
            break
        at = random.randrange(len(payloads))
        payload = payloads[at]
        match random.randrange(5):
            case 0:
                payloads.insert(at, payload)
            case 1:
                del payloads[at]
            case 2:
                payloads[at] = spoiled(payload, random)
            case _ if payload[:1] in (b"j", b"t"):
                data, newline, text = payload[1:].partition(b"\n")
                mutated = spoiled_json(data.decode("utf-8", "replace"), random).encode("utf-8", "surrogatepass")
                payloads[at] = payload[:1] + mutated + newline + text
    return b"".join(MAGIC + struct.pack("<II", len(p), zlib.crc32(p)) + p for p in payloads)


def spoiled_spool(data: bytes, random: Random, *, num_records: int) -> bytes:
    """Returns a spool with changes to some fields of its first records, or to its header."""
    if random.random() < 0.2:
        return spoiled(data, random, hot=range(min(256, len(data))))
    content = bytearray(data)
    records = np.frombuffer(content, RECORD_DTYPE, offset=HEADER_SIZE)
    names = [name for name in RECORD_DTYPE.names or () if RECORD_DTYPE[name].kind in "iu"]
    for _ in range(random.choice((1, 3, 10))):
        name, at = random.choice(names), random.randrange(min(num_records, len(records)))
        value = random.choice((*INTEGERS, int(records[random.randrange(num_records)][name].flat[0])))
        size = RECORD_DTYPE[name].base.itemsize
        field = records[name][at : at + random.choice((1, 1, 40))]
        field[...] = np.array(value % 2 ** (8 * size), f"u{size}").view(field.dtype)
    return bytes(content)


def spoiled_message(data: bytes, random: Random) -> bytes:
    """Returns a protobuf message with one to four changed fields at any depth. Most results can still be parsed."""
    for _ in range(random.choice((1, 1, 2, 4))):
        data = _message(data, random, depth=0)
    return data


Field = tuple[int, int, bytes | int]
"""Number, wire type and value of a message field."""


def _message(data: bytes, random: Random, *, depth: int) -> bytes:
    fields = _fields(data)
    if not fields or random.random() < 0.1:
        return spoiled(data, random)
    at = random.randrange(len(fields))
    number, wire, value = fields[at]
    if isinstance(value, bytes) and wire == 2 and depth < 5 and random.random() < 0.75:
        fields[at] = number, wire, _message(value, random, depth=depth + 1)
        return b"".join(map(_field, fields))
    made = _field(fields[at])
    match random.randrange(10):
        case 0:
            made = b""
        case 1:
            made *= random.choice((2, 3, 300))
        case 2:
            made = _field(fields[random.randrange(len(fields))])
        case 3:
            made += _field((number, 2, random.choice(TEXTS).encode()))
        case 4:
            made = _field((number, 2, random.choice(BROKEN_UTF8)))
        case 5:
            made = _field((number, 0, random.choice(INTEGERS) % 2**64))
        case 6:
            made = _field((random.choice((0, 1, 2, 3, 4, 5, 6, 1000, 2**29 - 1, 2**40)), wire, value))
        case 7 if isinstance(value, bytes):
            made = varint(number << 3 | wire, length=random.choice((2, 3, 10))) + varint(len(value), length=9) + value
        case 8:
            made = varint(number << 3 | 2) + varint(random.choice(INTEGERS) % 2**64)
        case _:
            for _ in range(random.choice((1, 50, 5_000))):
                made = _field((number, 2, made))
    return b"".join(map(_field, fields[:at])) + made + b"".join(map(_field, fields[at + 1 :]))


def varint(value: int, *, length: int = 1) -> bytes:
    """Returns a number as a protobuf varint of at least `length` bytes."""
    made = bytearray()
    while value >= 0x80 or len(made) < length - 1:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _field(field: Field) -> bytes:
    number, wire, value = field
    tag = varint(number << 3 | wire)
    if isinstance(value, int):
        return tag + varint(value)
    return tag + (varint(len(value)) if wire == 2 else b"") + value


def _fields(data: bytes) -> list[Field] | None:
    """Returns the fields of a message, or None if the bytes are not a message."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        try:
            tag, at = _varint_at(data, at)
            wire = tag & 7
            if wire == 0:
                number, at = _varint_at(data, at)
                fields.append((tag >> 3, wire, number))
                continue
            size = {1: 8, 5: 4}.get(wire, 0)
            if wire == 2:
                size, at = _varint_at(data, at)
        except IndexError:
            return None
        if wire not in (1, 2, 5) or at + size > len(data):
            return None
        fields.append((tag >> 3, wire, data[at : at + size]))
        at += size
    return fields


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def spoil_part(path: Path, random: Random) -> None:
    """Mutates the bytes of a Parquet file, in its pages or in its footer."""
    data = path.read_bytes()
    (footer,) = struct.unpack("<I", data[-8:-4])
    hot = range(len(data) - 8 - footer, len(data)) if random.random() < 0.6 else None
    path.write_bytes(spoiled(data, random, hot=hot))


def spoil_rows(path: Path, random: Random) -> None:
    """Rewrites a Parquet file as a valid file with rows that no recording writes."""
    table = pq.ParquetFile(path).read()
    table = pa.table(
        [pa.array(column.to_pylist(), _nullable(column.type)) for column in table.columns], table.schema.names
    )
    for _ in range(random.choice((1, 1, 2, 4))):
        table = random.choice(_TABLE_MUTATORS)(table, random)
    pq.write_table(table, path)


def _nullable(type_: pa.DataType) -> pa.DataType:
    return pa.list_(type_.value_type) if pa.types.is_list(type_) else type_


def _cells(table: pa.Table, random: Random) -> pa.Table:
    if not table.num_rows or not table.num_columns:
        return table
    at = random.randrange(table.num_columns)
    field, values = table.schema.field(at), table.column(at).to_pylist()
    for _ in range(random.choice((1, 1, 3, 50))):
        values[random.randrange(len(values))] = _cell(field.type, values, random)
    return table.set_column(at, pa.field(field.name, field.type), pa.array(values, field.type))


def _cell(type_: pa.DataType, values: Sequence[Any], random: Random) -> Any:
    draw = random.random()
    if draw < 0.25 or pa.types.is_null(type_):
        return None
    if draw < 0.5:
        return random.choice(values)
    if pa.types.is_integer(type_):
        bits = type_.bit_width - 1
        return max(-(2**bits), min(2**bits - 1, random.choice(INTEGERS)))
    if pa.types.is_floating(type_):
        return random.choice(FLOATS)
    if pa.types.is_boolean(type_):
        return random.random() < 0.5
    if pa.types.is_list(type_):
        return random.choice(LISTS) if pa.types.is_integer(type_.value_type) else [random.choice(TEXTS)]
    if pa.types.is_timestamp(type_):
        return random.choice((0, -1, 2**53))
    text = random.choice(TEXTS)
    return text.encode() if pa.types.is_binary(type_) else text


def _other_type(table: pa.Table, random: Random) -> pa.Table:
    at = random.randrange(table.num_columns)
    name, column = table.schema.names[at], table.column(at)
    wanted = random.choice((pa.string(), pa.float64(), pa.int32(), pa.list_(pa.string()), pa.bool_(), pa.null()))
    try:
        made = column.cast(wanted)
    except (pa.ArrowException, NotImplementedError):
        made = pa.nulls(table.num_rows, wanted)
    return table.set_column(at, name, made)


def _no_column(table: pa.Table, random: Random) -> pa.Table:
    return table.remove_column(random.randrange(table.num_columns)) if table.num_columns > 1 else table


def _renamed(table: pa.Table, random: Random) -> pa.Table:
    names = list(table.schema.names)
    names[random.randrange(len(names))] = random.choice(("x", "", "run_id", names[0].upper()))
    return table.rename_columns(names) if len(set(names)) == len(names) else table


def _other_rows(table: pa.Table, random: Random) -> pa.Table:
    if not table.num_rows:
        return table
    rows = random.choices(range(table.num_rows), k=random.choice((0, 1, table.num_rows, 2 * table.num_rows)))
    return table.take(pa.array(rows, pa.int64()))


_TABLE_MUTATORS: Sequence[Callable[[pa.Table, Random], pa.Table]] = (
    _cells, _cells, _cells, _cells, _cells, _cells, _other_type, _no_column, _renamed, _other_rows,
)  # fmt: skip
