"""The runs that a question is about: by default the newest run and the runs of the other processes of its program.

Only this module selects the runs for a question. A `run_id` is the ID or the name of a run, ALL_RUNS, or None for the
default.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tfdbg_arrow.errors import BrokenPartError, QueryError
from tfdbg_arrow.query.bad_runs import BadRuns
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.recorded import KINDS, bad_condition
from tfdbg_arrow.safe_text import number_of

ALL_RUNS = "all"
"""The `run_id` that means all runs of a logdir."""
_MAX_NAMED = 3
"""Maximum number of runs that a sentence names."""
_MAX_LISTED = 20
"""An error about the name of a run lists at most this many runs: the newest ones."""


@dataclass(frozen=True, kw_only=True)
class AskedRuns:
    """The runs that a question is about.

    Attributes:
        run_ids: The runs, oldest first.
        is_all: Whether `run_ids` are all runs of the logdir.
    """

    run_ids: tuple[str, ...]
    is_all: bool

    def condition(self, column: str = "run_id") -> tuple[str, list[str]]:
        """Returns the SQL condition that selects the rows of these runs, and the parameters of the condition."""
        if self.is_all:
            return "TRUE", []
        return f"{column} IN ({', '.join('?' * len(self.run_ids))})", list(self.run_ids)


@dataclass(frozen=True, kw_only=True)
class AboutRuns:
    """The runs that an answer is about, and the number of other runs with bad values.

    Attributes:
        run_ids: The runs that the answer is about, oldest first.
        is_newest: Whether the question named no run. `run_ids` then has the newest run and the runs of the other
            processes of its program.
        num_others: Number of other runs in the logdir.
        num_bad_others: Number of other runs that recorded a NaN or an infinity, harmful or not. None if the other
            runs were not read, or if one of the other runs has a broken part.
    """

    run_ids: tuple[str, ...]
    is_newest: bool
    num_others: int
    num_bad_others: int | None

    @property
    def sentence(self) -> str | None:
        """A sentence that names the runs and describes the other runs; None if the logdir has no other runs."""
        if not self.num_others:
            return None
        names = ", ".join(self.run_ids[:_MAX_NAMED]) + (", …" if len(self.run_ids) > _MAX_NAMED else "")
        if len(self.run_ids) == 1:
            runs = f"run {names}" + (f", the newest of {self.num_others + 1:,}" if self.is_newest else "")
        else:
            newest = " the newest" if self.is_newest else ""
            runs = f"{newest} {len(self.run_ids):,} runs of one program: {names}".strip()
        return f"About {runs}. {self.others}"

    @property
    def others(self) -> str:
        """A sentence about the other runs."""
        if self.num_bad_others is None:
            return (
                "The other run was not read." if self.num_others == 1 else f"{self.num_others:,} others were not read."
            )
        if self.num_others == 1:
            return f"The other run recorded {'bad values' if self.num_bad_others else 'no bad value'}."
        number = f"{self.num_bad_others:,}" if self.num_bad_others else "None"
        return f"{number} of the {self.num_others:,} other runs recorded bad values."


def find_run(logdir: Engine, run: str) -> str:
    """Returns the ID of a run.

    Args:
        logdir: The logdir.
        run: The ID of a run, or the name that the user gave the run (`run.run_name`).

    Raises:
        QueryError: No run, or more than one run, has this name.
    """
    if logdir.of_run(run).rows("SELECT 1 FROM run WHERE run_id = ? LIMIT 1", [run]):
        return run
    named = logdir.rows("SELECT run_id FROM run WHERE run_name = ? ORDER BY wall_time_ns, run_id", [run])
    if len(named) == 1:
        return str(named[0][0])
    if named:
        names = _names_of([named_id for (named_id,) in named])
        raise QueryError(f"{len(named)} runs of {logdir.path} have the name {run!r}; choose one by its ID: {names}.")
    names = _names_of([process.run_id for process in _read_processes(logdir).oldest_first])
    raise QueryError(f"run {run!r} is not in {logdir.path}; it holds {names or 'no run'}.")


def _names_of(run_ids: Sequence[str]) -> str:
    """Returns the newest runs as text. The runs are given oldest first."""
    return ", ".join(run_ids[-_MAX_LISTED:]) + (", …" if len(run_ids) > _MAX_LISTED else "")


def asked_runs(logdir: Engine, run_id: str | None = None) -> AskedRuns:
    """Returns the runs that a question is about.

    Args:
        logdir: The logdir.
        run_id: The ID or the name of a run, or ALL_RUNS. None means the run that started last, and the runs of the same
            program that recorded at the same time. These are the runs of other workers of its cluster, of child
            processes (forked or not), and of parent processes.

    Raises:
        QueryError: There is no such run, or several runs have this name.
    """
    if run_id is not None and run_id != ALL_RUNS:
        return AskedRuns(run_ids=(find_run(logdir, run_id),), is_all=False)
    processes = _read_processes(logdir)
    chosen = processes.oldest_first if run_id == ALL_RUNS else processes.newest
    is_all = len(chosen) == len(processes.oldest_first)
    return AskedRuns(run_ids=tuple(process.run_id for process in chosen), is_all=is_all)


def one_asked_run(logdir: Engine, run_id: str | None = None) -> str:
    """Returns the only run that a question is about; see `asked_runs`.

    Raises:
        QueryError: There is no such run, or there are several such runs.
    """
    asked = asked_runs(logdir, run_id)
    if len(asked.run_ids) != 1:
        runs = number_of(len(asked.run_ids), "run") + ("" if asked.is_all else " of the newest program")
        names = ", ".join(asked.run_ids) or "(it holds none)"
        raise QueryError(f"{logdir.path} holds {runs}; set run_id to one of {names}.")
    return asked.run_ids[0]


@contextlib.contextmanager
def asking(logdir: Engine | str | Path, run_id: str | None = None) -> Iterator[tuple[Engine, AskedRuns]]:
    """Yields (engine, runs): an engine that reads only the runs that a question is about, and these runs.

    An engine on Spark also shows the other runs, so queries need `AskedRuns.condition`.

    Args:
        logdir: An open logdir or its path.
        run_id: As in `asked_runs`.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: There is no such run.
    """
    with opened(logdir) as open_, contextlib.ExitStack() as stack:
        asked = asked_runs(open_, run_id)
        engine = open_
        if not asked.is_all and len(asked.run_ids) == 1:
            engine = open_.of_run(asked.run_ids[0])
        elif not asked.is_all and isinstance(open_, OpenLogdir):
            engine = stack.enter_context(open_.of_runs(asked.run_ids))
        yield engine, asked


def about_runs(
    logdir: Engine, run_id: str | None = None, *, run_ids: Collection[str] | None = None, reads_others: bool = True
) -> AboutRuns:
    """Returns the runs that an answer is about, and how many other runs have bad values.

    A bad value in another run counts without a search for its origin.

    Args:
        logdir: The logdir.
        run_id: As in `asked_runs`.
        run_ids: The runs that the answer is about. None means the runs that `run_id` selects.
        reads_others: Whether to look for bad values in the other runs.

    Raises:
        QueryError: There is no such run.
    """
    asked = asked_runs(logdir, run_id).run_ids
    all_run_ids = [process.run_id for process in _read_processes(logdir).oldest_first]
    chosen = asked if run_ids is None else tuple(run for run in all_run_ids if run in run_ids)
    num_others = len(set(all_run_ids) - set(chosen))
    num_bad = None
    if reads_others and num_others:
        # A broken part of an old run does not prevent an answer about the newest run. `AboutRuns.sentence` says that
        # the old runs were not read.
        with contextlib.suppress(BrokenPartError):
            bad = runs_by_first_bad(logdir, KINDS, AskedRuns(run_ids=tuple(all_run_ids), is_all=True))
            num_bad = len(set(bad) - set(chosen))
    is_newest = run_id is None and set(chosen) == set(asked)
    return AboutRuns(run_ids=chosen, is_newest=is_newest, num_others=num_others, num_bad_others=num_bad)


def runs_by_first_bad(logdir: Engine, kinds: tuple[str, ...], asked: AskedRuns) -> list[str]:
    """Returns those of the asked runs that have a tensor with bad values of these kinds.

    The runs are sorted by the time of the first of these tensors, and then by ID.
    """
    if isinstance(logdir, OpenLogdir):
        return logdir.lasting(BadRuns).by_first(kinds, asked.run_ids)
    condition, parameters = asked.condition()
    rows = logdir.rows(
        f"SELECT run_id FROM tensor_health WHERE {bad_condition(kinds)} AND {condition} GROUP BY run_id "
        "ORDER BY min(wall_time_ns), run_id",
        parameters,
    )
    return [row[0] for row in rows]


@dataclass(frozen=True)
class _Process:
    """The facts about a run that show which program it belongs to. The attributes are columns of the table `run`."""

    run_id: str
    wall_time_ns: int
    end_wall_time_ns: int | None
    host_name: str | None
    working_directory: str | None
    command_line: str | None
    worker: str | None

    def is_program_of(self, other: _Process) -> bool:
        """Returns whether both processes are workers of one cluster, or whether one program may have started both.

        A forked child has the command line of its parent. A child that multiprocessing starts in another way has a
        command line that names the module multiprocessing.
        """
        if self.worker is not None and other.worker is not None and self.worker != other.worker:
            return True
        if not self.shares_place(other) or self.command_line is None or other.command_line is None:
            return False
        is_child = any("from multiprocessing." in line for line in (self.command_line, other.command_line))
        return is_child or self.command_line == other.command_line

    def shares_place(self, other: _Process) -> bool:
        """Returns whether both processes ran in the same directory of the same host.

        False if the host is not recorded.
        """
        host_and_directory = (self.host_name, self.working_directory)
        return self.host_name is not None and host_and_directory == (other.host_name, other.working_directory)


class _Processes:
    """The runs of a logdir, oldest first, and the newest of them."""

    def __init__(self, logdir: Engine) -> None:
        self._logdir = logdir
        rows = logdir.rows(
            "SELECT run_id, wall_time_ns, end_wall_time_ns, host_name, working_directory, command_line, worker FROM run"
        )
        self.oldest_first = sorted((_Process(*row) for row in rows), key=_order)

    @cached_property
    def newest(self) -> list[_Process]:
        """The newest run, and the runs of the same program that recorded at the same time."""
        if len(self.oldest_first) < 2:
            return self.oldest_first
        *others, newest = self.oldest_first
        end_of = self._ends(newest)
        together = [newest]
        while True:
            unmatched = []
            for process in reversed(others):
                if any(
                    process.wall_time_ns <= end_of[one.run_id]
                    and one.wall_time_ns <= end_of[process.run_id]
                    and process.is_program_of(one)
                    for one in together
                ):
                    together.append(process)
                else:
                    unmatched.append(process)
            if len(unmatched) == len(others):
                return sorted(together, key=_order)
            # A parent process that was found may have other children that ended before the newest run began.
            others = unmatched[::-1]

    def _ends(self, newest: _Process) -> dict[str, int]:
        """Returns the end time of each run.

        If a run did not end cleanly or is still running, its end time is the time of its last event.

        The last event is only read for runs that may belong to the program of the newest run. For other runs without an
        end, the end time is the start time.
        """
        end_of = {process.run_id: process.end_wall_time_ns or process.wall_time_ns for process in self.oldest_first}
        for process in self.oldest_first:
            may_belong = process.shares_place(newest) or None not in (process.worker, newest.worker)
            if process.end_wall_time_ns is None and may_belong:
                with contextlib.suppress(BrokenPartError):  # another answer reports the broken part
                    end_of[process.run_id] = self._last_event_ns(process.run_id) or process.wall_time_ns
        return end_of

    def _last_event_ns(self, run_id: str) -> int | None:
        last: int | None = self._logdir.of_run(run_id).rows(
            "SELECT max(wall_time_ns) FROM (SELECT run_id, wall_time_ns FROM tensor_health UNION ALL "
            "SELECT run_id, wall_time_ns FROM execution) AS e WHERE run_id = ?",
            [run_id],
        )[0][0]
        return last


def _order(process: _Process) -> tuple[int, str]:
    return process.wall_time_ns, process.run_id


def _read_processes(logdir: Engine) -> _Processes:
    return logdir.kept("processes", None, lambda: _Processes(logdir))
