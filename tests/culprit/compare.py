"""Compares answers with the declarations of the corpus and prints the wrong answers as a table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.culprit.corpus import Program, programs
from tests.programs.running import start_python

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED_RIGHT = 0.95
LINE_RIGHT = 0.90
"""The smallest allowed share of bugs with the right op, and of bugs with the right line."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A program and the answer for this program.

    Attributes:
        program: The program.
        answer: The fields of record.Answer.
        is_named_right: For a bug, whether op type, forward op and effect are as declared. For a program without a bug,
            whether nothing is reported.
        is_line_right: For a bug, whether the line is as declared. For a program without a bug, the same as
            is_named_right.
    """

    program: Program
    answer: dict[str, Any]
    is_named_right: bool
    is_line_right: bool


def record(
    names: Iterable[str] = (),
    *,
    repeat: int = 1,
    graphs: str = "traced",
    health_backend: str = "auto",
    is_compiled: bool = False,
) -> Iterator[dict[str, Any]]:
    """Records programs in a separate process, and returns each answer as soon as it is available.

    Args:
        names: Programs or modules. An empty sequence means all programs.
        repeat: Number of times that each program is recorded.
        graphs: How functions are recorded, as in enable().
        health_backend: The backend that counts the elements of tensors, as in enable().
        is_compiled: Whether XLA compiles all functions of the programs.

    Returns:
        The answers, with the fields of record.Answer.
    """
    settings = ["--repeat", str(repeat), "--graphs", graphs, "--health-backend", health_backend]
    words = ["-m", "tests.culprit.record", *settings, *names, *(["--compiled"] if is_compiled else [])]
    return map(json.loads, printed_by(words))


def printed_by(words: list[str]) -> Iterator[str]:
    """Yields the lines that a Python process prints, as soon as they are available.

    Raises:
        CalledProcessError: The process failed.
    """
    with start_python(*words, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode or 0, words)


def judge(answers: Iterable[dict[str, Any]], *, graphs: str = "traced") -> Iterator[Verdict]:
    """Compares each answer with the declaration of its program. Programs that XLA refuses are skipped.

    `graphs` is the setting with which functions were recorded.
    """
    declared = {program.name: program for program in programs()}
    return (_verdict(declared[answer["name"]], answer, graphs) for answer in answers if not answer["is_refused"])


def _verdict(program: Program, answer: dict[str, Any], graphs: str) -> Verdict:
    if answer["error"] is not None:
        return Verdict(program=program, answer=answer, is_named_right=False, is_line_right=False)
    culprit = program.culprit
    if culprit is None:
        silent = not (answer["is_reported"] if program.has_bad_values else answer["is_found"])
        return Verdict(program=program, answer=answer, is_named_right=silent, is_line_right=silent)
    if answer["is_compiled"]:
        culprit = dataclasses.replace(culprit, effect=culprit.effect_in_xla)
    is_named_right = all(answer[field] == getattr(culprit, field) for field in ("op_type", "forward", "effect"))
    if culprit.executed is not None and (graphs == "executed" or culprit.is_removed):
        is_named_right |= (answer["op_type"], answer["forward"], answer["effect"]) == (
            *culprit.executed,
            culprit.effect,
        )
    is_named_right &= answer["is_reported"]
    is_line_right = (
        answer["is_reported"]
        and answer["path"] is not None
        and (Path(answer["path"]).resolve(), answer["lineno"]) == (program.path, culprit.lineno)
    )
    return Verdict(program=program, answer=answer, is_named_right=is_named_right, is_line_right=is_line_right)


def miss(verdict: Verdict) -> str | None:
    """Returns a line with the program, the expected and the actual answer, or None if the answer is right."""
    if verdict.is_named_right and verdict.is_line_right:
        return None
    return f"{verdict.program.name:60} {_expected(verdict.program):50} {_answered(verdict)}"


def are_good_enough(verdicts: list[Verdict]) -> bool:
    """Returns whether enough answers name the right bug and line, and no answer reports a program without a bug."""
    bugs = [verdict for verdict in verdicts if verdict.program.culprit is not None]
    return (
        all(verdict.is_named_right for verdict in verdicts if verdict.program.culprit is None)
        and sum(verdict.is_named_right for verdict in bugs) >= NAMED_RIGHT * len(bugs)
        and sum(verdict.is_line_right for verdict in bugs) >= LINE_RIGHT * len(bugs)
    )


def summary(verdicts: list[Verdict]) -> str:
    """Returns four counts: bugs, bugs named right, bugs with the right line, and false alarms."""
    bugs = [verdict for verdict in verdicts if verdict.program.culprit is not None]
    silent = [verdict for verdict in verdicts if verdict.program.culprit is None]
    named = sum(verdict.is_named_right for verdict in bugs)
    lines = sum(verdict.is_line_right for verdict in bugs)
    alarms = sum(not verdict.is_named_right for verdict in silent)
    return (
        f"{len(bugs)} bugs: {named} named right, {lines} with the right line; "
        f"{len(silent)} healthy or harmless: {alarms} reported"
    )


def _expected(program: Program) -> str:
    culprit = program.culprit
    if culprit is None:
        return "nothing" if program.has_bad_values else "nothing at all"
    of = f" of {culprit.forward}" if culprit.forward is not None else ""
    return f"{culprit.op_type}{of} -> {culprit.effect}, line {culprit.lineno}"


def _answered(verdict: Verdict) -> str:
    answer = verdict.answer
    if answer["error"] is not None:
        return f"ERROR {answer['error'][:200]}"
    if not answer["is_found"]:
        return "nothing"
    of = f" of {answer['forward']}" if answer["forward"] is not None else ""
    expected = "" if answer["is_reported"] else " (expected)"
    at = "no line" if answer["path"] is None else f"line {answer['lineno']} of {Path(answer['path']).name}"
    return f"{answer['op_type']}{of} ({answer['op_name']}) -> {answer['effect']}, {at}{expected}: {answer['code']}"


def main() -> None:
    """Records the programs that the command line names, and prints the wrong answers and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs or modules; default: all")
    parser.add_argument("--graphs", default="traced", help="how functions are recorded: traced or executed")
    parser.add_argument("--health-backend", default="auto", help="what counts the elements: native or tensorflow")
    parser.add_argument("--compiled", action="store_true", help="let XLA compile all functions, where it can")
    options = parser.parse_args()
    verdicts = []
    answers = record(
        options.names,
        graphs=options.graphs,
        health_backend=options.health_backend,
        is_compiled=options.compiled,
    )
    for verdict in judge(answers, graphs=options.graphs):
        verdicts.append(verdict)
        if line := miss(verdict):
            print(line, flush=True)
    print(summary(verdicts))


if __name__ == "__main__":
    main()
