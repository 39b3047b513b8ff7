"""Finding: one thing that doctor has to say of a logdir."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
        kind: Which, as `not_closed`; stable, for programs.
        severity: `error` (cannot be read), `warning` (something is missing) or `info` (as asked, or harmless).
        run_id: The run that it is about; None: the logdir.
        sentence: What is wrong.
        evidence: How that is known.
        advice: What to do.
    """

    kind: str
    severity: str
    run_id: str | None
    sentence: str
    evidence: str
    advice: str
