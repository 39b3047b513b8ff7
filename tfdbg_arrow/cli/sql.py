"""`tfdbg-arrow sql`: runs SQL over a logdir."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from tfdbg_arrow.cli.output import (
    JsonOption,
    MemoryLimitOption,
    SkipBrokenOption,
    cell_text,
    console,
    print_csv,
    print_json,
    reading,
    styled,
)


class Format(StrEnum):
    """The format in which a result is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def sql(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory or URL that a recording wrote.")],
    query: Annotated[str, typer.Argument(metavar="SQL", help="A statement in DuckDB's SQL.")],
    format_: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.TABLE,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Runs SQL over the tables of a logdir; `info` lists them."""
    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit, what="Running …") as opened:
        columns, rows = opened.table(query)
    if json or format_ is Format.JSON:
        print_json({"columns": list(columns), "rows": rows})
    elif format_ is Format.CSV:
        print_csv(columns, rows)
    else:
        _print_table(columns, rows)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
        table.add_column(styled(column), justify="right" if numbers and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*(styled(("NULL", "dim") if value is None else cell_text(value)) for value in row))
    if columns:
        console().print(table)
