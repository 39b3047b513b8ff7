"""The runs of a logdir, and the summary of its contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.asked_runs import ALL_RUNS, asked_runs, find_run
from tfdbg_arrow.query.capture_stats import gap_sentences, read_capture_stats
from tfdbg_arrow.query.coverage import coverage
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema import TABLES

MODES_WITHOUT_HEALTH = frozenset({"NO_TENSOR", "SHAPE"})


@dataclass(frozen=True)
class Run:
    """One run. The attributes are columns of the table `run`, with None for NULL. `tags` is a tuple of texts.

    Only `left_out` is not a column. `left_out` has one sentence for each gap in the recording of the run: events that
    were not recorded on request, or that were lost.
    """

    run_id: str
    wall_time_ns: int
    end_wall_time_ns: int | None
    is_clean_end: bool
    tfdbg_arrow_version: str
    tensorflow_version: str | None
    host_name: str | None
    pid: int | None
    command_line: str | None
    tensor_debug_mode: str | None
    health_backend: str
    worker: str | None = None
    run_name: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def measures_health(self) -> bool:
        """Whether the recording looked for infinities and NaN in tensors."""
        return self.tensor_debug_mode is not None and self.tensor_debug_mode not in MODES_WITHOUT_HEALTH


@dataclass(frozen=True)
class TableInfo:
    """One table of a logdir: its name, and the number of its rows, parts and bytes."""

    name: str
    rows: int
    parts: int
    bytes: int


@dataclass(frozen=True, repr=False)
class LogdirInfo(Displayed):
    """The contents of a logdir.

    Attributes:
        path: The logdir.
        runs: The runs of the logdir, oldest first.
        tables: The tables of the logdir, in the order of the specification.
        bytes: Number of bytes of all live parts.
        first_wall_time_ns: When the first tensor or execution was recorded, in nanoseconds since
            1970-01-01T00:00:00Z; None if nothing was recorded.
        last_wall_time_ns: When the last tensor or execution was recorded; None if nothing was recorded.
        num_tensors: Number of recorded tensors.
        num_nonfinite: Number of recorded tensors with an infinity or a NaN.
        unobserved: The tensors that could be bad and were not examined, in one line. Tensors that `Run.left_out`
            mentions are not included. None if there are no such tensors.
    """

    path: str
    runs: tuple[Run, ...]
    tables: tuple[TableInfo, ...]
    bytes: int
    first_wall_time_ns: int | None
    last_wall_time_ns: int | None
    num_tensors: int
    num_nonfinite: int
    unobserved: str | None = None


def read_runs(logdir: Engine) -> tuple[Run, ...]:
    """Returns the runs in a logdir, oldest first."""
    rows = logdir.rows(
        "SELECT run_id, wall_time_ns, end_wall_time_ns, is_clean_end, tfdbg_arrow_version, tensorflow_version, "
        "host_name, pid, command_line, tensor_debug_mode, health_backend, worker, run_name, tags, notes "
        "FROM run ORDER BY wall_time_ns, run_id"
    )
    left_out = gap_sentences(read_capture_stats(logdir))
    return tuple(Run(*(*facts, _parse_tags(tags), notes, left_out.get(facts[0], ()))) for *facts, tags, notes in rows)


def _parse_tags(text: str | None) -> tuple[str, ...]:
    """Parses `run.tags`. Returns no tags if the text is not a JSON array."""
    try:
        tags = parse_json(text or "[]")
    except ValueError:
        return ()
    return tuple(map(str, tags)) if isinstance(tags, list) else ()


def read_info(logdir: Engine) -> LogdirInfo:
    """Returns the summary of a logdir."""
    tables = tuple(TableInfo(table.name, *logdir.extent(table.name)) for table in TABLES)
    first, last = logdir.rows(
        "SELECT min(wall_time_ns), max(wall_time_ns) FROM "
        "(SELECT wall_time_ns FROM tensor_health UNION ALL SELECT wall_time_ns FROM execution)"
    )[0]
    num_nonfinite = logdir.rows("SELECT count(*) FROM tensor_health WHERE has_inf_or_nan")[0][0]
    return LogdirInfo(
        path=str(logdir.path),
        runs=read_runs(logdir),
        tables=tables,
        bytes=sum(table.bytes for table in tables),
        first_wall_time_ns=first,
        last_wall_time_ns=last,
        num_tensors=next(table.rows for table in tables if table.name == "tensor_health"),
        num_nonfinite=num_nonfinite,
        unobserved=coverage(logdir, run_id=ALL_RUNS).summary_beside_gaps,
    )


def choose_runs(a: Engine, b: Engine, *, run_a: str | None, run_b: str | None) -> tuple[Run, Run]:
    """Returns a run of A and a run of B.

    Args:
        a: A logdir.
        b: Another logdir, or the same logdir.
        run_a: The run of A. None selects the newest run. If A and B are the same logdir with two runs, None selects the
            run that `run_b` does not name, or the older run if `run_b` is None too.
        run_b: The run of B. None selects a run in the same way, but the newer run if `run_a` is None too.

    Raises:
        QueryError: There is no such run, or there are several runs to choose from.
    """
    runs = (read_runs(a), read_runs(b))
    is_same = a.path == b.path
    if is_same and run_a is None and run_b is None and len(runs[0]) == 2:
        return runs[0][0], runs[0][1]
    if a is b and run_a is None and run_b is None and len(runs[0]) == 1:
        raise QueryError(
            f"{a.path} has one run ({runs[0][0].run_id}); name the logdir of another run, or record into this one "
            "again."
        )
    chosen = []
    for name, logdir, side_runs, wanted, other in (("a", a, runs[0], run_a, run_b), ("b", b, runs[1], run_b, run_a)):
        if wanted is not None:
            run_ids: tuple[str, ...] = (find_run(logdir, wanted),)
        else:
            run_ids = asked_runs(logdir, ALL_RUNS if is_same else None).run_ids
        fitting = [run for run in side_runs if run.run_id in run_ids]
        if wanted is None and is_same and len(fitting) == 2 and other is not None:
            fitting = [run for run in fitting if other not in (run.run_id, run.run_name)]
        if len(fitting) != 1:
            names = ", ".join(run.run_id for run in side_runs[:3]) + (", …" if len(side_runs) > 3 else "")
            has = f"has {len(side_runs)} runs ({names})" if side_runs else "has no runs"
            raise QueryError(f"{logdir.path} {has}; choose one with run_{name} (--run-{name}).")
        chosen.append(fitting[0])
    return chosen[0], chosen[1]


def parse_settings(text: str) -> dict[str, Any]:
    """Parses `run.settings`. Returns an empty dict if the text is not a JSON object."""
    try:
        settings = parse_json(text)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def withholds_source(logdir: Engine, *, run_id: str) -> bool:
    """Returns whether the setting `redact` kept the text of source files out of a run."""
    for (text,) in logdir.rows("SELECT settings FROM run WHERE run_id = ? LIMIT 1", [run_id]):
        redacted = parse_settings(text).get("redact")
        return isinstance(redacted, list) and "source" in redacted
    return False
