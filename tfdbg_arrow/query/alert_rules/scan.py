"""Runs built-in rules over many runs, and reads only the op outputs in which they can find something.

A rule about bad tensors only runs over the runs that have one, which are quick to determine.

For the other rules, digests tell which op outputs a rule can find: its candidates (`op_digests`, candidates/*.sql). The
tensors of the candidates of all rules are read once, some runs at a time, and the rules run over them unchanged. Other
tensors are missing there, so a rule may find something that it would not find in the whole logdir. Therefore only
findings among the rule's own candidates are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.errors import MemoryLimitError
from tfdbg_arrow.query.alert_rules.rules import COLUMNS, Rule
from tfdbg_arrow.query.logdir.live_views import literal
from tfdbg_arrow.query.recorded import KINDS
from tfdbg_arrow.schema.tables import table

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdir import Logdir

_LARGE_BYTES = 8_000_000
"""If the parts of tensor_health are at least this large (half a million rows or less), it pays to determine the
candidates first."""
_MAX_ROWS = 2_000_000
"""Number of tensors that are read into memory at a time."""
_MAX_RUNS = 100
"""Number of runs that are read at a time."""
_KEY = ("run_id", "graph_id", "op_name", "op_type", "output_slot")
_JOINED = frozenset({*_KEY, "event_index", "scope", "execution_index", "device_id", "step"})
"""Columns that views and the lookup of a finding's line always need."""
_ORDER = (
    "f.run_id, f.first_event_index NULLS LAST, f.graph_id NULLS LAST, f.op_name NULLS LAST, f.output_slot NULLS LAST"
)


@dataclass
class Found:
    """The findings of one rule.

    Attributes:
        rows: The first findings. A row holds the values of COLUMNS, the execution of the first tensor if it is eager,
            and the steps of the first and the last tensor.
        number: Total number of findings.
        error: The error that stopped the rule; None if the rule completed.
    """

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    number: int = 0
    error: MemoryLimitError | None = None


def is_large(logdir: Logdir) -> bool:
    """Returns True if a logdir has so many tensors that `scan` is faster than running each rule over all of them."""
    return sum(part.stat().st_size for part in logdir.parts("tensor_health") if part.exists()) >= _LARGE_BYTES


def scan(
    logdir: Logdir, rules: Sequence[Rule], parameters: Mapping[str, Mapping[str, float]], *, limit: int
) -> dict[str, Found]:
    """Returns the findings of rules, by kind.

    Args:
        logdir: The logdir.
        rules: Rules whose candidates are known.
        parameters: Values to use instead of a rule's defaults, by rule.
        limit: Maximum number of rows per rule.
    """
    found = {rule.kind: Found() for rule in rules}
    of_bad = [rule for rule in rules if rule.candidates is not None and rule.candidates.is_of_bad]
    if of_bad:
        run_ids = logdir.bad_runs.by_first(KINDS)
        for start in range(0, len(run_ids), _MAX_RUNS):
            with logdir.of_runs(run_ids[start : start + _MAX_RUNS]) as runs:
                for rule in of_bad:
                    _try_rule(runs, rule, parameters.get(rule.kind, {}), found[rule.kind], limit=limit)
    others = [rule for rule in rules if rule not in of_bad]
    if others:
        try:
            _scan_candidates(logdir, others, parameters, found, limit=limit)
        except MemoryLimitError as error:
            for rule in others:
                found[rule.kind].error = error
    for of_rule in found.values():
        of_rule.rows = sorted(of_rule.rows, key=_place)[:limit]
    return found


def _scan_candidates(
    logdir: Logdir,
    rules: Sequence[Rule],
    parameters: Mapping[str, Mapping[str, float]],
    found: Mapping[str, Found],
    *,
    limit: int,
) -> None:
    logdir.op_digests.update()
    candidates = " UNION ALL ".join(
        f"SELECT '{rule.kind}' AS kind, {', '.join(_KEY)} "
        f"FROM (\n{rule.candidates_sql(parameters.get(rule.kind, {}))}\n)"
        for rule in rules
    )
    logdir.rows(f"CREATE OR REPLACE TABLE derived.candidate AS {candidates}")
    try:
        for kinds, run_ids in _batches(logdir):
            chosen = [rule for rule in rules if rule.kind in kinds]
            with logdir.of_runs(run_ids) as runs:
                runs.replace("tensor_health", _wanted(runs, chosen, run_ids))
                for rule in chosen:
                    _try_rule(
                        runs,
                        rule,
                        parameters.get(rule.kind, {}),
                        found[rule.kind],
                        limit=limit,
                        condition=_is_candidate(rule),
                    )
    finally:
        logdir.rows("DROP TABLE IF EXISTS derived.candidate")


