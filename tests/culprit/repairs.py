"""Applies the repairs of answers to their programs, and counts the programs that become finite.

`python -m tests.culprit.repairs` records all programs, applies the repairs and runs the programs again. The command
prints the programs that do not become finite, and a table with a row for each repair. With names of programs or
modules, the command checks only these programs.

Most repairs are applied mechanically, to the expression at the line and the columns of the answer. The other repairs
were written by hand, for one program each: `patches.py` has these changes. Each change belongs to one repair, and is
not applied if the answer suggests another repair.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tests.culprit.compare import printed_by, record
from tests.culprit.corpus import Program
from tests.culprit.patches import PATCHES, Patch
from tfdbg_arrow.reproduction.fixes import Fix, edited_line, epsilon_of

Outcome = Literal["finite", "not finite", "not applied"]


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """The outcome of applying the repair of an answer to its program.

    Attributes:
        name: Name of the program.
        repair: The repair of the answer. None if the answer has no repair.
        is_by_hand: Whether a patch applied the repair.
        outcome: `finite` if the repaired program runs to its end without a bad value that does harm; `not applied` if
            the repair cannot be applied.
        reason: The reason why the program is not finite. None if it is finite.
    """

    name: str
    repair: str | None
    is_by_hand: bool
    outcome: Outcome
    reason: str | None = None


KNOWN_EXCEPTIONS = {
    "beside.metric_that_was_bad_from_the_start": "The program also has a metric that is always 0 / 0.",
    "functions.one_of_two_divisions_in_a_statement": "The program divides by the repaired quotient, which is 0 now.",
    "precision.sum_of_two_large_numbers": "The program also divides by a difference that is always 0.",
}
"""The programs that do not become finite, and the reasons. If the reason is a second bug, the answer for the repaired
program names this bug."""

Edit = Callable[[str, Program, Mapping[str, Any]], str | None]
"""Returns the text of a program's file with a repair applied, or None if the repair cannot be applied."""


def at_op(codes: Mapping[str, str]) -> Edit:
    """Returns an edit that replaces the expression at the line and the columns of the answer.

    Args:
        codes: The new expression for each type of op. In this expression, {x} and {y} are the operands in the program,
            {eps} is a small number of the dtype, and {bound} is the first number in the repair.
    """

    def edit(text: str, program: Program, given: Mapping[str, Any]) -> str | None:
        op_type = given["forward"] or given["op_type"] or ""
        if op_type not in codes or given["lineno"] is None or given["colno"] is None or given["end_colno"] is None:
            return None
        lines = text.splitlines(keepends=True)
        line = lines[given["lineno"] - 1]
        start, end = given["colno"] - 1, given["end_colno"] - 1
        bound = re.search(r"-?\d+\.\d+|\d+", given["repair"] or "")
        more = {"eps": epsilon_of(given["dtype"]), "bound": "" if bound is None else bound[0]}
        new = edited_line(line[start:end], Fix("repair", codes[op_type]), op_type, ("x", "y"), more)
        if new is None:
            return None
        lines[given["lineno"] - 1] = line[:start] + new + line[end:]
        return "".join(lines)

    return edit


def in_program(pattern: str, replacement: str) -> Edit:
    """Returns an edit that replaces each match of a regular expression in the program's function."""

    def edit(text: str, program: Program, given: Mapping[str, Any]) -> str | None:
        start, end = _span(text, program)
        new, count = re.subn(pattern, replacement, text[start:end])
        return text[:start] + new + text[end:] if count else None

    return edit


