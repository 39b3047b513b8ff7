"""The public views: one .sql file each, in SQL that DuckDB and Spark both run unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from graphlib import TopologicalSorter
from importlib import resources

from tfdbg_arrow.link import LINKED_TABLES
from tfdbg_arrow.query.alert_rules.rules import alert_view, builtin_rules
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.schema import TABLES, Table
from tfdbg_arrow.schema.op_traits import ADDING, BORDERS, OPTIMIZERS, Trait, types_with
from tfdbg_arrow.storage.layout import PART_GLOB

COMPUTED: Mapping[str, frozenset[str]] = {"tensor_input": frozenset(LINKED_TABLES)}
"""The views that `link` computes, each with the tables that it is computed from."""
_ALERT = """\
-- One row is one finding of one built-in alert rule, with the rule's default parameters.
--   kind           the rule
--   severity       that of the rule: `error`, `warning` or `info`, also if a bad value did no harm
--   run_id, graph_id, op_name, op_type, output_slot  what it is about; NULL where it does not apply
--   first_event_index, last_event_index, num_events  the first and last tensor that it is about, and their number
--   value          the quantity that the rule measures
"""


@dataclass(frozen=True, kw_only=True)
class View:
    """One public view.

    Attributes:
        name: The name of the view.
        text: The content of the view's file: comments that describe a row and each column, then one SELECT.
    """

    name: str
    text: str

    @property
    def comment(self) -> str:
        """The comment at the top, without `--`."""
        lines = [line for line in self.text.splitlines() if line.startswith("--")]
        return "\n".join(line.removeprefix("--").removeprefix(" ") for line in lines)

    @property
    def is_computed(self) -> bool:
        """Whether `link` computes the rows.

        In this case, the SELECT returns no rows and only defines the column types.
        """
        return self.name in COMPUTED

    @cached_property
    def select(self) -> str:
        """The SELECT without the comments."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("--"))


@lru_cache(maxsize=1)
def public_views() -> tuple[View, ...]:
    """Returns the views in order of creation: each view after the views that it reads."""
    files = resources.files("tfdbg_arrow.query.logdir") / "views"
    views = {
        name: View(name=name, text=_filled(file.read_text(encoding="utf-8")))
        for file in sorted(files.iterdir(), key=lambda file: file.name)
        if (name := file.name.removesuffix(".sql")) != file.name
    }
    views["alert"] = View(name="alert", text=_ALERT + alert_view(builtin_rules()))
    reads: dict[str, list[str]] = {}
    for name, view in views.items():
        sources = set(_SOURCE.findall(view.select)) - {name}
        reads[name] = [other for other in views if other in sources]
    return tuple(views[name] for name in TopologicalSorter(reads).static_order())


def _filled(text: str) -> str:
    """Fills in the text of a view: inserts the lists of op types and columns, and repeats parts of the text."""
    if "{" not in text:
        return text
    adding = " UNION ALL ".join(
        f"SELECT '{op_type}' AS op_type, {added.value} AS value_index, "
        f"CAST({'NULL' if added.rate is None else added.rate} AS INTEGER) AS rate_index"
        for op_type, added in sorted(ADDING.items())
    )
    is_optimizer = " OR ".join(f"substr(o.op_type, 1, {len(prefix)}) = '{prefix}'" for prefix in OPTIMIZERS)
    health_columns = ",\n    ".join(f"h.{name}" for name in _HEALTH_COLUMNS if name not in _NOT_OF_GRAPHS)
    text = text.replace("{adding}", adding).replace("{is_optimizer}", is_optimizer)
    text = text.replace("{health_columns}", health_columns)
    for name, trait in _OP_TYPES.items():
        text = text.replace(f"{{{name}}}", ", ".join(map(sql_literal, sorted(types_with(trait)))))
    return _REPEATED.sub(_repeat, text)


_OP_TYPES = {
    "border_types": BORDERS | Trait.STANDS_FOR_CALL,
    "frame_types": Trait.ENTERS | Trait.EXITS,
    "next_types": Trait.NEXT,
    "merge_types": Trait.MERGES,
    "argument_types": Trait.ARGUMENT,
}
"""The lists of op types that a view can name in braces."""
_HEALTH_COLUMNS = tuple(column.name for table in TABLES if table.name == "tensor_health" for column in table.columns)
_NOT_OF_GRAPHS = frozenset({"wall_time", "scope", "tensor_id", "device_id", "rank"})
"""The columns of tensor_health that graph_tensor leaves out."""
_SOURCE = re.compile(r"\b(?:FROM|JOIN) (\w+)")
"""The names of the tables, views and common table expressions that a SELECT reads."""
_REPEATED = re.compile(r"\{repeat (\d+)\}\n(.*?)\{end\}\n", re.DOTALL)


def _repeat(part: re.Match[str]) -> str:
    """Repeats a part of a view, once for each n from 1. Spark has no recursive query that removes duplicates."""
    return "".join(part[2].replace("{n}", str(n)).replace("{n-1}", str(n - 1)) for n in range(1, int(part[1]) + 1))


def views_sql(logdir: str) -> str:
    """Returns a SQL script that creates all tables and views of a logdir in a plain DuckDB client.

    The script finds the parts by their paths and does not read the manifests. Use it only on a logdir that no process
    writes to. The script lacks the views that this package computes; `export` writes the rows of these views.

    Args:
        logdir: The logdir's path, as seen by the client.
    """
    statements = [
        "-- Reads a logdir of tfdbg_arrow in any DuckDB client. Example:  duckdb -init views.sql",
        *(_table_sql(logdir, table) for table in TABLES),
        *(
            f'CREATE OR REPLACE VIEW "{view.name}" AS\n{view.select.strip()};'
            for view in public_views()
            if not view.is_computed
        ),
    ]
    return "\n\n".join(statements) + "\n"


def _table_sql(logdir: str, table: Table) -> str:
    pattern = f"{logdir.rstrip('/')}/{table.name}/{PART_GLOB}"
    # can_have_nan: min/max statistics ignore NaN. Without this option, DuckDB would skip rows by these statistics.
    return (
        f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT * FROM read_parquet(\n'
        f"    {sql_literal(pattern)}, union_by_name = true, can_have_nan = true,\n"
        "    hive_partitioning = false);"
    )
