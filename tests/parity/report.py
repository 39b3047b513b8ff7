"""Prints the results of the comparison as tables: `PYTHONPATH=tests python -m parity.report [MODE ...]`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .differences import EXPLANATIONS, MODES
from .run import Outcome, run


def text(outcomes: Sequence[Outcome]) -> str:
    """Returns the report for some modes, with one column for each mode."""
    modes = [outcome.comparison.mode for outcome in outcomes]
    parts = [
        "Facts of Debugger V2 that tfdbg_arrow has with equal values",
        _table("kind", modes, [outcome.comparison.equal for outcome in outcomes]),
        "Facts that only tfdbg_arrow has",
        _table("kind", modes, [outcome.comparison.only_ours for outcome in outcomes]),
        "Explained differences",
        _table("explanation", modes, [outcome.explained for outcome in outcomes], order=_explanations()),
        "Explanations",
        *(f"  {entry.name}: {entry.what}. {entry.why}" for entry in EXPLANATIONS),
    ]
    for outcome in outcomes:
        if outcome.unexplained:
            parts += ["", f"Unexplained differences in {outcome.comparison.mode}"]
            parts += [f"  {difference}" for difference in outcome.unexplained]
        if outcome.unused:
            parts += [
                "",
                f"Explanations that match nothing in {outcome.comparison.mode}: {', '.join(outcome.unused)}",
            ]
    return "\n".join(parts)


def _explanations() -> list[str]:
    return [entry.name for entry in EXPLANATIONS]


def _table(
    head: str, modes: Sequence[str], counts: Sequence[Mapping[str, int]], *, order: Iterable[str] | None = None
) -> str:
    names = list(order) if order is not None else sorted(set().union(*counts))
    width = max(len(name) for name in [head, *names])
    lines = [f"  {head:<{width}}" + "".join(f"{mode:>16}" for mode in modes)]
    lines += [f"  {name:<{width}}" + "".join(f"{count.get(name, 0):>16,}" for count in counts) for name in names]
    return "\n".join([*lines, ""])


def main(modes: Sequence[str]) -> None:
    outcomes = []
    for mode in modes or MODES:
        with tempfile.TemporaryDirectory() as directory:
            outcomes.append(run(mode, Path(directory) / mode))
    print(text(outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
