"""Tests an input: reads tables, asks questions, runs commands, and recovers logdirs or imports dumps."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner

from tfdbg_arrow import Logdir, open_logdir, recover, verify
from tfdbg_arrow.cli.app import app
from tfdbg_arrow.debugger_v2.importer import import_dump
from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.query import doctor
from tfdbg_arrow.query.integrity.parts import what_is_wrong
from tfdbg_arrow.query.logdir.local_parts import list_parts
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.spool.recovery import SealedRows, recovered
from tfdbg_arrow.storage.layout import manifest_path, spool_paths
from tfdbg_arrow.storage.manifest import ManifestEntry, SpoolProgress, read_live_parts, run_ids, spool_progress

from ..recovery.checking import tree
from ..recovery.driver import RUN_ID
from .cheaper import SharedDatabase, no_parts_written
from .graph_defs import graph_editor
from .inputs import Input

_SHARE_ASKED_ALL = 0.01
_SHARE_IMPORTED_TO_PARTS = 0.06
_SHARE_QUESTIONED = {"parts": 0.15, "rows": 0.2, "manifest": 0.05, "spool": 0.05, "dump": 0.05}
"""Share of the inputs of each kind that get a question, in addition to reading the mutated file itself."""
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
    "verify": lambda logdir: verify(str(logdir.path)),
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


def is_asked_all(number: int) -> bool:
    """Returns whether an input gets all tests. All tests together may change the files of the input."""
    return Random(f"all {number}").random() < _SHARE_ASKED_ALL


def failures(given: Input, directory: Path, database: SharedDatabase) -> Iterator[str]:
    """Tests an input, and yields each result that is neither an answer nor an error of tfdbg_arrow.

    For a graph, the record ops are added. For most other inputs, only the mutated file itself is read. Some inputs also
    get one question. One input in a hundred gets all tests, in its own database.
    """
    if given.kind == "graph":
        if (editor := graph_editor(directory)) is not None:
            yield from _asked("with_record_ops", lambda: editor.check(given.spoiled[0].read_bytes()))
        return
    random = Random(-1 - given.number)
    if is_asked_all(given.number):
        yield from _asked_all(given, directory, random)
        return
    logdir = given.path
    is_questioned = random.random() < _SHARE_QUESTIONED[given.kind]
    if given.kind == "dump":
        is_written = is_questioned or random.random() < _SHARE_IMPORTED_TO_PARTS
        logdir = directory / "imported"
        with contextlib.nullcontext() if is_written else no_parts_written():
            yield from _asked("import", lambda: import_dump(given.path, logdir))
    else:
        yield from _read_spoiled(given)
    if is_questioned or given.kind in ("parts", "rows"):
        tables = [path.parent.parent.name for path in given.spoiled[:1] if path.suffix == ".parquet"]
        questions = [random.choice(sorted(QUESTIONS.keys() - _COSTLY))] if is_questioned else []
        with database.serving():
            yield from _questioned(logdir, tables, questions)


def _asked_all(given: Input, directory: Path, random: Random) -> Iterator[str]:
    logdir = given.path
    if given.kind == "dump":
        logdir = directory / "imported"
        yield from _asked("import", lambda: import_dump(given.path, logdir))
    else:
        yield from _read_spoiled(given)
    before = tree(logdir)
    questions = random.sample(sorted(QUESTIONS), _QUESTIONS_AN_INPUT)
    yield from _questioned(logdir, [table.name for table in TABLES], questions)
    if tree(logdir) != before:
        yield "reading: the logdir was changed by its readers"
    yield from _commanded([word.format(logdir) for word in random.choice(COMMANDS)])
    if given.kind == "spool":
        yield from _asked("recover", lambda: recover(logdir))


def _read_spoiled(given: Input) -> Iterator[str]:
    """Reads the mutated file itself."""
    if given.kind == "manifest":
        yield from _asked("list_parts", lambda: _listed(given))
        for run_id in run_ids(given.path):
            yield from _asked("spool_progress", lambda run_id=run_id: _spool_progress(given.path, run_id))
    elif given.kind == "spool":
        yield from _asked("recovered", lambda: _recovered(given.path))
    elif given.kind == "parts":
        yield from _asked("what_is_wrong", lambda: _changes_found(given))


def _questioned(logdir: Path, tables: Iterable[str], questions: Iterable[str]) -> Iterator[str]:
    try:
        with open_logdir(logdir) as opened:
            opened.sql("SET threads = 1")
            for table in tables:
                yield from _asked(table, lambda table=table: opened.rows(f"SELECT * FROM {table}"))
            for name in questions:
                yield from _asked(name, lambda name=name: QUESTIONS[name](opened))
    except TfdbgArrowError:
        pass
    except BaseException:
        yield f"open: {traceback.format_exc()}"


def _listed(given: Input) -> None:
    """Lists the parts, and checks that `verify` reports lost or new parts unless the checksums are valid."""
    parts = list_parts(given.path)
    assert given.whole is not None
    expected = {
        table: tuple(path.replace(str(given.whole), str(given.path)) for path in paths)
        for table, paths in list_parts(given.whole).items()
    }
    if parts != expected and given.is_by_fault:
        assert verify(given.path).deviations, "other parts are listed, and verify reports nothing"


def _changes_found(given: Input) -> None:
    entries = {
        entry.path: entry for run_id in run_ids(given.path) for entry in read_live_parts(given.path, run_id=run_id)
    }
    assert given.whole is not None
    for path in given.spoiled:
        name = path.relative_to(given.path)
        if path.read_bytes() != (given.whole / name).read_bytes():
            assert what_is_wrong(given.path, entries[str(name)]), f"verify reports no damage in the mutated {name}"


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
            yield f"{name}: {type(error).__name__} without a message"
    except BaseException:  # includes PanicException of Polars
        yield f"{name}: {traceback.format_exc()}"


def _commanded(arguments: list[str]) -> Iterator[str]:
    result: Any = _RUNNER.invoke(app, arguments)
    if result.exit_code not in (0, 1, 2) or not isinstance(result.exception, (SystemExit, type(None))):
        text = "".join(traceback.format_exception(result.exception)) if result.exception else result.output
        yield f"{' '.join(arguments)}: exit code {result.exit_code}: {text}"
    elif result.exit_code == 2 and result.stderr.count("\n") != 1:
        yield f"{' '.join(arguments)}: {result.stderr}"
