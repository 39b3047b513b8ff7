"""The rows of capture_stat: what a recorder did not record, or not as requested, and how these rows read as text.

This is the only place that defines the wording. Answers, `coverage`, `info` and `doctor` all use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tfdbg_arrow.query.engine import Engine


@dataclass(frozen=True, kw_only=True)
class StatKind:
    """The meaning of a `stat`.

    Attributes:
        stat: The value of the column.
        words: What happened to the subject, such as `was dropped`.
        is_loss: Whether something that could be bad may not have been examined.
        is_gap: Whether the missing part ran between recorded parts, so that it may contain an earlier bad value. Every
            answer mentions such rows.
        is_asked: Whether the user requested it, as far as the kind shows.
        advice: What to do.
    """

    stat: str
    words: str
    is_loss: bool
    is_gap: bool = False
    is_asked: bool = False
    advice: str


STAT_KINDS: Mapping[str, StatKind] = {
    kind.stat: kind
    for kind in (
        StatKind(
            stat="dropped",
            words="was dropped",
            is_loss=True,
            is_gap=True,
            advice="Record less by op_regex, tensor_dtypes or steps, or write to a faster disk.",
        ),
        StatKind(
            stat="disabled",
            words="was left out as requested",
            is_loss=True,
            is_gap=True,
            is_asked=True,
            advice="Record without that setting to see what was left out.",
        ),
        StatKind(
            stat="unobservable",
            words="could not be observed",
            is_loss=True,
            advice="Inspect what runs there by other means.",
        ),
        StatKind(
            stat="failed",
            words="was not recorded in full because of an error",
            is_loss=True,
            advice="Report this reason to the developers of tfdbg_arrow.",
        ),
        StatKind(
            stat="changed",
            words="ran differently than without recording",
            is_loss=False,
            is_asked=True,
            advice="No action is needed, unless the change is what you are looking for.",
        ),
        StatKind(
            stat="masked",
            words="was bad and did not stop the program",
            is_loss=False,
            is_asked=True,
            advice="No action is needed, unless that value should have stopped it: see docs/live_stop.md.",
        ),
        StatKind(
            stat="recovered",
            words="were recovered",
            is_loss=False,
            is_asked=True,
            advice="No action is needed: what the program recorded before it died is available.",
        ),
    )
}
"""The kinds by the value of `stat`."""

_OTHER = StatKind(
    stat="",
    words="was noted",
    is_loss=True,
    advice="Install the latest tfdbg_arrow, which may know the meaning.",
)


@dataclass(frozen=True)
class Cue:
    """Additional meaning of a row that follows from its reason.

    Attributes:
        words: A part of the reason.
        advice: What to do.
        is_asked: Whether the user requested it.
    """

    words: str
    advice: str
    is_asked: bool = False


CUES: tuple[Cue, ...] = (
    Cue("The spool had no room", "Raise max_memory_bytes, or record less by op_regex, tensor_dtypes or steps."),
    Cue(
        "The circular buffer kept only the last ones",
        "Record with a larger circular_buffer_size, or with 0 to keep all events.",
        is_asked=True,
    ),
    Cue(
        "The black box wrote only",
        "Record without dump_on to keep all events, or with a larger circular_buffer_size.",
        is_asked=True,
    ),
    Cue("the middle of the run", "Record with a larger max_bytes, or narrow the recording down.", is_asked=True),
    Cue("outside of the schedule", "Record with different steps to see these.", is_asked=True),
    Cue("The logdir's store could not be reached", "Check the store, and raise max_local_bytes so that more can wait."),
    Cue("parts wait in", "Upload the waiting parts with: tfdbg-arrow upload --remove DIRECTORY URL."),
    Cue("Parts could not be written", "Free space on the disk of the logdir, and record again."),
    Cue(
        "was traced before recording began",
        "Call enable() before a concrete function is taken, or call the tf.function itself.",
    ),
    Cue("is compiled by XLA, as xla=", "Record with xla='inside', or with xla='observe' without XLA.", is_asked=True),
    Cue("which refuses the summaries", "Record with xla='observe', which runs such functions without XLA."),
    Cue("since XLA compiles it", "Record with xla='observe', which runs such functions without XLA."),
    Cue(
        "runs without XLA while recording",
        "Record with xla='inside' if it must stay compiled.",
        is_asked=True,
    ),
    Cue("on devices of other processes", "Record in those processes too: each writes a run of its own."),
    Cue("runs in another process", "Record in that process too: it writes a run of its own."),
    Cue(
        "a fork of this process records nothing",
        "Call enable() in the child, or start it with the spawn method. It then writes a run of its own.",
    ),
)
"""The first cue whose words are contained in a reason applies. A test checks that the recorder writes these words."""


@dataclass(frozen=True)
class CaptureStat:
    """A row of capture_stat, with None for NULL. Rows that differ only in time are merged.

    Attributes:
        run_id: The run.
        stat: `dropped`, `disabled`, `unobservable`, `failed`, `changed`, `masked` or `recovered`.
        subject: What it happened to.
        reason: Why it happened.
        num_events: Number of affected events; None if it cannot be counted.
    """

    run_id: str
    stat: str
    subject: str
    reason: str
    num_events: int | None

    @property
    def kind(self) -> StatKind:
        """The meaning of the `stat`."""
        return STAT_KINDS.get(self.stat, _OTHER)

    @property
    def cue(self) -> Cue | None:
        """The additional meaning of the reason, or None."""
        return next((cue for cue in CUES if cue.words in self.reason), None)

    @property
    def is_asked(self) -> bool:
        """Whether the user requested it."""
        return self.kind.is_asked or (self.cue is not None and self.cue.is_asked)

    @property
    def advice(self) -> str:
        """What to do about it."""
        return self.kind.advice if self.cue is None else self.cue.advice

    @property
    def sentence(self) -> str:
        """The row as a sentence, such as `step was traced before recording began (7 events)`."""
        number = "" if self.num_events is None else f" ({self.num_events:,} events)"
        # The reason of a gap is a complete sentence. Other reasons begin with their verb.
        return f"{self.reason}{number}" if self.kind.is_gap else f"{self.subject}: {self.reason}{number}"


def read_capture_stats(logdir: Engine, *, run_id: str | None = None) -> tuple[CaptureStat, ...]:
    """Returns the rows of capture_stat, by run, in order of time.

    Args:
        logdir: The logdir.
        run_id: Only this run; None means all.
    """
    rows = logdir.rows(
        "SELECT run_id, stat, subject, reason, CAST(sum(num_events) AS BIGINT) FROM capture_stat "
        "WHERE (run_id = ? OR ? IS NULL) GROUP BY run_id, stat, subject, reason "
        "ORDER BY run_id, min(event_index), stat, subject, reason",
        [run_id, run_id],
    )
    return tuple(CaptureStat(*row) for row in rows)


def merged(stats: Iterable[CaptureStat]) -> tuple[CaptureStat, ...]:
    """Merges gaps of the same run and reason, keeping the first subject. Other rows are returned unchanged."""
    found: dict[tuple[str, ...], CaptureStat] = {}
    for stat in stats:
        key = (stat.run_id, stat.stat, stat.reason, "" if stat.kind.is_gap else stat.subject)
        before = found.get(key)
        if before is None:
            found[key] = stat
        elif stat.num_events is not None:
            found[key] = replace(before, num_events=(before.num_events or 0) + stat.num_events)
    return tuple(found.values())


def gap_sentences(stats: Iterable[CaptureStat]) -> dict[str, tuple[str, ...]]:
    """Returns one sentence per gap in the recording, keyed by run ID. Runs without gaps are omitted."""
    found: dict[str, tuple[str, ...]] = {}
    for stat in merged(stats):
        if stat.kind.is_gap:
            found[stat.run_id] = (*found.get(stat.run_id, ()), stat.sentence)
    return found


def losses_text(stats: Iterable[CaptureStat], *, with_gaps: bool) -> str | None:
    """Returns the losses in one line, such as `2 noted as unobservable`, or None if there are none.

    Args:
        stats: The rows.
        with_gaps: Whether to include the rows of `gap_sentences`.
    """
    lost = Counter(stat.stat for stat in stats if stat.kind.is_loss and (with_gaps or not stat.kind.is_gap))
    return ", ".join(f"{number:,} noted as {name}" for name, number in sorted(lost.items())) or None
