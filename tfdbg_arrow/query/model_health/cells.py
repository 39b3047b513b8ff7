"""Cells: the tensors of a run, summed up for each layer or source line, side, role and column.

One statement reads tensor_health. The statement first sums up the tensors of each op output in a column (`output`),
without joins, and then joins the few results with the labels of their ops.

A label consists of

* `kind` and `path`: the row, see LayerRow. In a program with layers, ops outside all layers belong to a row for their
  role. In a program without layers, ops belong to a row for the line of the user's code that created them, or to a row
  for their role if there is no such line. A gradient has the path of its forward op.
* `is_gradient`: whether the op is in the view gradient_op, or is an execution with the role `gradient`.
* `role`: the role of the op; for a gradient, the role of its forward op. NULL if unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from tfdbg_arrow.query.engine import Engine, sql_literal
from tfdbg_arrow.query.model_health.columns import Axis
from tfdbg_arrow.query.model_health.sums import Sums
from tfdbg_arrow.query.stacks import line_text

ROLES = ("forward", "gradient", "input", "loss", "metric", "optimizer")
"""The roles that a recording gives to ops."""
MAX_DEPTH = 12
"""The maximum depth of nested layers that have rows of their own."""
_MAX_ROWS = 1000
"""Maximum number of layers or lines that have rows of their own."""
OTHER = "other"
"""The path of ops outside layers whose role is unknown."""
_NOT_ACTIVATIONS = "('BroadcastTo', 'Const', 'Fill', 'ReadVariableOp', 'Zeros', 'ZerosLike')"
"""Op types whose outputs are not activations. The alert rule all_zero excludes the same types."""

_LEAST_OF_MASK = 1e4
"""The smallest magnitude of the constant of a mask. Masks of float16 use -1e4 or -3e4, others -1e9 or -2.4e38."""


@dataclass(frozen=True)
class RowKey:
    """A row of the map: its kind, its path, and whether it holds the gradients."""

    kind: str
    path: str
    is_gradient: bool

    @property
    def name(self) -> str:
        """The last part of the path."""
        if self.kind == "line":
            path, _, lineno = self.path.rpartition(":")
            return line_text(path.rpartition("/")[2], lineno)
        return self.path if self.kind == "role" else self.path.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """Number of layers that contain the row's layer."""
        return self.path.count("/") if self.kind == "layer" else 0


@dataclass(frozen=True)
class Group:
    """The tensors of one row with one role.

    Attributes:
        key: The row.
        role: The role; None if unknown.
        num_outputs: Number of op outputs.
        place: A sort key. The key orders rows by the time at which the program made their first op.
        sums: The sums over the tensors, without the update ratios.
    """

    key: RowKey
    role: str | None
    num_outputs: int
    place: tuple[int, int, int]
    sums: Sums


