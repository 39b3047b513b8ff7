"""Runs built-in rules over runs with many tensors, and reads only the op outputs that the rules can find.

A rule about bad tensors is run only over the runs that have bad tensors. These runs are found quickly.

For the other rules, digests show which op outputs a rule can find. These outputs are the candidates of the rule
(OpDigests, candidates/*.sql). The tensors of all candidates are read once, some runs at a time. The unchanged rules
then run over these tensors. Because the other tensors are missing, a rule may find something that it would not find in
the whole logdir. Therefore only findings among the rule's own candidates are kept.

The digest of an output has extremes and sums over all of its tensors in a run. Most outputs are excluded by their
digests. Each part is read once, and the digests are kept until the parts of the run change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tfdbg_arrow.errors import MemoryLimitError
from tfdbg_arrow.query.alert_rules.findings import Row, RuleFindings, run_rule
from tfdbg_arrow.query.alert_rules.rules import COLUMNS, Rule
from tfdbg_arrow.query.asked_runs import AskedRuns
from tfdbg_arrow.query.bad_runs import BadRuns
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.logdir.public_views import public_views
from tfdbg_arrow.query.recorded import KINDS
from tfdbg_arrow.schema.tables import table

_LARGE_BYTES = 8_000_000
"""If the parts of tensor_health have at least this many bytes, it is faster to determine the candidates first.

This size corresponds to half a million rows or fewer.
"""
_MAX_ROWS = 2_000_000
"""Maximum number of tensors that are read into memory at a time."""
_MAX_RUNS = 100
"""Maximum number of runs that are read at a time."""
_KEY = ("run_id", "graph_id", "op_name", "op_type", "output_slot")
_JOINED = frozenset({*_KEY, "event_index", "scope", "execution_index", "device_id", "step"})
"""Columns that views and the lookup of a finding's line always need."""


def is_large(logdir: OpenLogdir, asked: AskedRuns) -> bool:
    """Returns True if runs have so many tensors that `scan` is faster than running each rule over all of them."""
    logdir.fetch("tensor_health")
    parts = logdir.parts_by_run("tensor_health")
    return sum(_num_bytes(parts.get(run_id, ())) for run_id in asked.run_ids) >= _LARGE_BYTES


def scan(
    logdir: OpenLogdir,
    asked: AskedRuns,
    rules: Sequence[Rule],
    parameters: Mapping[str, Mapping[str, float]],
    *,
    limit: int,
) -> dict[str, RuleFindings]:
    """Returns the findings of rules, by kind.

    Args:
        logdir: The logdir.
        asked: The runs.
        rules: Rules whose candidates are known.
        parameters: Values to use instead of a rule's defaults, by rule.
        limit: Maximum number of rows per rule.
    """
    by_rule = {rule.kind: RuleFindings() for rule in rules}
    of_bad = [rule for rule in rules if rule.candidates is not None and not rule.candidates.select]
    if of_bad:
        run_ids = logdir.lasting(BadRuns).by_first(KINDS, asked.run_ids)
        for start in range(0, len(run_ids), _MAX_RUNS):
            with logdir.of_runs(run_ids[start : start + _MAX_RUNS]) as runs:
                for rule in of_bad:
                    run_rule(runs, rule, parameters.get(rule.kind, {}), by_rule[rule.kind], limit=limit)
    others = [rule for rule in rules if rule not in of_bad]
    if others:
        try:
            _scan_candidates(logdir, asked, others, parameters, by_rule, limit=limit)
        except MemoryLimitError as error:
            for rule in others:
                by_rule[rule.kind].error = error
    for of_rule in by_rule.values():
        of_rule.rows = sorted(of_rule.rows, key=_place)[:limit]
    return by_rule


def _scan_candidates(
    logdir: OpenLogdir,
    asked: AskedRuns,
    rules: Sequence[Rule],
    parameters: Mapping[str, Mapping[str, float]],
    by_rule: Mapping[str, RuleFindings],
    *,
    limit: int,
) -> None:
    logdir.lasting(OpDigests).update(asked.run_ids)
    candidates = " UNION ALL ".join(
        f"SELECT '{rule.kind}' AS kind, {', '.join(_KEY)} "
        f"FROM (\n{rule.candidates_sql(parameters.get(rule.kind, {}))}\n)"
        for rule in rules
    )
    logdir.rows(
        f"CREATE OR REPLACE TABLE derived.candidate AS SELECT * FROM ({candidates}) WHERE run_id IN (SELECT unnest(?))",
        [list(asked.run_ids)],
    )
    try:
        for batch in _batches(logdir):
            with logdir.of_runs(batch) as runs:
                runs.replace("tensor_health", _wanted(runs, rules, batch))
                for rule in rules:
                    given, findings = parameters.get(rule.kind, {}), by_rule[rule.kind]
                    run_rule(runs, rule, given, findings, limit=limit, condition=_is_candidate(rule))
    finally:
        logdir.rows("DROP TABLE IF EXISTS derived.candidate")