_CLIP = at_op({
    "Exp": "tf.exp(tf.minimum({x}, {bound}))",
    "Expm1": "tf.math.expm1(tf.minimum({x}, {bound}))",
})  # fmt: skip
_NORM = in_program(r"tf\.norm\((\w+)((?:, \w+=[-\w]+)*)\)", r"tf.sqrt(tf.reduce_sum(tf.square(\1)\2) + 1e-12)")
_DEVIATION = in_program(
    r"tf\.math\.reduce_std\((\w+)((?:, \w+=[-\w]+)*)\)", r"tf.sqrt(tf.math.reduce_variance(\1\2) + 1e-7)"
)
_UNIT = "tf.clip_by_value({x}, -{bound}, {bound})"
EDITS: tuple[tuple[str, Edit], ...] = (
    ("Use tf.math.divide_no_nan", at_op({
        "RealDiv": "tf.math.divide_no_nan({x}, {y})",
        "Reciprocal": "tf.math.divide_no_nan(1.0, {x})",
    })),
    ("The counter of steps begins at 0", at_op({
        "RealDiv": "{x} / ({y} + 1.0)",
        "Rsqrt": "tf.math.rsqrt({x} + 1.0)",
    })),
    ("Keep the argument above 0 with an epsilon", at_op({"Log": "tf.math.log({x} + {eps})"})),
    ("Keep the argument above 0, for example with tf.maximum(x", at_op({
        "Rsqrt": "tf.math.rsqrt(tf.maximum({x}, 1e-7))",
        "Sqrt": "tf.sqrt(tf.maximum({x}, 1e-7))",
    })),
    ("Keep the argument above 0", at_op({
        "Log": "tf.math.log(tf.maximum({x}, {eps}))",
        "Rsqrt": "tf.math.rsqrt(tf.maximum({x}, {eps}))",
        "Lgamma": "tf.math.lgamma(tf.maximum({x}, {eps}))",
    })),
    ("Apply tf.nn.softplus to the argument", at_op({"Log": "tf.math.log(tf.nn.softplus({x}))"})),
    ("Keep the argument above 1,", at_op({"Acosh": "tf.acosh(tf.maximum({x}, 1.001))"})),
    ("Keep the argument above -1", at_op({"Log1p": "tf.math.log1p(tf.maximum({x}, {eps} - 1.0))"})),
    ("Before the root, add an epsilon", at_op({
        "Sqrt": "tf.sqrt({x} + {eps})",
        "Rsqrt": "tf.math.rsqrt({x} + {eps})",
    })),
    ("The norm is a root", _NORM),
    ("The standard deviation is a root", _DEVIATION),
    ("The divisor is computed with a root", _NORM),
    ("The divisor is computed with a root", _DEVIATION),
    ("Keep the divisor", at_op({"RealDiv": "{x} / tf.maximum({y}, 1e-7)"})),
    ("Clip the argument from above", _CLIP),
    ("Scale the inputs to magnitudes near one", _CLIP),
    ("Clip the argument with tf.clip_by_value, for example to -", at_op({
        "Acos": f"tf.acos({_UNIT})",
        "Asin": f"tf.asin({_UNIT})",
        "Atanh": f"tf.atanh({_UNIT})",
        "Erfinv": f"tf.math.erfinv({_UNIT})",
    })),
    ("Add jitter to the diagonal", at_op({
        "Cholesky": "tf.linalg.cholesky({x} + 1e-4 * tf.eye(len({x})))",
    })),
    ("Keep the base above 0", at_op({"Pow": "tf.pow(tf.maximum({x}, 1e-7), {y})"})),
    ("Keep the two arguments from both being 0", at_op({"Atan2": "tf.atan2({x}, {y} + {eps})"})),
    ("Take tf.sqrt(tf.reduce_sum(tf.square(x)) + epsilon)", at_op({
        "EuclideanNorm": "tf.sqrt(tf.reduce_sum(tf.square({x})) + {eps})",
    })),
    ("Check for an empty batch or mask", at_op({
        "Mean": "tf.math.divide_no_nan(tf.reduce_sum({x}), tf.cast(tf.size({x}), tf.float32))",
    })),
    ("Use tf.math.xlogy(p, p)", in_program(r"(\w+) \* tf\.math\.log\(\1\)", r"tf.math.xlogy(\1, \1)")),
    ("Use tf.nn.softplus in place of tf.nn.relu", in_program(r"\brelu\b", "softplus")),
    ("Use a large finite number in place of the infinite", in_program(r'float\("inf"\)', "1e30")),
    ("Keep the base away from 0", at_op({"Pow": "tf.pow({x} + {eps}, {y})"})),
    ("Add an epsilon to the base", at_op({"Pow": "tf.pow({x} + {eps}, {y})"})),
    ("Use a number that float16 can hold", in_program(r"-1e9", "-1e4")),
    ("Mask with a large negative number", in_program(r'float\("-inf"\)|-np\.inf', "-1e9")),
)  # fmt: skip
"""The edits for repairs that begin with the given text. The first edit that can be applied is used."""


