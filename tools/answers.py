"""Stores the answers about logdirs that the query layer and the viewer's pages give, and compares two stores.

    python tools/answers.py freeze before LOGDIR…        # writes before/NAME.json for each logdir
    python tools/answers.py freeze after LOGDIR…         # after a change of the query layer
    python tools/answers.py compare before after # prints each answer that differs; exit code 1 if any does

The answers come from `first-nonfinite`, `why`, `why --forward`, `nonfinite`, `alerts`, `coverage`, `info` and each
page. A page that shows one tensor shows the first bad tensor. `--ignore FIELD` leaves a field out of a comparison, for
example a field that only one of the two versions has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from tfdbg_arrow import open_logdir
from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.query import Logdir, read_reasons
from tfdbg_arrow.query.answers import Answers
from tfdbg_arrow.safe_text import to_json
from tfdbg_arrow.viewer.pages import PAGES
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.site import Site

_MAX_BAD_ROWS = 200
_TIME_LIMIT_S = 600.0
_SHOWN = 6
"""Maximum number of differences that are printed for each logdir."""


def answers_of(path: Path) -> dict[str, Any]:
    """Returns the JSON of each answer about a logdir. If a question is refused, the answer is the error."""
    answers: dict[str, Any] = {}
    with open_logdir(path) as logdir:
        answers["first_nonfinite"] = _answered(logdir.first_nonfinite)
        first = answers["first_nonfinite"]
        answers |= {name: _answered(ask) for name, ask in _questions(logdir)}
        if isinstance(first, dict) and "event_index" in first:
            event, run = first["event_index"], first["run_id"]
            answers["why"] = _answered(lambda: logdir.provenance(event, run_id=run))
            answers["why --forward"] = _answered(lambda: logdir.spread(event, run_id=run))
            answers["reasons"] = _answered(lambda: read_reasons(logdir, event, run_id=run))
    answers |= _pages(path, first)
    return json.loads(json.dumps(answers).replace(str(path), "LOGDIR"))  # type: ignore[no-any-return]


def _questions(logdir: Logdir) -> Iterator[tuple[str, Callable[[], Any]]]:
    answers: Answers = logdir
    yield "nonfinite", lambda: answers.nonfinite(limit=_MAX_BAD_ROWS)
    yield "alerts", answers.alerts
    yield "coverage", answers.coverage
    yield "info", answers.info


def _pages(path: Path, first: Any) -> dict[str, Any]:
    reader = Reader(path, timeout_s=_TIME_LIMIT_S)
    try:
        site = Site(reader)
        of_first = {}
        if isinstance(first, dict) and "event_index" in first:
            of_first = {"run": first["run_id"], "event": str(first["event_index"])}
        return {f"page {kind.name}": json.loads(site.answer(f"/{kind.name}.json", of_first).content) for kind in PAGES}
    finally:
        reader.close()


def _answered(ask: Callable[[], Any]) -> Any:
    try:
        return to_json(ask())
    except TfdbgArrowError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def differences(old: Any, new: Any, *, ignored: Collection[str] = (), where: str = "") -> Iterator[str]:
    """Yields a line for each value that differs: its position, the old value and the new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new} - set(ignored)):
            yield from differences(
                old.get(key), new.get(key), ignored=ignored, where=f"{where}.{key}" if where else key
            )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, ignored=ignored, where=f"{where}[{index}]")
    elif old != new:
        yield f"{where}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else f"{text[:160]}…"


def freeze(store: Path, logdirs: list[Path]) -> None:
    """Writes the answers about each logdir into a file that is named after the logdir. Existing files are kept."""
    store.mkdir(parents=True, exist_ok=True)
    for logdir in logdirs:
        file = store / f"{logdir.name}.json"
        if not file.exists():
            file.write_text(json.dumps(answers_of(logdir.resolve()), sort_keys=True), encoding="utf-8")


def compare(before: Path, after: Path, ignored: Collection[str]) -> int:
    """Prints the differences of two stores, and returns the number of logdirs whose answers differ."""
    old_names, new_names = ({file.name for file in store.glob("*.json")} for store in (before, after))
    for name in sorted(old_names ^ new_names):
        print(f"{name}: only in {before if name in old_names else after}")
    num_different = 0
    for name in sorted(old_names & new_names):
        old, new = (json.loads((store / name).read_text(encoding="utf-8")) for store in (before, after))
        lines = list(differences(old, new, ignored=ignored))
        num_different += bool(lines)
        for line in lines[:_SHOWN]:
            print(f"{name.removesuffix('.json')}: {line}")
        if len(lines) > _SHOWN:
            print(f"{name.removesuffix('.json')}: and {len(lines) - _SHOWN} more")
    print(f"{num_different} of {len(old_names & new_names)} logdirs have answers that differ")
    return num_different + len(old_names ^ new_names)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    freezing = commands.add_parser("freeze", help="store the answers")
    freezing.add_argument("store", type=Path)
    freezing.add_argument("logdirs", type=Path, nargs="+")
    comparing = commands.add_parser("compare", help="compare two stores")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--ignore", action="append", default=[], metavar="FIELD", help="leave a field out")
    options = parser.parse_args()
    if options.command == "freeze":
        freeze(options.store, options.logdirs)
    else:
        sys.exit(1 if compare(options.before, options.after, options.ignore) else 0)


if __name__ == "__main__":
    main()
