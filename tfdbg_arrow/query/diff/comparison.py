"""diff: finds where two runs of a program first diverge."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from tfdbg_arrow.errors import LogdirError, QueryError
from tfdbg_arrow.query.coverage import check_run
from tfdbg_arrow.query.diff.answer import Diff
from tfdbg_arrow.query.diff.calls import align_executions
from tfdbg_arrow.query.diff.candidates import find_candidates
from tfdbg_arrow.query.diff.comparing import compare
from tfdbg_arrow.query.diff.describing import Describer
from tfdbg_arrow.query.diff.divergence import describe_divergence
from tfdbg_arrow.query.diff.elements import compare_elements
from tfdbg_arrow.query.diff.environment import environment_differences, incomparable
from tfdbg_arrow.query.diff.ops import OpAligner
from tfdbg_arrow.query.diff.pairing import pair_tensors
from tfdbg_arrow.query.diff.roots import Roots
from tfdbg_arrow.query.diff.stack_keys import StackKeys
from tfdbg_arrow.query.diff.summary import count_pairs, find_dtype_changes, find_unaligned
from tfdbg_arrow.query.diff.tolerance import DEFAULT_GROWTH, Tolerance
from tfdbg_arrow.query.diff.workspace import SIDES, Workspace
from tfdbg_arrow.query.flow.callsites import CallSites
from tfdbg_arrow.query.info import Run
from tfdbg_arrow.query.logdir import Logdir, open_logdir
from tfdbg_arrow.query.strange_rows import strange_rows_told


def diff(
    a: Logdir | str | Path,
    b: Logdir | str | Path | None = None,
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

    Executions are aligned by what they run, by the user's stack and by their order. The ops of their graphs are
    aligned by type, stack and order of creation. The tensors in a call are aligned by call site, iteration and op.
    Numbers that differ between processes are not compared: ids, names that end in a number, the order of arrival.

    Two tensors agree if their largest difference is within `atol + rtol * scale`, where the scale is the largest
    magnitude in either (`tfdbg_arrow.query.diff.tolerance` explains why). An op diverges if its outputs do not agree
    although its inputs agree or differ by far less. A difference that grows from rounding, op by op, is not a
    divergence.

    Args:
        a: A logdir or its path.
        b: The other logdir or its path; None means the same logdir, with two runs.
        run_a: The run of A. None selects the only run; if a logdir with two runs is compared with itself, the older.
        run_b: The run of B. None works as for run_a, but selects the newer run.
        rtol: Relative tolerance. None means 16 units in the last place of the coarsest dtype with a difference so far.
        atol: Absolute tolerance. None means the value at which the coarser dtype loses its relative precision.
        growth: The factor by which the relative difference of an op may exceed that of its inputs.
        known: A regular expression that matches the whole name or type of ops that are known to diverge, for example
            an op that scales the loss. The search ignores these ops and looks behind them.
        last_step: Only compare what ran up to this training step or before any mark; None means all. For long runs
            that diverge early, this finds the same divergence in less time.
        limit: Maximum number of entries in `Diff.unaligned`.

    Raises:
        LogdirError: A path is not a readable logdir.
        QueryError: A run or a tolerance cannot be used, or the runs have nothing in common.
        BrokenPartError: A part cannot be read.
    """
    tolerance = Tolerance(rtol, atol, growth)
    if known is not None:
        _check_pattern(known)
    if limit < 0:
        raise QueryError(f"limit is {limit}; expected 0 or more ops.")
    if last_step is not None and last_step < 0:
        raise QueryError(f"last_step is {last_step}; expected a training step of 0 or more.")
    with contextlib.ExitStack() as stack:
        open_a = _open(a, stack)
        open_b = open_a if b is None or b is a else _open(b, stack)
        stack.enter_context(strange_rows_told(open_a.path if open_b is open_a else open_b.path))
        chosen = _choose(open_a, open_b, run_a, run_b)
        work = stack.enter_context(Workspace(memory_limit=open_a.memory_limit))
        return _compare(
            work, ((open_a, chosen[0].run_id), (open_b, chosen[1].run_id)), chosen, tolerance, known, last_step, limit
        )


