"""Finding: one result of doctor about a logdir."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem, or one fact worth knowing.

    Attributes:
        kind: A stable name for programs, such as `not_closed`.
        severity: `error` (cannot be read), `warning` (something is missing) or `info` (as requested, or harmless).
        run_id: The run that it is about; None for the whole logdir.
        sentence: What is wrong.
        evidence: How doctor knows.
        advice: What to do.
    """

    kind: str
    severity: str
    run_id: str | None
    sentence: str
    evidence: str
    advice: str
