"""Finds problems of the runs of a logdir in the tables."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tfdbg_arrow.query.asked_runs import ALL_RUNS
from tfdbg_arrow.query.capture_stats import STAT_KINDS, CaptureStat
from tfdbg_arrow.query.coverage import Coverage, coverage
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.info import MODES_WITHOUT_HEALTH, parse_settings
from tfdbg_arrow.safe_text import number_of, some_of
from tfdbg_arrow.storage.layout import SPOOL_DIRECTORY

_FILTERS = frozenset({"op_regex", "tensor_dtypes"})
_IMPORTED = "debugger_v2"
MAX_NAMED = 3
"""Maximum number of names in a finding, which is one sentence. The sentence counts the others."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem, or one useful fact.

    Attributes:
        kind: A stable name for programs, such as `not_closed`.
        severity: `error` (data cannot be read), `warning` (data is missing) or `info` (requested by the user, or
            harmless).
        run_id: The run that the finding is about; None for the whole logdir.
        sentence: The problem or fact.
        evidence: The facts from which doctor draws this conclusion.
        advice: What the user can do.
    """

    kind: str
    severity: str
    run_id: str | None
    sentence: str
    evidence: str
    advice: str


def examine_runs(logdir: Engine) -> list[Finding]:
    """Returns findings about the runs of a logdir, run by run.

    Raises:
        QueryError: A table cannot be read.
        BrokenPartError: A part cannot be read.
    """
    runs = _read_facts(logdir)
    if not runs:
        return [
            Finding(
                kind="no_run",
                severity="warning",
                run_id=None,
                sentence="The logdir holds no run: it was created, but no recording wrote a row.",
                evidence="The table run is empty.",
                advice="Record a program into it. If this is a copy, also copy the directories run and manifest.",
            )
        ]
    covered = coverage(logdir, run_id=ALL_RUNS)
    findings: list[Finding] = []
    for facts in runs:
        say = partial(_finding, facts.run_id)
        findings += _of_its_end(facts, say, path=logdir.path if isinstance(logdir.path, Path) else None)
        findings += _of_what_is_there(facts, say)
        findings += _of_settings(facts, say, covered)
        findings += _of_coverage(facts, say, covered)
        findings += _of_stats(say, [stat for stat in covered.stats if stat.run_id == facts.run_id])
    return findings


_Say = Callable[..., Finding]
"""Creates a finding about one run from kind, severity, sentence, evidence and advice."""


@dataclass(frozen=True)
class _Facts:
    """The facts about a run. The attributes are columns of `run` and numbers of rows."""

    run_id: str
    host_name: str | None
    pid: int | None
    is_clean_end: bool
    end_wall_time_ns: int | None
    tensor_debug_mode: str | None
    op_regex: str | None
    tensor_dtypes: str | None
    health_backend: str
    settings: dict[str, Any]
    num_execution: int
    num_graph: int
    num_tensor_health: int
    num_graph_tensors: int
    num_unknown_calls: int


def _finding(run_id: str, kind: str, severity: str, sentence: str, evidence: str, advice: str) -> Finding:
    return Finding(kind=kind, severity=severity, run_id=run_id, sentence=sentence, evidence=evidence, advice=advice)


def _read_facts(logdir: Engine) -> list[_Facts]:
    rows = logdir.rows(
        "SELECT r.run_id, r.host_name, r.pid, r.is_clean_end, r.end_wall_time_ns, r.tensor_debug_mode, r.op_regex, "
        "r.tensor_dtypes, r.health_backend, r.settings, coalesce(e.num, 0), coalesce(g.num, 0), coalesce(h.num, 0), "
        "coalesce(h.num_of_graphs, 0), coalesce(e.num_unknown_calls, 0) FROM run AS r "
        "LEFT JOIN (SELECT run_id, count(*) AS num, count(CASE WHEN graph_id IS NULL AND substr(op_type, 1, 2) = '__' "
        "THEN 1 END) AS num_unknown_calls FROM execution GROUP BY run_id) AS e ON e.run_id = r.run_id "
        "LEFT JOIN (SELECT run_id, count(*) AS num FROM graph GROUP BY run_id) AS g ON g.run_id = r.run_id "
        "LEFT JOIN (SELECT run_id, count(*) AS num, count(graph_id) AS num_of_graphs FROM tensor_health "
        "GROUP BY run_id) AS h ON h.run_id = r.run_id "
        "ORDER BY r.wall_time_ns, r.run_id"
    )
    return [_Facts(*(*row[:9], parse_settings(row[9]), *row[10:])) for row in rows]


def _of_its_end(facts: _Facts, say: _Say, *, path: Path | None) -> Iterator[Finding]:
    if facts.is_clean_end:
        return
    if facts.health_backend == _IMPORTED:
        yield say(
            "dump_not_whole",
            "warning",
            "The run was imported from an incomplete dump, or the import was interrupted.",
            "run.is_clean_end is false.",
            "Import the dump again. Other findings list what the dump itself lacks.",
        )
    elif facts.end_wall_time_ns is not None:
        yield say(
            "events_lost",
            "warning",
            "The recording was closed, but not every event was written.",
            "run.is_clean_end is false, and end_wall_time_ns is known.",
            "See the other findings about this run, and free space or raise limits before you record again.",
        )
    elif _is_running(facts):
        yield say(
            "still_recording",
            "info",
            "The program is still recording, so the run is not complete yet.",
            f"The process {facts.pid} of the run is alive on this host.",
            "Run doctor again later. You can read the recorded data at any time.",
        )
    else:
        spool_files = sorted(entry.name for entry in (path / SPOOL_DIRECTORY).glob(f"{facts.run_id}.*")) if path else []
        yield say(
            "not_closed",
            "warning",
            "The recording was never closed: the program was killed or crashed, or still runs on another machine.",
            "run.end_wall_time_ns is NULL"
            + (
                f", and rows that are not in parts yet are left in {SPOOL_DIRECTORY}/{spool_files[0]}."
                if spool_files
                else "."
            ),
            "The recorded data is reliable, up to the end of the program."
            + (f" To let other readers see the last rows, run: tfdbg-arrow recover {path}." if spool_files else ""),
        )


def _is_running(facts: _Facts) -> bool:
    if facts.pid is None or facts.host_name != socket.gethostname():
        return False
    try:
        os.kill(facts.pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _of_what_is_there(facts: _Facts, say: _Say) -> Iterator[Finding]:
    executions, graphs = number_of(facts.num_execution, "execution"), number_of(facts.num_graph, "graph")
    numbers = f"{executions}, {graphs} and {number_of(facts.num_tensor_health, 'tensor')}"
    evidence = f"The run has {numbers}."
    if facts.num_execution == 0 and facts.num_tensor_health == 0:
        yield _nothing_there(facts, say, evidence)
        return
    if facts.tensor_debug_mode in MODES_WITHOUT_HEALTH:
        yield say(
            "mode_measures_nothing",
            "warning",
            f"The mode {facts.tensor_debug_mode} does not detect infinities and NaN, so no tensor is known to be bad.",
            f"run.tensor_debug_mode is {facts.tensor_debug_mode}.",
            "Record in CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, FULL_NUMERICS or FULL_TENSOR.",
        )
    elif facts.num_tensor_health == 0:
        filters = [name for name in sorted(_FILTERS) if getattr(facts, name) is not None]
        why = f"the filters ({', '.join(filters)}) excluded all" if filters else "no op has a floating-point output"
        yield say(
            "no_tensor",
            "warning",
            f"No tensor was recorded: {why}.",
            evidence,
            f"Record without {' and '.join(filters)}." if filters else "Set tensor_dtypes to record other dtypes too.",
        )
    if facts.num_graph == 0 and facts.num_graph_tensors:
        yield say(
            "graphs_missing",
            "error",
            "Tensors of graphs were recorded, but the rows about these graphs are missing. The inputs and the lines of "
            "these tensors are unknown.",
            f"{evidence} Of these tensors, {facts.num_graph_tensors:,} are of graphs.",
            "If the disk was full, free space and record again.",
        )
    elif facts.num_graph == 0 and facts.num_unknown_calls:
        yield say(
            "unknown_functions",
            "warning",
            f"Calls that were recorded without the ops inside them: {facts.num_unknown_calls:,}. The functions were "
            "built before recording began.",
            f"{evidence} Calls of functions have no graph.",
            "Call enable() before the model is built and before any concrete function is created.",
        )
    elif facts.num_graph == 0:
        yield say(
            "only_eager",
            "info",
            "Only eager ops were recorded, but no graph: the program calls no tf.function, or called all of its "
            "functions before recording began.",
            evidence,
            "If it calls functions, as Keras's fit does without run_eagerly=True, call enable() before these calls.",
        )


def _nothing_there(facts: _Facts, say: _Say, evidence: str) -> Finding:
    if facts.settings.get("dump_on") is not None:
        return say(
            "black_box_never_fired",
            "info",
            "The black box never fired: no bad value appeared, so it wrote no execution and no tensor.",
            f"{evidence} run.settings has dump_on={facts.settings['dump_on']!r}.",
            "Nothing, if the program worked as expected. To keep the last events too, leave out dump_on.",
        )
    if facts.settings.get("steps") is not None:
        return say(
            "nothing_recorded",
            "warning",
            "Nothing was recorded: no step of the schedule ran.",
            f"{evidence} run.settings has steps={facts.settings['steps']!r}.",
            "Record with other steps, and mark the steps with mark(step=...) or MarkCallback.",
        )
    if facts.num_graph:
        return say(
            "graphs_never_ran",
            "warning",
            "Graphs were traced, but none of their runs was recorded: the program ended before it called them, was "
            "killed before anything was written, or calls them in another process.",
            evidence,
            "Call flush() after the code of interest, or record in the process that runs the functions.",
        )
    return say(
        "nothing_recorded",
        "warning",
        "Nothing was recorded: no op ran in this process after enable().",
        evidence,
        "Call enable() before the program computes, in the process that computes, and in eager code.",
    )


def _of_settings(facts: _Facts, say: _Say, coverage: Coverage) -> Iterator[Finding]:
    for name in sorted(_FILTERS):
        value = getattr(facts, name)
        if value is not None:
            groups = [group for group in coverage.unobserved if (group.run_id, group.reason) == (facts.run_id, name)]
            number = sum(group.num_could_be_bad for group in groups)
            yield say(
                "filtered",
                "info",
                f"The recording was filtered by {name}={value}. Outputs of ops in graphs that could be bad and were "
                f"left out: {number:,}. The filter also applies to eager ops.",
                f"run.{name}, and not_recorded_reason in graph_op_output.",
                f"Record without {name} if a bad value seems to have no origin.",
            )


def _of_coverage(facts: _Facts, say: _Say, coverage: Coverage) -> Iterator[Finding]:
    if facts.tensor_debug_mode in MODES_WITHOUT_HEALTH:
        return
    numbers: dict[str, int] = {}
    for group in coverage.unobserved:
        if group.run_id == facts.run_id and group.reason not in _FILTERS and group.num_could_be_bad:
            numbers[group.reason] = numbers.get(group.reason, 0) + group.num_could_be_bad
    for reason, number in sorted(numbers.items()):
        yield say(
            "unobserved_outputs",
            "warning",
            f"Outputs of ops in graphs that could be bad but were not recorded ({reason}): {number:,}.",
            f"graph_op_output.not_recorded_reason is {reason}.",
            f"To list them, run: tfdbg-arrow coverage {coverage.path} --run {facts.run_id}.",
        )


def _of_stats(say: _Say, stats: list[CaptureStat]) -> Iterator[Finding]:
    """Yields one finding for each stat and reason in capture_stat."""
    by_reason: dict[tuple[str, str], list[CaptureStat]] = {}
    for stat in stats:
        by_reason.setdefault((stat.stat, stat.reason), []).append(stat)
    for (name, reason), same in by_reason.items():
        first = same[0]
        subjects = list(dict.fromkeys(stat.subject for stat in same))
        numbers = [stat.num_events for stat in same if stat.num_events is not None]
        number = f", {sum(numbers):,} events" if numbers else ""
        yield say(
            name if name in STAT_KINDS else "noted",
            "info" if first.is_asked else "warning",
            f"{some_of(subjects, MAX_NAMED)} {first.kind.words}: {reason}",
            f"The table capture_stat (stat {name}{number}).",
            first.advice,
        )