def _patch_of(program: Program, given: Mapping[str, Any]) -> Patch | None:
    """Returns the patch of a program for the repair that the answer names, or None if there is no such patch."""
    patch = PATCHES.get(program.name)
    return patch if patch is not None and (given["repair"] or "").startswith(patch.repair) else None


def patched_text(text: str, program: Program, patch: Patch) -> str:
    """Returns the text of a program's file with a patch applied.

    Raises:
        ValueError: A text that the patch changes does not occur exactly once.
    """
    for old, new in patch.changes:
        start, end = _span(text, program)
        if old not in text[start:end]:
            start, end = 0, len(text)
        if (count := text.count(old, start, end)) != 1:
            raise ValueError(f"{program.name} has {old!r} {count} times, and not once; correct the patch.")
        text = text[:start] + text[start:end].replace(old, new) + text[end:]
    return text


def _edited_text(text: str, program: Program, given: Mapping[str, Any]) -> str | None:
    """Returns the text of a program's file with the answer's repair applied, or None if no edit can apply it."""
    repair = given["repair"] or ""
    texts = (edit(text, program, given) for beginning, edit in EDITS if repair.startswith(beginning))
    return next((new for new in texts if new is not None), None)


def repaired_text(program: Program, given: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Returns the text of a program's file with the repair of its answer applied, and whether a patch applied it.

    The text is None if the repair cannot be applied. `given` has the fields of record.Answer.
    """
    text = program.path.read_text()
    patch = _patch_of(program, given)
    if patch is not None:
        return patched_text(text, program, patch), True
    return _edited_text(text, program, given), False


def _span(text: str, program: Program) -> tuple[int, int]:
    """Returns the position of a program's function in the text of its file, as the arguments of a slice."""
    name = program.name.rpartition(".")[2]
    (node,) = (each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef) and each.name == name)
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1]))
    return start, start + sum(map(len, lines[node.lineno - 1 : node.end_lineno]))


def summary(outcomes: Iterable[Repaired]) -> str:
    """Returns a table of the outcomes by repair, with the most frequent repair first, and the sums."""
    by_repair: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for repaired in outcomes:
        counts = by_repair[repaired.repair or "(no repair)"]
        counts.update([repaired.outcome, *(["by hand"] if repaired.is_by_hand else [])])
    rows = sorted(by_repair.items(), key=lambda item: -_num_programs(item[1]))
    total = sum(by_repair.values(), collections.Counter[str]())
    lines = ["programs  by hand   finite      not  no edit  repair"]
    for text, counts in [*rows, ("all", total)]:
        cells = (_num_programs(counts), counts["by hand"], *(counts[outcome] for outcome in get_args(Outcome)))
        lines.append(" ".join(f"{cell:8}" for cell in cells) + f"  {text[:100]}")
    return "\n".join([*lines, f"{total['finite'] / max(_num_programs(total), 1):.1%} of the programs become finite"])


def _num_programs(counts: collections.Counter[str]) -> int:
    return sum(counts[outcome] for outcome in get_args(Outcome))


def repaired(answers: Iterable[Mapping[str, Any]]) -> Iterator[Repaired]:
    """Applies the repair of each answer to its program in a separate process.

    Args:
        answers: The answers for programs, with the fields of record.Answer. Programs without a bug are left out.

    Yields:
        The outcome of each program with a bug, as soon as the outcome is known.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "answers"
        path.write_text("\n".join(map(json.dumps, answers)))
        for line in printed_by(["-m", "tests.culprit.rerun", str(path)]):
            yield Repaired(**json.loads(line))


def main() -> None:
    """Prints the programs that do not become finite, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs or modules; default: all")
    options = parser.parse_args()
    outcomes = []
    for outcome in repaired(list(record(options.names, graphs="executed"))):
        outcomes.append(outcome)
        if outcome.outcome != "finite":
            print(f"{outcome.name}: {outcome.outcome}. {outcome.repair} {outcome.reason or ''}", flush=True)
    print(summary(outcomes))


if __name__ == "__main__":
    main()