def _batches(logdir: OpenLogdir) -> Iterator[list[str]]:
    """Yields the runs with candidates in batches, whose candidates have a bounded number of tensors."""
    match = " AND ".join(f"d.{name} IS NOT DISTINCT FROM c.{name}" for name in _KEY)
    sizes = logdir.rows(
        "SELECT c.run_id, CAST(coalesce(sum(d.num_tensors), 0) AS BIGINT) "
        f"FROM (SELECT DISTINCT {', '.join(_KEY)} FROM derived.candidate) AS c "
        f"LEFT JOIN derived.op_extremes AS d ON {match} GROUP BY c.run_id ORDER BY c.run_id"
    )
    return _bounded(dict(sizes), _MAX_RUNS, _MAX_ROWS)


def _bounded(size_of: Mapping[str, int], max_runs: int, max_size: int) -> Iterator[list[str]]:
    """Yields runs in batches of bounded number and size, given the size of each run. A batch has at least one run."""
    batch: list[str] = []
    filled = 0
    for run_id, size in size_of.items():
        if batch and (len(batch) >= max_runs or filled + size > max_size):
            yield batch
            batch, filled = [], 0
        batch.append(run_id)
        filled += size
    if batch:
        yield batch


def _num_bytes(parts: Iterable[str]) -> int:
    return sum(Path(part).stat().st_size for part in parts if Path(part).exists())


def _place(row: Row) -> tuple[object, ...]:
    """Returns the sort key of a finding, which sorts findings in the same way as ORDER."""
    values = (
        row[COLUMNS.index(name)] for name in ("run_id", "first_event_index", "graph_id", "op_name", "output_slot")
    )
    return tuple((value is None, value) for value in values)


def _with_views(rules: Sequence[Rule]) -> str:
    """Returns the SELECTs of rules and of the views that the rules read."""
    text = "\n".join(rule.select for rule in rules)
    for view in reversed(public_views()):
        if re.search(rf"\b(FROM|JOIN) {view.name}\b", text):
            text += f"\n{view.select}"
    return text


def _wanted(runs: OpenLogdir, rules: Sequence[Rule], run_ids: Sequence[str]) -> str:
    """Returns the SELECT of the candidates' tensors. Columns that no rule needs are NULL."""
    names = runs.rows(
        "SELECT DISTINCT op_name, op_type, graph_id IS NULL FROM derived.candidate WHERE run_id IN (SELECT unnest(?))",
        [run_ids],
    )
    used = _with_views(rules)
    columns = ", ".join(
        f"h.{column.name}"
        if column.name in _JOINED or re.search(rf"\b{column.name}\b", used)
        else f"CAST(NULL AS {column.type.value}) AS {column.name}"
        for column in table("tensor_health").columns
    )
    outputs = f"(SELECT DISTINCT {', '.join(_KEY)} FROM derived.candidate)"
    match = " AND ".join(f"c.{name} IS NOT DISTINCT FROM h.{name}" for name in _KEY)
    # Filtering by name before the join makes DuckDB read the other columns only for tensors with a matching name.
    in_graphs = sorted({sql_literal(name) for name, _, is_eager in names if not is_eager and name is not None})
    eager = sorted({sql_literal(op_type) for _, op_type, is_eager in names if is_eager and op_type is not None})
    conditions = []
    if in_graphs:
        conditions.append(f"h.op_name IN ({', '.join(in_graphs)})")
    if eager:
        conditions.append(f"h.op_type IN ({', '.join(eager)}) AND h.op_name IS NULL")
    if any(is_eager and op_type is None for _, op_type, is_eager in names):
        conditions.append("h.op_type IS NULL")
    selects = [
        f"SELECT {columns} FROM tensor_health AS h JOIN {outputs} AS c ON {match} WHERE {condition}"
        for condition in conditions
    ]
    return " UNION ALL ".join(selects) or f"SELECT {columns} FROM tensor_health AS h WHERE false"


def _is_candidate(rule: Rule) -> str:
    """Returns the SQL condition that a finding, with the alias `f`, is among the candidates of its rule."""
    assert rule.candidates is not None
    key = _KEY[:2] if rule.candidates.is_by_graph else _KEY
    match = " AND ".join(f"c.{name} IS NOT DISTINCT FROM f.{name}" for name in key)
    return f"EXISTS (SELECT 1 FROM derived.candidate AS c WHERE c.kind = '{rule.kind}' AND {match})"


