"""Chooses the two runs of a comparison."""

from __future__ import annotations

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.info import Run, check_run, read_runs


def choose_runs(a: Engine, b: Engine, *, run_a: str | None, run_b: str | None) -> tuple[Run, Run]:
    """Returns a run of A and a run of B.

    Args:
        a: A logdir.
        b: Another logdir, or the same one.
        run_a: The run of A. None selects the only run; if a logdir with two runs is compared with itself, the older.
        run_b: The run of B. None works as for run_a, but selects the newer run.

    Raises:
        QueryError: There is no such run, or it is not known which one to select.
    """
    runs = (read_runs(a), read_runs(b))
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
