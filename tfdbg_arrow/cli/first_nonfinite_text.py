"""Prints a bad tensor in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console

from tfdbg_arrow.cli.output import console, printable_line, styled
from tfdbg_arrow.cli.why_text import reason_lines
from tfdbg_arrow.query import Frame, NonFinite, Reasons, SourceLine
from tfdbg_arrow.query.wording import (
    call_lines,
    facts_text,
    graph_text,
    headline_text,
    input_health_text,
    label_facts,
    producer_text,
)


def print_nonfinite(found: NonFinite, lines: Sequence[SourceLine], *, reasons: Reasons, stderr: bool = False) -> None:
    """Prints a bad tensor: the op, the reason, its effect, its inputs, its stack, its callers and its line of code.

    Args:
        found: The tensor.
        lines: The source lines around the line of its op.
        reasons: Why it went bad.
        stderr: Whether to print on stderr instead of stdout.
    """
    out = console(stderr=stderr)
    if found.is_expected:
        out.print(styled("None of the bad values did harm. The first of them:"))
    kinds, _, where = headline_text(found).partition(" in ")
    out.print(styled((kinds, "bold red"), " in ", (where, "bold")))
    _print_reasons(reasons, out, is_expected=found.is_expected)
    facts = [
        ("graph", graph_text(found)),
        *label_facts(found),
        ("tensor", facts_text(found)),
        ("device", found.device_name),
        ("worker", found.worker),
        ("event", f"{found.event_index}, {_time_text(found.wall_time_ns)}, run {found.run_id}"),
        ("origin", _origin_text(found)),
        *(("but", f"the recording is incomplete: {text}") for text in found.left_out),
    ]
    for name, value in facts:
        if value is not None:
            out.print(styled((f"  {name:<8}", "dim"), value))
    if found.inputs:
        out.print()
        out.print(styled(("inputs", "bold")))
        for input_ in found.inputs:
            out.print(styled((f"  {input_.index:<3}", "dim"), producer_text(input_)))
            out.print(styled("     ", (input_health_text(input_), "dim" if input_.health is None else "")))
    _print_stack(found.stack, out)
    if found.called_from:
        out.print()
        out.print(styled(("called from", "bold"), ", innermost first"))
        for call in call_lines(found):
            out.print(styled(f"  {printable_line(call)}"))
    if found.source is not None and lines:
        out.print()
        out.print(styled(("source ", "bold"), f"{found.source.file_path}:{found.source.lineno}"))
        width = len(str(lines[-1].lineno))
        for line in lines:
            is_it = line.lineno == found.source.lineno
            text = f"{'>' if is_it else ' '} {line.lineno:>{width}} | {printable_line(line.text)}"
            out.print(styled((text.rstrip(), "bold" if is_it else "")))


def _print_reasons(reasons: Reasons, out: Console, *, is_expected: bool) -> None:
    """Prints why a value is bad, and how to fix it unless the value is expected."""
    why = reasons.explanation
    sentence, repair = (None, None) if why is None else (why.sentence, why.repair)
    repair, growth = (None, None) if is_expected else (repair, reasons.growth)
    for line in reason_lines(why=sentence, repair=repair, growth=growth):
        out.print(styled(line))


def _origin_text(found: NonFinite) -> str:
    if found.is_origin:
        return "yes: this op created the value; its inputs do not contain it"
    return "not proven: an input was not recorded, or contains the value too"


def _time_text(wall_time_ns: int) -> str:
    time = datetime.fromtimestamp(wall_time_ns // 1_000_000_000, tz=UTC)
    return f"{time:%Y-%m-%d %H:%M:%S}.{wall_time_ns % 1_000_000_000 // 1000:06d} UTC"


def _print_stack(stack: Sequence[Frame], out: Console) -> None:
    if not stack:
        return
    out.print()
    out.print(styled(("stack", "bold"), ", innermost first"))
    for frame in stack:
        if frame.is_user:
            out.print(styled(f"  {frame.file_path}:{frame.lineno} in {frame.func}"))
            if frame.code:
                out.print(styled((f"      {printable_line(frame.code)}", "bold")))
    folded = {
        owner: sum(frame.owner == owner for frame in stack) for owner in sorted({f.owner for f in stack} - {"user"})
    }
    if folded:
        counts = " and ".join(f"{number} {owner}" for owner, number in folded.items())
        out.print(styled((f"  and {counts} frame{'s' if sum(folded.values()) > 1 else ''}", "dim")))
