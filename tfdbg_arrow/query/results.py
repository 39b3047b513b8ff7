"""Answers as data frames: turns a sequence of dataclasses that the query layer returned into an Arrow table.

to_polars(logdir.history("Softmax")).group_by("step").agg(pl.col("max_finite").max())

Each attribute becomes one column, in order. A nested dataclass becomes a struct, a tuple becomes a list, and None
becomes NULL. NaN stays NaN. `NonFinite.forward` becomes several columns, such as `forward_op_type` and
`forward_op_name`. The source line of `NonFinite.forward` becomes the columns `forward_file_path`, `forward_lineno`,
`forward_func`, `forward_code`, `forward_owner`, `forward_colno` and `forward_end_colno`.

The declaration of the dataclass determines the types of the columns, except for elements of tensors (`object`). If all
elements of a tensor column have the same type, the column has booleans, integers or floats. Otherwise, the column has
text.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from tfdbg_arrow.errors import MissingDependencyError, QueryError
from tfdbg_arrow.query.recorded import FLAT

_SCALARS: Mapping[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
}
_INT64 = range(-(2**63), 2**63)


def to_arrow(rows: Iterable[Any], row_type: type | None = None) -> pa.Table:
    """Returns rows as an Arrow table.

    Args:
        rows: Instances of one dataclass, as returned by `nonfinite()`, `history()`, `alerts().alerts`,
            `provenance().hops`, `coverage().stats` and `doctor().findings`.
        row_type: The dataclass. This argument is required if `rows` can be empty.

    Raises:
        QueryError: There are no rows and no `row_type`, or a row is of another type.
    """
    all_rows = list(rows)
    kind = row_type or (type(all_rows[0]) if all_rows else None)
    if kind is None:
        raise QueryError(
            "there are no rows to take the columns from; pass the type of the rows, as in to_arrow(rows, NonFinite)."
        )
    if not dataclasses.is_dataclass(kind):
        raise QueryError(f"rows are {kind.__name__}, expected a dataclass of tfdbg_arrow.query such as NonFinite.")
    other = next((row for row in all_rows if type(row) is not kind), None)
    if other is not None:
        raise QueryError(f"a row is a {type(other).__name__}, expected only {kind.__name__}.")
    flat = {field.name for field in dataclasses.fields(kind) if field.metadata.get(FLAT)}
    columns: dict[str, pa.Array] = {}
    for name, annotation in _attributes(kind):
        values = [getattr(row, name) for row in all_rows]
        columns |= _flat(name, values, annotation) if name in flat else {name: _array(values, annotation)}
    return pa.table(columns)


def to_polars(rows: Iterable[Any], row_type: type | None = None) -> Any:
    """Returns rows as a `polars.DataFrame`, with the arguments and errors of `to_arrow`.

    Raises:
        MissingDependencyError: Polars is not installed.
    """
    return as_polars(to_arrow(rows, row_type))


def to_pandas(rows: Iterable[Any], row_type: type | None = None) -> Any:
    """Returns rows as a `pandas.DataFrame` with Arrow types, with the arguments and errors of `to_arrow`.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    return as_pandas(to_arrow(rows, row_type))


def as_polars(table: pa.Table) -> Any:
    """Returns an Arrow table as a `polars.DataFrame`.

    Raises:
        MissingDependencyError: Polars is not installed.
    """
    try:
        import polars
    except ImportError as error:
        raise MissingDependencyError("Polars is not installed; run: pip install polars") from error
    return polars.from_arrow(table)


def as_pandas(table: pa.Table) -> Any:
    """Returns an Arrow table as a `pandas.DataFrame` with Arrow types.

    Unlike NumPy types, Arrow types keep integers that are NULL in some rows, and distinguish NULL from NaN.

    Raises:
        MissingDependencyError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError("pandas is not installed; run: pip install pandas") from error
    return table.to_pandas(types_mapper=pandas.ArrowDtype)


@cache
def _attributes(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def _flat(prefix: str, values: Sequence[Any], annotation: Any) -> dict[str, pa.Array]:
    """Returns a column for each attribute of dataclasses, including the attributes of nested dataclasses.

    If a value is None instead of a dataclass, all of its columns are NULL.
    """
    kind = _dataclass_in(annotation)
    assert kind is not None
    columns: dict[str, pa.Array] = {}
    for name, type_ in _attributes(kind):
        inner = [None if value is None else getattr(value, name) for value in values]
        if _dataclass_in(type_) is not None:
            columns |= _flat(prefix, inner, type_)
        else:
            columns[f"{prefix}_{name}"] = _array(inner, type_)
    return columns


def _dataclass_in(annotation: Any) -> type | None:
    """Returns the dataclass in an annotation such as `Frame` or `Frame | None`; None if there is no dataclass."""
    named = (annotation, *typing.get_args(annotation))
    return next(
        (candidate for candidate in named if isinstance(candidate, type) and dataclasses.is_dataclass(candidate)), None
    )


def _array(values: Sequence[Any], annotation: Any) -> pa.Array:
    """Returns the values of one attribute, with the Arrow type of its annotation."""
    type_ = _arrow_type(annotation, values)
    return pa.array([_plain(value, type_) for value in values], type_, from_pandas=False)


def _arrow_type(annotation: Any, values: Iterable[Any]) -> pa.DataType:
    """Returns the Arrow type of an annotation. For `object`, the values determine it."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    there = [value for value in values if value is not None]
    if annotation is object:
        return _element_type(there)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return pa.struct(
            [
                (name, _arrow_type(type_, [getattr(value, name) for value in there]))
                for name, type_ in _attributes(annotation)
            ]
        )
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union) and len(arguments) == 2 and type(None) in arguments:
        return _arrow_type(next(argument for argument in arguments if argument is not type(None)), there)
    if origin in (tuple, list):
        return pa.list_(_arrow_type(arguments[0], [element for value in there for element in value]))
    raise QueryError(f"{annotation!r} has no column type; pass a sequence of rows, such as the attribute with them.")


def _element_type(values: Sequence[object]) -> pa.DataType:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(value in _INT64 for value in values):
        return pa.int64()
    return pa.float64() if kinds <= {int, float} else pa.string()


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Converts a value for a column of an Arrow type: a dataclass to a dict, and an element to a float or text."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _plain(getattr(value, field.name), field.type) for field in type_}
    if pa.types.is_list(type_):
        return [_plain(element, type_.value_type) for element in value]
    if pa.types.is_floating(type_):
        return float(value)
    return str(value) if pa.types.is_string(type_) else value
