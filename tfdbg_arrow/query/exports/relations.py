"""Chooses the tables and public views of an export, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.logdir.public_views import View, public_views
from tfdbg_arrow.schema import TABLES, Table


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One table or public view; exactly one of the two is set.

    Attributes:
        name: Its name.
        table: Its declaration.
        view: Its SQL.
    """

    name: str
    table: Table | None = None
    view: View | None = None


def relation_names() -> tuple[str, ...]:
    """Returns the names of all tables and public views, each view after the relations that it reads."""
    return tuple(relation.name for relation in _relations())


def choose_relations(names: Iterable[str] | None, *, with_what_views_read: bool) -> tuple[Relation, ...]:
    """Returns the tables and views of an export, each view after the relations that it reads.

    Args:
        names: Names of tables and public views; None means all.
        with_what_views_read: Whether to include the relations that a chosen view reads. Formats that keep views as
            views need them.

    Raises:
        QueryError: A name is unknown, or `names` is empty.
    """
    relations = {relation.name: relation for relation in _relations()}
    if names is None:
        return tuple(relations.values())
    chosen = set(names)
    unknown = sorted(chosen - set(relations))
    if unknown or not chosen:
        what = f"table {unknown[0]!r} is unknown" if unknown else "no table is named"
        raise QueryError(f"{what}; there are {', '.join(relations)}.")
    if with_what_views_read:
        for relation in reversed(relations.values()):  # a view after the views that read it
            if relation.name in chosen and relation.view is not None:
                chosen.update(_read_by(relation.view))
    return tuple(relation for relation in relations.values() if relation.name in chosen)


def _relations() -> tuple[Relation, ...]:
    return (
        *(Relation(name=table.name, table=table) for table in TABLES),
        *(Relation(name=view.name, view=view) for view in public_views()),
    )


def _read_by(view: View) -> list[str]:
    return [name for name in relation_names() if name != view.name and re.search(rf"\b{name}\b", view.select)]
