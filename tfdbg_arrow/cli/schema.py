"""`tfdbg-arrow schema`: prints the tables and views that SQL can query."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import json_option, print_result
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.present.blocks import Line

if TYPE_CHECKING:
    from tfdbg_arrow.query import View
    from tfdbg_arrow.schema import Table


@click.command("schema", cls=Command)
@click.argument("name", required=False, help="A table or view. Without it, each is listed in one line.")
@click.option(
    "--sql", metavar="LOGDIR", help="Instead, print a script that creates all of them in a plain DuckDB client."
)
@json_option
def schema(name: str | None, sql: str | None, json: bool) -> None:
    """Prints the tables and views that `tfdbg-arrow sql` can query, with the documentation of their columns.

    Exit codes: 0 success, 2 an error.
    """
    from tfdbg_arrow.query import open_logdir, public_views, views_sql
    from tfdbg_arrow.schema import FORMAT_VERSION, TABLES

    if sql is not None:
        with open_logdir(sql):  # raises an error if this is not a logdir
            click.echo(views_sql(str(Path(sql).absolute())), nl=False)
        return
    tables = [table for table in TABLES if name in (None, table.name)]
    views = sorted((view for view in public_views() if name in (None, view.name)), key=lambda view: view.name)
    if not tables and not views:
        available = ", ".join(sorted([table.name for table in TABLES] + [view.name for view in public_views()]))
        raise QueryError(f"{name!r} is not a table or view; available are {available}.")
    blocks = _names(tables, views) if name is None else itertools.chain(*map(_table, tables), *map(_view, views))
    print_result({"format_version": FORMAT_VERSION, "tables": tables, "views": views}, blocks, json=json)


def _names(tables: list[Table], views: list[View]) -> Iterator[Line]:

    width = max(len(name) for name in [table.name for table in tables] + [view.name for view in views])
    for kind, docs in (
        ("tables", {table.name: table.row for table in tables}),
        ("views", {view.name: view.comment.splitlines()[0] for view in views}),
    ):
        yield Line((kind, "bold"))
        for name, doc in docs.items():
            yield Line(f"{name:<{width}}  ", (doc, "quiet"), indent=2)


def _table(table: Table) -> Iterator[Line]:

    yield Line((table.name, "bold"), f": {table.row}")
    width = max(len(column.name) for column in table.columns)
    for column in table.columns:
        null = " or NULL" if column.nullable else ""
        yield Line(f"{column.name:<{width}}  ", (f"{column.type.value}{null}: ", "quiet"), column.doc, indent=2)


def _view(view: View) -> Iterator[Line]:

    yield from map(Line, view.text.splitlines())