@dataclass(frozen=True)
class Labels:
    """The rows that the ops of a run belong to.

    Attributes:
        run_id: The run.
        kind: The kind of the rows: `layer`, `line` or `role`.
        max_depth: The maximum number of layers in a path. The ops of deeper layers belong to the layer at this depth.
        num_folded: Number of layers or lines that have no row of their own.
    """

    run_id: str
    kind: str
    max_depth: int = MAX_DEPTH
    num_folded: int = 0

    @property
    def run(self) -> str:
        """The run, as an SQL literal."""
        return sql_literal(self.run_id)

    def of_graph_ops(self) -> str:
        """Returns the SELECT of the labels of graph ops, one row per op."""
        line, lines = self._line("r.run_id", "r.stack_trace_id", "f.stack_trace_id")
        return (
            "SELECT graph_id, op_name, min(op_type) AS op_type, min(op_index) AS op_index, "
            "min(wall_time_ns) AS wall_time_ns, max(is_gradient) AS is_gradient, "
            f"min({self._kind()}) AS kind, min({self._path()}) AS path, min({_ROLE}) AS role FROM ("
            "SELECT r.graph_id, r.op_name, r.op_type, r.op_index, o.wall_time_ns, "
            "CASE WHEN g.op_name IS NULL THEN 0 ELSE 1 END AS is_gradient, coalesce(r.layer, f.layer) AS layer, "
            "CASE WHEN g.op_name IS NULL THEN r.role ELSE f.role END AS any_role, "
            f"{line} AS line FROM recorded_op AS r "
            "LEFT JOIN graph_op AS o ON o.run_id = r.run_id AND o.graph_id = r.graph_id "
            "AND o.op_name = coalesce(r.made_for, r.op_name) "
            "LEFT JOIN gradient_op AS g ON g.run_id = r.run_id AND g.graph_id = r.graph_id AND g.op_name = r.op_name "
            "LEFT JOIN graph_op AS f ON f.run_id = r.run_id AND f.graph_id = r.forward_graph_id "
            f"AND f.op_name = r.forward_op_name {lines}WHERE r.run_id = {self.run}) AS labelled "
            "GROUP BY graph_id, op_name"
        )

    def of_eager(self, source: str) -> str:
        """Returns a SELECT that adds the labels to rows of eager tensors.

        Args:
            source: A SELECT with the columns scope, own_layer, own_role, stack_trace_id, forward_layer, forward_role,
                forward_stack_trace_id, and any others.
        """
        line, lines = self._line(self.run, "r.stack_trace_id", "r.forward_stack_trace_id")
        is_gradient = "r.scope <> 'external' AND r.own_role = 'gradient'"
        return (
            f"SELECT labelled.*, {self._kind()} AS kind, {self._path()} AS path, {_ROLE} AS role FROM ("
            f"SELECT r.*, CASE WHEN {is_gradient} THEN 1 ELSE 0 END AS is_gradient, "
            "CASE WHEN r.scope <> 'external' THEN coalesce(r.own_layer, r.forward_layer) END AS layer, "
            f"CASE WHEN r.scope = 'external' THEN 'input' WHEN {is_gradient} THEN r.forward_role ELSE r.own_role END "
            f"AS any_role, CASE WHEN r.scope <> 'external' THEN {line} END AS line "
            f"FROM ({source}) AS r {lines}) AS labelled"
        )

    def executions(self) -> str:
        """Returns the SELECT of the executions of the run, with the columns that a label needs."""
        return f"""\
    SELECT
        e.execution_index, e.layer AS own_layer, e.role AS own_role, e.stack_trace_id, f.layer AS forward_layer,
        f.role AS forward_role, f.stack_trace_id AS forward_stack_trace_id
    FROM execution AS e
    LEFT JOIN (
        SELECT execution_index, layer, role, stack_trace_id
        FROM execution
        WHERE run_id = {self.run}
            AND execution_index IN (SELECT forward_execution_index FROM execution WHERE run_id = {self.run})
    ) AS f ON f.execution_index = e.forward_execution_index
    WHERE e.run_id = {self.run}"""

    def _line(self, run: str, own_stack: str, forward_stack: str) -> tuple[str, str]:
        """Returns the SQL expression for the line of an op, and the joins that it needs."""
        if self.kind != "line":
            return "CAST(NULL AS STRING)", ""
        joins = (
            f"LEFT JOIN user_frame AS {frame} ON {frame}.run_id = {run} AND {frame}.stack_trace_id = {stack} "
            for frame, stack in (("own", own_stack), ("forward", forward_stack))
        )
        lines = (f"{frame}.file_path || ':' || CAST({frame}.lineno AS STRING)" for frame in ("forward", "own"))
        return f"coalesce({', '.join(lines)})", "".join(joins)

    def _kind(self) -> str:
        return f"CASE WHEN {self._name()} IS NULL THEN 'role' ELSE '{self.kind}' END"

    def _path(self) -> str:
        return f"coalesce({self._name()}, {_ROLE}, '{OTHER}')"

    def _name(self) -> str:
        """Returns the SQL expression for the path of the layer, or for the line."""
        if self.kind == "layer":
            return _prefix(self.max_depth)
        return "line" if self.kind == "line" else "CAST(NULL AS STRING)"


_ROLE = f"CASE WHEN any_role IN {ROLES} THEN any_role END"


def _prefix(depth: int) -> str:
    """Returns the SQL expression for the path of the layer up to a depth. For depth 0, it never equals another path."""
    if not depth:
        return "'/'"
    return f"regexp_extract(layer, '^[^/]*(/[^/]*){{0,{depth - 1}}}', 0)"