_LARGEST = "CAST(1.7976931348623157e308 AS DOUBLE)"
_SQUARE = "(mean_finite * mean_finite + stddev_finite * stddev_finite)"
_SLOPE = "(mean_finite - mean_finite * mean_finite - stddev_finite * stddev_finite)"
_IS_NORM = "(scope = 'graph' AND mean_finite IS NOT NULL AND NOT has_inf_or_nan)"
_LOG = "ln(CASE WHEN max_abs_finite > 0 THEN max_abs_finite END)"
_UPDATES = """\
SELECT DISTINCT
    t.run_id, t.graph_id, t.added_op_name AS u_name, t.added_output_slot AS u_slot,
    t.rate_op_name AS f_name, t.rate_output_slot AS f_slot, t.read_op_name AS v_name
FROM trained_variable AS t
JOIN derived.op_extremes AS r ON r.run_id = t.run_id AND r.graph_id = t.graph_id AND r.op_name = t.read_op_name"""
"""One row is a recorded read of a variable (v). The graph adds the product of a value (u) and a scalar (f) to the
variable."""
_DERIVED = ("op_extremes", "weight_update")
_BATCH = 100
"""Maximum number of runs whose tensors are read at a time."""
_BATCH_BYTES = 64_000_000
"""Maximum bytes of the parts of these runs. Both limits bound the memory, which grows with the number of outputs."""
_LARGE_BATCH = 1000
"""Maximum number of runs whose digests are read at a time."""
_Parts = tuple[str, ...]


def _cut(value: str) -> str:
    return (
        f"CASE WHEN {value} > {_LARGEST} THEN {_LARGEST} WHEN {value} < -{_LARGEST} THEN -{_LARGEST} ELSE {value} END"
    )


_NORM = _cut(f"CASE WHEN {_IS_NORM} THEN sqrt(size * {_SQUARE}) END")


DIGEST = {
    "num_tensors": ("count(*)", "sum"),
    "num_bad_tensors": ("CAST(sum(CASE WHEN has_inf_or_nan THEN 1 ELSE 0 END) AS BIGINT)", "sum"),
    "min_size": ("min(size)", "min"),
    "max_size": ("max(size)", "max"),
    # The hashes of two shapes have 64 bits. Comparing the shapes themselves takes as long as all the rest of a digest.
    "min_shape_hash": ("min(hash(shape))", "min"),
    "max_shape_hash": ("max(hash(shape))", "max"),
    "max_nonzero": ("max(CASE WHEN size > 1 THEN size - num_zero END)", "max"),
    "max_zero_share": ("max(CASE WHEN size > 0 THEN CAST(num_zero AS DOUBLE) / size END)", "max"),
    "max_subnormal": ("max(num_subnormal)", "max"),
    "max_magnitude": ("max(max_abs_finite)", "max"),
    "num_logs": (f"count({_LOG})", "sum"),
    "sum_log": (f"sum({_LOG})", "sum"),
    "sum_log_square": (f"sum({_LOG} * {_LOG})", "sum"),
    "min_square": (f"min({_cut(_SQUARE)})", "min"),
    "max_square": (f"max({_cut(_SQUARE)})", "max"),
    "min_stddev": ("min(stddev_finite)", "min"),
    "max_stddev": ("max(stddev_finite)", "max"),
    "min_slope": (f"min({_cut(_SLOPE)})", "min"),
    "num_norms": (f"CAST(sum(CASE WHEN {_IS_NORM} THEN 1 ELSE 0 END) AS BIGINT)", "sum"),
    "min_norm": (f"min({_NORM})", "min"),
    "max_norm": (f"max({_NORM})", "max"),
}
"""For each column of a digest: the SQL that computes it from tensors, and the aggregate that merges digests."""


COMPUTED = (
    f"SELECT {', '.join(_KEY)}, dtype, "
    f"{', '.join(f'{made} AS {name}' for name, (made, _) in DIGEST.items())} "
    f"FROM tensor_health GROUP BY {', '.join(_KEY)}, dtype"
)
"""Computes the digest of each output and dtype."""


