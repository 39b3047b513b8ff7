"""diff: aligns two runs of a program and finds the first tensor where they diverge.

The modules, in order of use: `workspace` holds the data of both runs. `alignment` aligns the executions of the runs.
`aligned_graphs` aligns the ops and call sites of their graphs. `pairing` aligns the tensors. `comparing` measures how
far the tensors are apart. `roots` finds the first divergence, and `describing` describes it in the `answer`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdbg_arrow.errors import LogdirError, QueryError
from tfdbg_arrow.query.info import Run, choose_runs
from tfdbg_arrow.query.integrity.damage import damage_told
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.run_diff.aligned_graphs import GraphPair, OpAligner
from tfdbg_arrow.query.run_diff.alignment import AlignedExecutions, StackKeys, align_executions
from tfdbg_arrow.query.run_diff.answer import Diff, DtypeChange, Setting, Unaligned, UnalignedOp
from tfdbg_arrow.query.run_diff.comparing import DEFAULT_GROWTH, Tolerance, compare, compare_elements
from tfdbg_arrow.query.run_diff.describing import describe_divergence
from tfdbg_arrow.query.run_diff.pairing import pair_tensors
from tfdbg_arrow.query.run_diff.roots import Roots, find_candidates
from tfdbg_arrow.query.run_diff.workspace import SIDES, Side, Sides, Workspace
from tfdbg_arrow.safe_text import parse_json

_IDENTITY = frozenset({"run_id", "wall_time_ns", "wall_time", "end_wall_time_ns", "pid", "settings"})
"""Columns of the table run that always differ, and `settings`, whose entries are compared one by one."""
_ONLY = {
    "NO_TENSOR": "which ops ran",
    "SHAPE": "dtypes and shapes",
    "CURT_HEALTH": "shapes, and whether a tensor holds an infinity or a NaN",
    "CONCISE_HEALTH": "shapes, and how many elements are infinite or NaN",
    "FULL_HEALTH": "shapes, and how many elements are infinite, NaN, negative, zero and positive",
}
"""What a mode records, if it does not record magnitudes. A mode records everything that the modes before it record."""


def diff(
    a: OpenLogdir | str | Path,
    b: OpenLogdir | str | Path | None = None,
    *,
    run_a: str | None = None,
    run_b: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    growth: float = DEFAULT_GROWTH,
    known: str | None = None,
    last_step: int | None = None,
    limit: int = 20,
) -> Diff:
    """Compares two runs of a program, op by op, call by call, step by step.

    Executions are aligned by the op or function that they run, by the user's stack and by their order. The ops of their
    graphs are aligned by type, stack and order of creation. The tensors in a call are aligned by call site, iteration
    and op. Ids, numbers at the end of names, and the order of arrival differ between processes and are not compared.

    Two tensors agree if their largest difference is within `atol + rtol * scale`, where the scale is the largest
    magnitude in either tensor (`tfdbg_arrow.query.run_diff.comparing` explains why). An op diverges if its outputs do
    not agree, although its inputs agree or differ by far less. A difference that grows from rounding, op by op, is not
    a divergence.

    Args:
        a: A logdir or its path.
        b: The other logdir or its path; None means the same logdir, with two runs.
        run_a: The run of A. None selects the newest run; if a logdir with two runs is compared with itself, None
            selects the older run.
        run_b: The run of B. None works as for run_a, but selects the newer run.
        rtol: Relative tolerance. None means 16 units in the last place of the coarsest dtype with a difference so far.
        atol: Absolute tolerance. None means the value at which the coarser dtype loses its relative precision.
        growth: The relative difference of an op's output may be at most this many times the relative difference of its
            inputs.
        known: A regular expression that matches the whole name or type of ops that are known to diverge, for example an
            op that scales the loss. The search skips these ops and continues after them.
        last_step: Compares only executions and tensors up to this training step, or without a step; None means all. For
            long runs that diverge early, this finds the same divergence in less time.
        limit: Maximum number of entries in `Diff.unaligned`.

    Raises:
        LogdirError: A path is not a readable logdir.
        QueryError: A run or a tolerance cannot be used, or the runs have nothing in common.
        BrokenPartError: A part cannot be read.
    """
    tolerance = Tolerance(rtol, atol, growth)
    if known is not None:
        check_pattern(known)
    if limit < 0:
        raise QueryError(f"limit is {limit}; expected 0 or more ops.")
    if last_step is not None and last_step < 0:
        raise QueryError(f"last_step is {last_step}; expected a training step of 0 or more.")
    with contextlib.ExitStack() as stack:
        open_a = _open(a, stack)
        open_b = open_a if b is None or b is a else _open(b, stack)
        stack.enter_context(damage_told(*dict.fromkeys((open_a, open_b))))
        chosen = choose_runs(open_a, open_b, run_a=run_a, run_b=run_b)
        sides = (Side(open_a, run_id=chosen[0].run_id), Side(open_b, run_id=chosen[1].run_id))
        work = stack.enter_context(contextlib.closing(Workspace(memory_limit=open_a.memory_limit)))
        return _compare(work, sides, chosen, tolerance, known, last_step, limit)


def _compare(
    work: Workspace,
    sides: Sides,
    runs: tuple[Run, Run],
    tolerance: Tolerance,
    known: str | None,
    last_step: int | None,
    limit: int,
) -> Diff:
    for name, side in zip(SIDES, sides, strict=True):
        work.stage(name, side, last_step=last_step)
    stacks = StackKeys(sides)
    aligner = OpAligner(sides, stacks, (work.recorded_ops("a"), work.recorded_ops("b")))
    executions = align_executions(sides, stacks, last_step=last_step)
    graph_pairs = pair_tensors(work, executions, sides, aligner)
    compare_elements(work, sides, tolerance)
    compare(work, tolerance)
    num_aligned, num_compared, num_differing = work.rows(
        "SELECT count(*), count(kind), count(CASE WHEN excess > 1 THEN 1 END) FROM compared"
    )[0]
    if not num_aligned and not len(executions.a):
        raise QueryError(
            f"run {runs[0].run_id} and run {runs[1].run_id} have nothing in common; are they runs of the same program?"
        )
    find_candidates(work, tolerance, known=known)
    roots = Roots(work, sides[0].flow, tolerance)
    root = roots.first()
    num_aligned_ops, (only_a, only_b) = _count_unaligned(work, graph_pairs, executions, num_aligned)
    unaligned, is_cut = _find_unaligned(work, sides, limit=limit)
    return Diff(
        run_a=runs[0].run_id,
        run_b=runs[1].run_id,
        divergence=None if root is None else describe_divergence(root, sides, graph_pairs, work),
        num_aligned=num_aligned,
        num_compared=num_compared,
        num_differing=num_differing,
        num_aligned_executions=len(executions.a),
        num_aligned_ops=num_aligned_ops,
        only_a=only_a,
        only_b=only_b,
        unaligned=unaligned,
        is_cut=is_cut,
        is_search_cut=roots.is_cut,
        dtype_changes=_find_dtype_changes(work),
        environment=_environment_differences(sides),
        incomparable=_incomparable(runs),
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        growth=tolerance.growth,
    )


def _open(logdir: OpenLogdir | str | Path, stack: contextlib.ExitStack) -> OpenLogdir:
    if isinstance(logdir, OpenLogdir):
        return logdir
    if isinstance(logdir, (str, Path)):
        return stack.enter_context(OpenLogdir(logdir))
    # A comparison joins the data of both runs in DuckDB. Other engines cannot join across two logdirs here.
    raise LogdirError(f"logdir is {logdir!r}; expected a path or an open Logdir.")


def check_pattern(pattern: str) -> None:
    """Raises a QueryError if `known` is not a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise QueryError(f"known is {pattern!r}, which is not a valid regular expression: {error}.") from None