def read_labels(logdir: Engine, *, run_id: str) -> Labels:
    """Returns the rows that the ops of a run belong to."""
    layers = (
        "(SELECT layer FROM graph_op WHERE run_id = ? AND layer IS NOT NULL "
        "UNION SELECT layer FROM execution WHERE run_id = ? AND layer IS NOT NULL) AS named"
    )
    depths = range(1, MAX_DEPTH + 1)
    # For each depth, the number of rows of that depth, and the number of layers with at most that depth.
    counts = ", ".join(
        f"count(DISTINCT CASE WHEN {_prefix(depth)} <> {_prefix(depth - 1)} THEN {_prefix(depth)} END), "
        f"count(CASE WHEN layer = {_prefix(depth)} THEN 1 END)"
        for depth in depths
    )
    ((num_layers, *of_depths),) = logdir.rows(f"SELECT count(*), {counts} FROM {layers}", [run_id, run_id])
    if num_layers:
        max_depth, num_shown, num_paths = 0, 0, 0
        for depth in depths:
            num_paths += of_depths[2 * depth - 2]
            if num_paths > _MAX_ROWS:
                break
            max_depth, num_shown = depth, of_depths[2 * depth - 1]
            if num_shown == num_layers:
                break
        return Labels(run_id, "layer" if max_depth else "role", max_depth or 1, num_layers - num_shown)
    ((num_lines,),) = logdir.rows(
        "SELECT count(*) FROM (SELECT DISTINCT s.file_path, s.lineno FROM user_frame AS s JOIN ("
        "SELECT stack_trace_id FROM graph_op WHERE run_id = ? UNION SELECT stack_trace_id FROM execution "
        "WHERE run_id = ?) AS used ON used.stack_trace_id = s.stack_trace_id WHERE s.run_id = ?) AS line",
        [run_id] * 3,
    )
    if num_lines > _MAX_ROWS:
        return Labels(run_id, "role", num_folded=num_lines)
    return Labels(run_id, "line")


_EXECUTION_KEYS = "e.own_layer, e.own_role, e.stack_trace_id, e.forward_layer, e.forward_role, e.forward_stack_trace_id"
_STATISTICS = """\
    count(*) AS num_tensors,
    sum(CASE WHEN h.num_zero IS NOT NULL THEN CAST(h.size AS DOUBLE) END) AS num_sized,
    sum(CAST(h.num_zero AS DOUBLE)) AS num_zero,
    max(h.max_abs_finite) AS max_abs,
    count(h.mean_finite) AS num_means,
    avg(h.mean_finite) AS mean,
    var_pop(h.mean_finite) AS mean_variance,
    avg(h.stddev_finite * h.stddev_finite) AS variance"""
_SUMS = (
    "num_tensors, num_sized, num_zero, max_abs, num_means, mean, mean_variance, variance, "
    "num_finite * num_means * (variance + mean_variance + mean * mean) AS square_sum"
)
"""The columns of _STATISTICS, and the sum of the squares of the elements."""
_FINITE = "CAST(h.size AS DOUBLE) - h.num_nan - h.num_neg_inf - h.num_pos_inf"
"""The number of finite elements. Tensors with equal numbers are grouped, so that their means have equal weights."""


def _statement(axis: Axis, labels: Labels) -> str:
    """Returns the SQL statement of `read_groups`."""
    keys = f"h.scope, h.op_type, h.output_slot, {_EXECUTION_KEYS}"
    eager_outputs = (
        f"SELECT {keys}, {axis.place} AS place, {_FINITE} AS num_finite, h.has_inf_or_nan AS is_bad, "
        f"min(h.wall_time_ns) AS wall_time_ns,\n{_STATISTICS}\nFROM tensor_health AS h "
        f"LEFT JOIN ({labels.executions()}) AS e ON e.execution_index = h.execution_index "
        f"WHERE h.run_id = {labels.run} AND {axis.condition} AND h.scope <> 'graph' "
        f"GROUP BY {keys}, {axis.place}, {_FINITE}, h.has_inf_or_nan"
    )
    return _template().format(
        run=labels.run,
        graph_labels=labels.of_graph_ops(),
        eager_outputs=labels.of_eager(eager_outputs),
        place=axis.place,
        condition=axis.condition,
        num_finite=_FINITE,
        statistics=_STATISTICS,
        sums=_SUMS,
        other=OTHER,
        not_activations=_NOT_ACTIVATIONS,
        least_of_mask=_LEAST_OF_MASK,
    )


