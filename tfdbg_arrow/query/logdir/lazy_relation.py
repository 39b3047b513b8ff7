"""LazyRelation: a relation of DuckDB that raises this package's exceptions when it is read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import duckdb

if TYPE_CHECKING:
    import pyarrow as pa

_Result = TypeVar("_Result")


class _Errors(Protocol):
    """The methods that a relation needs from the logdir that made it."""

    def _run(self, action: Callable[[], _Result]) -> _Result:
        """Returns the result of an action, and repeats the action if the parts changed.

        Raises this package's exceptions.
        """

    def _told(self, error: Exception) -> Exception:
        """Returns this package's exception for an error of DuckDB."""


class LazyRelation:
    """A `duckdb.DuckDBPyRelation` with the same attributes and methods, which raise this package's exceptions.

    DuckDB reads the parts when the relation is read, and raises its own errors at that time. `relation` is DuckDB's
    relation, for functions that accept no other class.

    Args:
        errors: The logdir.
        make: Makes DuckDB's relation. `make` is called again after an error that a new relation avoids, because parts
            were replaced or a broken part is now left out.
        relation: The relation, if it is already made.
    """

    def __init__(self, errors: _Errors, make: Callable[[], Any], relation: Any = None) -> None:
        self._errors, self._make = errors, make
        self._relation: Any = errors._run(make) if relation is None else relation

    @property
    def relation(self) -> Any:
        """The relation of DuckDB, which raises DuckDB's errors."""
        return self._relation

    def _use(self, action: Callable[[Any], Any]) -> Any:
        """Returns the result of an action on the relation."""
        is_first = True

        def run() -> Any:
            nonlocal is_first
            if not is_first:
                self._relation = self._make()
            is_first = False
            return action(self._relation)

        result = self._errors._run(run)
        if isinstance(result, duckdb.DuckDBPyRelation):
            return LazyRelation(self._errors, run, result)
        return self._told_later(result)

    def _told_later(self, result: Any) -> Any:
        """Returns a result. Errors that occur when the result is read later also become this package's exceptions."""
        if callable(result):

            @functools.wraps(result)
            def call(*arguments: Any, **named: Any) -> Any:
                name = result.__name__
                values = [_plain(argument) for argument in arguments]
                named_values = {key: _plain(value) for key, value in named.items()}
                return self._use(lambda relation: getattr(relation, name)(*values, **named_values))

            return call
        if _is_reader(result):
            return _told_reader(result, self._errors)
        if isinstance(result, Iterator):
            return _told_items(result, self._errors)
        return result

    def __getattr__(self, name: str) -> Any:
        return self._use(lambda relation: getattr(relation, name))

    def __getitem__(self, name: Any) -> Any:
        return self._use(lambda relation: relation[name])

    def __contains__(self, name: object) -> bool:
        return bool(self._use(lambda relation: name in relation))

    def __len__(self) -> int:
        return int(self._use(len))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._use(iter))

    def __dir__(self) -> list[str]:
        return dir(self._relation)

    def __repr__(self) -> str:
        return str(self._use(repr))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        # This reader also converts errors in batches that are read later.
        return self.to_arrow_reader().__arrow_c_stream__(requested_schema)


def _plain(value: Any) -> Any:
    return value.relation if isinstance(value, LazyRelation) else value


def _is_reader(value: Any) -> bool:
    return type(value).__name__ == "RecordBatchReader"  # without an import of pyarrow, which takes long


def _told_reader(reader: pa.RecordBatchReader, errors: _Errors) -> pa.RecordBatchReader:
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(reader.schema, _told_items(reader, errors))


def _told_items(items: Any, errors: _Errors) -> Iterator[Any]:
    # An error in the middle cannot be cured, because the caller already has the earlier items.
    try:
        yield from items
    except Exception as error:
        told = errors._told(error)
        if told is error:
            raise
        raise told from error