def _batches(logdir: Logdir) -> list[tuple[tuple[str, ...], list[str]]]:
    """Returns (rules, runs) batches: runs in which exactly these rules have candidates, as many as are read at a time.

    Grouping the runs by rules avoids reading columns that only other rules need.
    """
    sizes = logdir.rows(
        f"SELECT c.run_id, coalesce(sum(d.num_tensors), 0) FROM (SELECT DISTINCT {', '.join(_KEY)} "
        "FROM derived.candidate) AS c "
        "LEFT JOIN derived.op_extremes AS d ON d.run_id = c.run_id AND d.graph_id IS NOT DISTINCT FROM c.graph_id "
        "AND d.op_name IS NOT DISTINCT FROM c.op_name AND d.op_type IS NOT DISTINCT FROM c.op_type "
        "AND d.output_slot IS NOT DISTINCT FROM c.output_slot GROUP BY c.run_id"
    )
    of_run = {run_id: int(size) for run_id, size in sizes}
    alike: dict[tuple[str, ...], list[str]] = {}
    for run_id, kinds in logdir.rows(
        "SELECT run_id, list(DISTINCT kind ORDER BY kind) FROM derived.candidate GROUP BY run_id ORDER BY run_id"
    ):
        alike.setdefault(tuple(kinds), []).append(run_id)
    batches: list[tuple[tuple[str, ...], list[str]]] = []
    for kinds, run_ids in alike.items():
        batch: list[str] = []
        filled = 0
        for run_id in run_ids:
            if batch and (len(batch) >= _MAX_RUNS or filled + of_run.get(run_id, 0) > _MAX_ROWS):
                batches.append((kinds, batch))
                batch, filled = [], 0
            batch.append(run_id)
            filled += of_run.get(run_id, 0)
        batches.append((kinds, batch))
    return batches


def _place(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the sort key of a finding, equal to _ORDER."""
    values = (
        row[COLUMNS.index(name)] for name in ("run_id", "first_event_index", "graph_id", "op_name", "output_slot")
    )
    return tuple((value is None, value) for value in values)


def _wanted(runs: Logdir, rules: Sequence[Rule], run_ids: Sequence[str]) -> str:
    """Returns the SELECT of the candidates' tensors. Columns that none of the rules needs are NULL."""
    names = runs.rows(
        "SELECT DISTINCT op_name, op_type, graph_id IS NULL FROM derived.candidate WHERE run_id IN (SELECT unnest(?))",
        [run_ids],
    )
    columns = ", ".join(
        f"h.{column.name}"
        if column.name in _JOINED or any(re.search(rf"\b{column.name}\b", rule.select) for rule in rules)
        else f"CAST(NULL AS {column.type.value}) AS {column.name}"
        for column in table("tensor_health").columns
    )
    outputs = f"(SELECT DISTINCT {', '.join(_KEY)} FROM derived.candidate)"
    match = " AND ".join(f"c.{name} IS NOT DISTINCT FROM h.{name}" for name in _KEY)
    # Filtering by name before the join makes DuckDB read the other columns only for tensors with a matching name.
    in_graphs = ", ".join(sorted({literal(name) for name, _, is_eager in names if not is_eager and name is not None}))
    eager = ", ".join(sorted({literal(op_type) for _, op_type, is_eager in names if is_eager and op_type is not None}))
    conditions = []
    if in_graphs:
        conditions.append(f"h.op_name IN ({in_graphs})")
    if eager:
        conditions.append(f"h.op_type IN ({eager}) AND h.op_name IS NULL")
    if any(is_eager and op_type is None for _, op_type, is_eager in names):
        conditions.append("h.op_type IS NULL")
    selects = [
        f"SELECT {columns} FROM tensor_health AS h JOIN {outputs} AS c ON {match} WHERE {each}" for each in conditions
    ]
    return " UNION ALL ".join(selects) or f"SELECT {columns} FROM tensor_health AS h WHERE false"


def _is_candidate(rule: Rule) -> str:
    """Returns the SQL condition that a finding f is among the candidates of its rule."""
    assert rule.candidates is not None
    key = _KEY[:2] if rule.candidates.is_by_graph else _KEY
    match = " AND ".join(f"c.{name} IS NOT DISTINCT FROM f.{name}" for name in key)
    return f"EXISTS (SELECT 1 FROM derived.candidate AS c WHERE c.kind = '{rule.kind}' AND {match})"


def _try_rule(
    runs: Logdir, rule: Rule, given: Mapping[str, float], found: Found, *, limit: int, condition: str = "true"
) -> None:
    """Runs a rule over some runs, unless the memory limit stopped it in earlier runs."""
    if found.error is None:
        try:
            _run_rule(runs, rule, given, found, limit=limit, condition=condition)
        except MemoryLimitError as error:
            found.error = error


def _run_rule(
    runs: Logdir, rule: Rule, given: Mapping[str, float], found: Found, *, limit: int, condition: str = "true"
) -> None:
    columns = ", ".join(f"f.{column}" for column in COLUMNS)
    rows = runs.rows(
        f"WITH found AS (\n{rule.sql(given)}\n) SELECT {columns}, "
        "CASE WHEN f.graph_id IS NULL THEN h.execution_index END, h.step, l.step, count(*) OVER () AS num_found "
        "FROM found AS f "
        "LEFT JOIN tensor_health AS h ON h.run_id = f.run_id AND h.event_index = f.first_event_index "
        "LEFT JOIN tensor_health AS l ON l.run_id = f.run_id AND l.event_index = f.last_event_index "
        f"WHERE {condition} ORDER BY {_ORDER} LIMIT {max(limit, 1)}"
    )
    if rows:
        found.number += rows[0][-1]
        found.rows += [row[:-1] for row in rows[:limit]]