@cache
def _template() -> str:
    return (resources.files("tfdbg_arrow.query.model_health") / "cells.sql").read_text("utf-8")


_QUANTITIES = (
    "num_tensors", "num_measured", "num_bad", "num_sized", "num_zero", "max_abs", "num_elements", "mean", "squares",
    "norm_square", "gradient_square", "num_bad_gradients", "weight_square", "num_bad_weights", "activation_max_abs",
    "num_activation_sized", "num_activation_zero",
)  # fmt: skip
"""The last columns of the statement, as in Sums."""


def read_groups(logdir: Engine, axis: Axis, labels: Labels) -> list[Group]:
    """Returns the tensors of a run by row and role, in no particular order."""
    groups: dict[tuple[RowKey, str | None], Group] = {}
    for kind, path, is_gradient, role, num_outputs, wall_time_ns, graph_id, op_index, column, *values in logdir.rows(
        _statement(axis, labels)
    ):
        key = RowKey(kind, path, bool(is_gradient))
        group = groups.get((key, role))
        if group is None:
            first_op = (wall_time_ns, graph_id, op_index)
            group = groups[key, role] = Group(key, role, num_outputs, first_op, Sums(axis.num_columns))
        group.sums.set(column, _QUANTITIES, values)
    return list(groups.values())


def read_keys(logdir: Engine, labels: Labels, event_indexes: Sequence[int]) -> dict[int, RowKey]:
    """Returns the rows of tensors, by event_index."""
    if not event_indexes:
        return {}
    among = f"h.run_id = {labels.run} AND h.event_index IN ({', '.join(map(str, event_indexes))})"
    eager = labels.of_eager(
        f"SELECT h.event_index, h.scope, {_EXECUTION_KEYS} FROM tensor_health AS h "
        f"LEFT JOIN ({labels.executions()}) AS e ON e.execution_index = h.execution_index "
        f"WHERE {among} AND h.scope <> 'graph'"
    )
    statement = (
        f"WITH label AS ({labels.of_graph_ops()}) "
        f"SELECT h.event_index, coalesce(l.kind, 'role'), coalesce(l.path, '{OTHER}'), coalesce(l.is_gradient, 0) "
        "FROM tensor_health AS h LEFT JOIN label AS l ON l.graph_id = h.graph_id AND l.op_name = h.op_name "
        f"WHERE {among} AND h.scope = 'graph' "
        f"UNION ALL SELECT event_index, kind, path, is_gradient FROM ({eager}) AS eager"
    )
    rows = logdir.rows(statement)
    return {event_index: RowKey(kind, path, bool(is_gradient)) for event_index, kind, path, is_gradient in rows}


def row_condition(path: str, side: str | None, *, run_id: str) -> tuple[str, list[object]]:
    """Returns the SQL condition on tensor_health AS h that selects the tensors of a layer and of the layers inside it.

    Args:
        path: The path of the layer, or the role of a row of ops outside all layers.
        side: `forward` or `gradient`; None means both.
        run_id: The run.

    Returns:
        The condition and its parameters.
    """
    labels = Labels(run_id, "layer")
    chosen = f"(path = ? OR substr(path, 1, {len(path) + 1}) = ?)"
    given: list[object] = [path, f"{path}/"]
    if side is not None:
        chosen += f" AND is_gradient = {int(side == 'gradient')}"
    of_graphs = labels.of_graph_ops()
    of_eager = labels.of_eager(
        f"SELECT 'execution' AS scope, e.execution_index, {_EXECUTION_KEYS} FROM ({labels.executions()}) AS e"
    )
    condition = (
        "(h.scope = 'graph' AND (h.graph_id, h.op_name) IN "
        f"(SELECT graph_id, op_name FROM ({of_graphs}) AS label WHERE {chosen}) "
        "OR h.scope = 'execution' AND h.execution_index IN "
        f"(SELECT execution_index FROM ({of_eager}) AS eager WHERE {chosen})"
    )
    if path == "input" and side != "gradient":
        condition += " OR h.scope = 'external'"
    return condition + ")", [*given, *given]