def _count_unaligned(
    work: Workspace, pairs: Sequence[GraphPair], executions: AlignedExecutions, num_aligned: int
) -> tuple[int, list[Unaligned]]:
    """Returns the number of aligned ops, and the numbers of items that only A has and that only B has."""
    aligned_ops, only = [], []
    for index, side in enumerate(SIDES):
        num_ops = {(pair.graph_a, pair.graph_b)[index]: (pair.num_ops_a, pair.num_ops_b)[index] for pair in pairs}
        # If one run traced a function more often, a graph is in several pairs. An op counts as aligned if it is aligned
        # in any of these pairs.
        ((num_aligned_ops,),) = work.rows(f"SELECT count(DISTINCT (graph_{side}, op_{side})) FROM op_pair")
        ((num_tensors,),) = work.rows(f"SELECT count(*) FROM health_{side}")
        num_executions = (executions.num_a, executions.num_b)[index] - len(executions.a)
        only.append(Unaligned(num_tensors - num_aligned, num_executions, sum(num_ops.values()) - num_aligned_ops))
        aligned_ops.append(num_aligned_ops)
    return aligned_ops[0], only


def _find_dtype_changes(work: Workspace) -> tuple[DtypeChange, ...]:
    """Returns the changes of precision between the runs. The change that affects most tensors comes first."""
    rows = work.rows(
        "SELECT dtype_a, dtype_b, count(*) FROM compared WHERE dtype_a <> dtype_b AND kind <> 'dtype' "
        "GROUP BY dtype_a, dtype_b ORDER BY 3 DESC, 1, 2"
    )
    return tuple(DtypeChange(*row) for row in rows)


