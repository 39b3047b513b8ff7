"""What is asked of an input: the tables, some questions, some commands, and a recovery or an import where it is due."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from typer.testing import CliRunner

from tfdbg_arrow import Logdir, open_logdir, recover
from tfdbg_arrow.cli.app import app
from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.query import doctor
from tfdbg_arrow.query.logdir.opening import list_parts
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.logdir_layout import manifest_path, spool_paths
from tfdbg_arrow.schema.manifest import ManifestEntry, SpoolProgress, read_live_parts, run_ids, spool_progress
from tfdbg_arrow.spool.recovery import SealedRows, recovered
from tfdbg_arrow.writer.debugger_v2.importer import import_dump

from ..recovery.driver import RUN_ID
from .inputs import Input

_SHARE_ASKED_ALL = 0.05
_QUESTIONS_AN_INPUT = 4
_RUNNER = CliRunner()

Question = Callable[[Logdir], object]


def _of_first(ask: Callable[[Logdir, int, str], object]) -> Question:
    def question(logdir: Logdir) -> object:
        found = logdir.nonfinite(limit=5)
        return [ask(logdir, each.event_index, each.run_id) for each in found[:2]]

    return question


QUESTIONS: dict[str, Question] = {
    "first_nonfinite": lambda logdir: logdir.first_nonfinite(),
    "nonfinite": lambda logdir: logdir.nonfinite(limit=20),
    "provenance": _of_first(lambda logdir, event, run: logdir.provenance(event, run_id=run, limit=50)),
    "spread": _of_first(lambda logdir, event, run: logdir.spread(event, run_id=run, limit=50)),
    "info": lambda logdir: logdir.info(),
    "coverage": lambda logdir: logdir.coverage(),
    "history": lambda logdir: logdir.history(".", limit=20, num_values=4),
    "alerts": lambda logdir: logdir.alerts(limit=5),
    "doctor": lambda logdir: doctor(str(logdir.path)),
    "diff": lambda logdir: logdir.diff(),
}
_COSTLY = frozenset(("alerts", "diff", "doctor"))
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("first-nonfinite", "{}"),
    ("why", "{}", "Neg"),
    ("show", "{}", "."),
    ("alerts", "{}", "--json"),
    ("info", "{}"),
    ("coverage", "{}", "--json"),
    ("doctor", "{}"),
    ("sql", "{}", "SELECT * FROM stack LIMIT 5"),
    ("recover", "{}"),
)


def failures(given: Input, directory: Path) -> Iterator[str]:
    """Asks all that is asked of an input; yields what came out other than an answer or an error of ours.

    Of most inputs only what reads the spoiled file itself is asked, and one question; of one in twenty all.
    """
    random = Random(-1 - given.number)
    is_asked_all = random.random() < _SHARE_ASKED_ALL
    logdir = given.path
    if given.kind == "dump":
        logdir = directory / "imported"
        yield from _asked("import", lambda: import_dump(given.path, logdir))
    elif given.kind == "manifest":
        yield from _asked("list_parts", lambda: list_parts(logdir))
        for run_id in run_ids(logdir):
            yield from _asked("spool_progress", lambda run_id=run_id: _spool_progress(logdir, run_id))
    elif given.kind == "spool":
        yield from _asked("recovered", lambda: _recovered(logdir))
    if is_asked_all or given.kind in ("parts", "rows"):
        yield from _questioned(given, logdir, random, is_asked_all=is_asked_all)
    if is_asked_all:
        yield from _commanded([word.format(logdir) for word in random.choice(COMMANDS)])
        if given.kind == "spool":
            yield from _asked("recover", lambda: recover(logdir))


def _questioned(given: Input, logdir: Path, random: Random, *, is_asked_all: bool) -> Iterator[str]:
    tables = [table.name for table in TABLES if is_asked_all or table.name in given.what]
    number = _QUESTIONS_AN_INPUT if is_asked_all else 1
    try:
        with open_logdir(logdir) as opened:
            opened.sql("SET threads = 1")
            for table in tables:
                yield from _asked(table, lambda table=table: opened.rows(f"SELECT * FROM {table}"))
            names = sorted(QUESTIONS) if is_asked_all else sorted(QUESTIONS.keys() - _COSTLY)
            for name in random.sample(names, number):
                yield from _asked(name, lambda name=name: QUESTIONS[name](opened))
    except TfdbgArrowError:
        pass
    except BaseException:
        yield f"open: {traceback.format_exc()}"


def _spool_progress(logdir: Path, run_id: str) -> object:
    path = logdir / manifest_path(run_id)
    return spool_progress(path.read_text("utf-8", errors="replace"), run_id=run_id, path=path)


def _recovered(logdir: Path) -> None:
    progress = _spool_progress(logdir, RUN_ID)
    assert isinstance(progress, SpoolProgress)
    parts: dict[str, list[ManifestEntry]] = {}
    for entry in read_live_parts(logdir, run_id=RUN_ID):
        parts.setdefault(entry.table, []).append(entry)
    paths = spool_paths(logdir, run_id=RUN_ID)
    found = recovered(paths, run_id=RUN_ID, progress=progress, sealed=SealedRows(logdir, parts))
    for pieces in found.tables.values():
        for piece in pieces:
            piece.validate()


def _asked(name: str, ask: Callable[[], object]) -> Iterator[str]:
    try:
        ask()
    except TfdbgArrowError as error:
        if not str(error).strip():
            yield f"{name}: {type(error).__name__} without a sentence"
    except BaseException:  # Polars' PanicException is one, too
        yield f"{name}: {traceback.format_exc()}"


def _commanded(arguments: list[str]) -> Iterator[str]:
    result: Any = _RUNNER.invoke(app, arguments)
    if result.exit_code not in (0, 1, 2) or not isinstance(result.exception, (SystemExit, type(None))):
        text = "".join(traceback.format_exception(result.exception)) if result.exception else result.output
        yield f"{' '.join(arguments)}: exit code {result.exit_code}: {text}"
    elif result.exit_code == 2 and result.stderr.count("\n") != 1:
        yield f"{' '.join(arguments)}: {result.stderr}"
