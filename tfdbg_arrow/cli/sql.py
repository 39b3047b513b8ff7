"""`tfdbg-arrow sql`: runs SQL over a logdir."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import Opening, cell_text, console, print_csv, print_json, reading, reading_options, styled


@click.command("sql", cls=Command)
@click.argument("logdir", help="The directory or URL that a recording wrote.")
@click.argument("query", metavar="SQL", help="A statement in DuckDB's SQL.")
@click.option(
    "--format",
    "format_",
    metavar="FORMAT",
    type=click.Choice(("table", "csv", "json")),
    default="table",
    help="How to print the result: table, csv or json.",
)
@click.option(
    "--expanded/--no-expanded",
    default=None,
    help="Print each column on a line of its own. Default: if a row is wider than the terminal.",
)
@reading_options
def sql(
    logdir: str,
    query: str,
    format_: str,
    expanded: bool | None,
    opening: Opening,
    json: bool,
) -> None:
    """Runs SQL over the tables of a logdir; `info` lists them."""
    with reading(logdir, opening, what="Running …") as opened:
        columns, rows = opened.table(query)
    if json or format_ == "json":
        print_json({"columns": list(columns), "rows": rows})
    elif format_ == "csv":
        print_csv(columns, rows)
    else:
        _print_table(columns, rows, is_expanded=expanded)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, is_expanded: bool | None) -> None:
    from rich.cells import cell_len
    from rich.table import Table

    if is_expanded is None:
        texts = [columns, *([_text(value) for value in row] for row in rows)]
        widths = [max(cell_len(styled(text).plain) for text in column) for column in zip(*texts, strict=True)]
        is_expanded = sum(widths) + len(widths) - 1 > console().width
    if is_expanded:
        _print_expanded(columns, rows)
        return

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
        table.add_column(styled(column), justify="right" if numbers and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*(styled(("NULL", "dim") if value is None else _text(value)) for value in row))
    if columns:
        console().print(table)


def _print_expanded(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints each row as its number, followed by one line for each column."""
    out = console()
    width = max(map(len, columns), default=0)
    for number, row in enumerate(rows, start=1):
        out.print(styled((f"row {number:,}", "dim")))
        for column, value in zip(columns, row, strict=True):
            out.print(styled((f"{column:<{width}}", "bold"), "  ", ("NULL", "dim") if value is None else _text(value)))


def _text(value: Any) -> str:
    return "NULL" if value is None else cell_text(value)