def _find_unaligned(work: Workspace, sides: Sides, *, limit: int) -> tuple[tuple[UnalignedOp, ...], bool]:
    """Returns the ops of tensors without a counterpart, and whether a run has more such ops than the limit."""
    unaligned: list[UnalignedOp] = []
    is_cut = False
    for side, run in zip(SIDES, sides, strict=True):
        rows = work.rows(
            "SELECT graph_id, op_name, op_type, count(*), min(event_index) AS first_event, bool_or(is_aligned) FROM ("
            "SELECT h.graph_id, h.op_name, h.op_type, h.event_index, o.op IS NOT NULL AS is_aligned "
            f"FROM health_{side} AS h LEFT JOIN pair AS p ON p.event_{side} = h.event_index "
            f"LEFT JOIN (SELECT DISTINCT graph_{side} AS graph_id, op_{side} AS op FROM op_pair) AS o "
            f"ON o.graph_id = h.graph_id AND o.op = h.op_name WHERE p.event_{side} IS NULL) AS alone "
            f"GROUP BY graph_id, op_name, op_type ORDER BY first_event LIMIT {limit + 1}"
        )
        is_cut = is_cut or len(rows) > limit
        for graph_id, op_name, op_type, num_tensors, first, is_in_other in rows[:limit]:
            unaligned.append(
                UnalignedOp(
                    side=side,
                    graph_name=None if graph_id is None else run.graphs.names.get(graph_id),
                    op_name=op_name,
                    op_type=op_type,
                    num_tensors=num_tensors,
                    first_event_index=first,
                    is_in_other=is_in_other,
                    source=run.source(run.event(first)),
                )
            )
    return tuple(unaligned), is_cut


def _environment_differences(sides: Sides) -> tuple[Setting, ...]:
    """Returns the differences of the runs in the columns of the table run, in their settings and in their devices."""
    a, b = map(_facts, sides)
    names = [*a, *(name for name in b if name not in a)]
    return tuple(Setting(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))


def _facts(side: Side) -> Mapping[str, str | None]:
    columns, rows = side.logdir.table("SELECT * FROM run WHERE run_id = ? LIMIT 1", [side.run_id])
    run = dict(zip(columns, rows[0], strict=True))
    facts = {name: None if run[name] is None else str(run[name]) for name in columns if name not in _IDENTITY}
    try:
        settings = parse_json(run["settings"])
    except ValueError:
        settings = run["settings"]
    if isinstance(settings, dict):
        facts.update({f"settings.{name}": json.dumps(value) for name, value in settings.items() if value is not None})
    else:
        facts["settings"] = str(settings)
    devices = side.logdir.rows("SELECT device_name FROM device WHERE run_id = ? ORDER BY device_name", [side.run_id])
    facts["devices"] = ", ".join(name for (name,) in devices) or None
    return facts


def _incomparable(runs: tuple[Run, Run]) -> tuple[str, ...]:
    """Returns sentences about data that could not be compared because of a recording mode or gaps in a recording."""
    modes = (runs[0].tensor_debug_mode, runs[1].tensor_debug_mode)
    sentences = []
    if modes[0] != modes[1]:
        least = next((mode for mode in _ONLY if mode in modes), None)
        text = "statistics that both modes record" if least is None else _ONLY[least]
        if least is None and "FULL_TENSOR" in modes:
            text += " (how many elements are infinite, NaN, negative, zero and positive)"
        sentences.append(f"A was recorded in {modes[0]}, B in {modes[1]}: only {text} could be compared.")
    elif modes[0] in _ONLY:
        sentences.append(f"{modes[0]} records only {_ONLY[modes[0]]}, not the values themselves.")
    for name, run in zip("AB", runs, strict=True):
        sentences += (f"Parts of {name} were not recorded: {text}" for text in run.left_out)
    return tuple(sentences)