_EXTREMES = f"""\
WITH known_role AS (
    SELECT run_id, graph_id, op_name, layer, role, forward_graph_id, forward_op_name
    FROM recorded_op
    WHERE role IS NOT NULL
),
graph_op AS (
    SELECT DISTINCT
        d.run_id, d.graph_id, d.op_name, d.op_type, r.layer, r.role, r.forward_graph_id, r.forward_op_name
    FROM derived.digest AS d
    LEFT JOIN known_role AS r ON r.run_id = d.run_id AND r.graph_id = d.graph_id AND r.op_name = d.op_name
    WHERE d.graph_id IS NOT NULL
),
gradient AS (
{{gradient_op}}
)
SELECT
    {", ".join(f"d.{name}" for name in _KEY)},
    {", ".join(f"{merged}(d.{name}) AS {name}" for name, (_, merged) in DIGEST.items())},
    max(d.max_magnitude / CASE d.dtype
        WHEN 'float16' THEN CAST(65504 AS DOUBLE)
        WHEN 'bfloat16' THEN CAST(3.3895313892515355e38 AS DOUBLE)
        WHEN 'float32' THEN CAST(3.4028234663852886e38 AS DOUBLE)
        WHEN 'complex64' THEN CAST(3.4028234663852886e38 AS DOUBLE)
        WHEN 'float64' THEN CAST(1.7976931348623157e308 AS DOUBLE)
        WHEN 'complex128' THEN CAST(1.7976931348623157e308 AS DOUBLE)
        WHEN 'float8_e5m2' THEN CAST(57344 AS DOUBLE)
        WHEN 'float8_e4m3fn' THEN CAST(448 AS DOUBLE)
    END) AS max_share_of_range,
    bool_or(g.op_name IS NOT NULL) AS is_gradient
FROM derived.digest AS d
LEFT JOIN gradient AS g ON g.run_id = d.run_id AND g.graph_id = d.graph_id AND g.op_name = d.op_name
GROUP BY {", ".join(f"d.{name}" for name in _KEY)}"""
"""One row is an op output over its whole run.

`gradient_op` is the SELECT of the view with this name. Here the SELECT reads only the ops of the digests, because
graphs have many more ops.
"""


class OpDigests:
    """The tables `derived.op_extremes` and `derived.weight_update`.

    A part never changes, so the rows of a run are valid as long as the run has the same parts.
    """

    def __init__(self, logdir: OpenLogdir) -> None:
        self._logdir = logdir
        views = {view.name: view.select for view in public_views()}
        extremes = _EXTREMES.format(gradient_op=views["gradient_op"])
        self._selects = dict(zip(_DERIVED, (extremes, _UPDATES), strict=True))
        self._parts_of_runs: dict[str, _Parts] = {}
        self._is_made = False

    def update(self, run_ids: Iterable[str]) -> None:
        """Updates the tables to the current live parts of some runs."""
        wanted = frozenset(run_ids)
        self._logdir.fetch("tensor_health")
        self._make()
        while True:
            parts = self._logdir.parts_by_run("tensor_health")
            outdated = [run_id for run_id, read_parts in self._parts_of_runs.items() if parts.get(run_id) != read_parts]
            for run_id in outdated:
                del self._parts_of_runs[run_id]
            self._remove(outdated)
            unknown = sorted(run_id for run_id in parts if run_id in wanted and run_id not in self._parts_of_runs)
            for start in range(0, len(unknown), _LARGE_BATCH):
                batch = {run_id: parts[run_id] for run_id in unknown[start : start + _LARGE_BATCH]}
                self._digest(batch)
                self._parts_of_runs.update(batch)
            if self._logdir.parts_by_run("tensor_health") == parts:
                return
            # Parts were replaced in the meantime: some rows were read twice or not at all.

    def _make(self) -> None:
        if not self._is_made:
            self._logdir.rows("CREATE SCHEMA IF NOT EXISTS derived")
            with self._logdir.of_runs(()) as no_runs:
                for name, select in {"digest": COMPUTED, **self._selects}.items():
                    no_runs.rows(f"CREATE OR REPLACE TABLE derived.{name} AS {select} LIMIT 0")
            self._is_made = True

    def _remove(self, run_ids: Sequence[str]) -> None:
        if run_ids:
            for name in _DERIVED:
                self._logdir.rows(f"DELETE FROM derived.{name} WHERE run_id IN (SELECT unnest(?))", [list(run_ids)])

    def _digest(self, parts: Mapping[str, _Parts]) -> None:
        """Adds the digests of some runs."""
        self._logdir.rows("DELETE FROM derived.digest")
        self._remove(list(parts))  # rows that an interrupted call may have left
        sizes = {run_id: _num_bytes(paths) for run_id, paths in parts.items()}
        for batch in _bounded(sizes, _BATCH, _BATCH_BYTES):
            with self._logdir.of_runs(batch) as runs:
                runs.rows(f"INSERT INTO derived.digest {COMPUTED}")
        with self._logdir.of_runs(list(parts)) as runs:
            for name, select in self._selects.items():
                runs.rows(f"INSERT INTO derived.{name} {select}")
        self._logdir.rows("DELETE FROM derived.digest")