def _compare(
    work: Workspace,
    sides: tuple[tuple[Logdir, str], tuple[Logdir, str]],
    runs: tuple[Run, Run],
    tolerance: Tolerance,
    known: str | None,
    last_step: int | None,
    limit: int,
) -> Diff:
    for name, (logdir, run_id) in zip(SIDES, sides, strict=True):
        work.stage(name, logdir, run_id=run_id, last_step=last_step)
    describers = (Describer(sides[0][0], run_id=sides[0][1]), Describer(sides[1][0], run_id=sides[1][1]))
    flows = (describers[0].flow, describers[1].flow)
    graphs = (flows[0].graphs, flows[1].graphs)
    stacks = StackKeys(sides)
    aligner = OpAligner(graphs[0], graphs[1], stacks, (work.recorded_ops("a"), work.recorded_ops("b")))
    executions = align_executions(sides, graphs, stacks, last_step=last_step)
    call_sites = (CallSites(graphs[0], flows[0].events), CallSites(graphs[1], flows[1].events))
    graph_pairs = pair_tensors(work, executions, graphs, call_sites, aligner)
    compare_elements(work, sides, tolerance)
    compare(work, tolerance)
    counts = count_pairs(work, graph_pairs, executions)
    if not counts.num_aligned and not len(executions.a):
        raise QueryError(
            f"run {runs[0].run_id} and run {runs[1].run_id} have nothing in common; are they runs of the same program?"
        )
    find_candidates(work, tolerance, known=known)
    roots = Roots(work, flows[0], tolerance)
    found = roots.first()
    unaligned, is_cut = find_unaligned(work, describers, limit=limit)
    divergence = None if found is None else describe_divergence(found, describers, sides, graph_pairs, work)
    return Diff(
        run_a=runs[0].run_id,
        run_b=runs[1].run_id,
        divergence=divergence,
        num_aligned=counts.num_aligned,
        num_compared=counts.num_compared,
        num_differing=counts.num_differing,
        num_aligned_executions=len(executions.a),
        num_aligned_ops=counts.num_aligned_ops,
        only_a=counts.only_a,
        only_b=counts.only_b,
        unaligned=unaligned,
        is_cut=is_cut,
        is_search_cut=roots.is_cut,
        dtype_changes=find_dtype_changes(work),
        environment=environment_differences(sides),
        incomparable=incomparable(runs),
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        growth=tolerance.growth,
    )


def _open(logdir: Logdir | str | Path, stack: contextlib.ExitStack) -> Logdir:
    if isinstance(logdir, Logdir):
        return logdir
    if isinstance(logdir, (str, Path)):
        return stack.enter_context(open_logdir(logdir))
    # The staged data of two runs lies in DuckDB. Other engines would have to join across two logdirs.
    raise LogdirError(f"logdir is {logdir!r}; expected a path or an open Logdir.")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise QueryError(f"known is {pattern!r}, which is not a valid regular expression: {error}.") from None


def _choose(a: Logdir, b: Logdir, run_a: str | None, run_b: str | None) -> tuple[Run, Run]:
    runs = (a.runs(), b.runs())
    is_same = a.path == b.path
    if is_same and run_a is None and run_b is None and len(runs[0]) == 2:
        return runs[0][0], runs[0][1]
    chosen = []
    for name, logdir, known, wanted, other in (("a", a, runs[0], run_a, run_b), ("b", b, runs[1], run_b, run_a)):
        check_run(logdir, wanted)
        fitting = [run for run in known if wanted in (None, run.run_id)]
        if wanted is None and is_same and len(fitting) == 2 and other is not None:
            fitting = [run for run in fitting if run.run_id != other]
        if len(fitting) != 1:
            names = ", ".join(run.run_id for run in known[:3]) + (", …" if len(known) > 3 else "")
            has = f"has {len(known)} runs ({names})" if known else "has no runs"
            raise QueryError(f"{logdir.path} {has}; choose one with run_{name} (--run-{name}).")
        chosen.append(fitting[0])
    return chosen[0], chosen[1]
