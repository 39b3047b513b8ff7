"""What a recorder says that it did not record, or not as asked: the rows of capture_stat, and how they read.

The one declaration of their wording: answers, `coverage`, `info` and `doctor` all say a row by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tfdbg_arrow.query.engine import Engine


@dataclass(frozen=True, kw_only=True)
class StatKind:
    """What a `stat` means.

    Attributes:
        stat: The value of the column.
        words: What befell the subject, as `was dropped`.
        is_loss: Whether something that could be bad may not have been looked at.
        is_gap: Whether what is missing ran between what was recorded, so that an earlier bad value may be in it; such
            rows are told with every answer.
        is_asked: Whether it is what the user asked for, as far as the kind tells.
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
            words="was left out as asked",
            is_loss=True,
            is_gap=True,
            is_asked=True,
            advice="Record without that setting to see what was left out.",
        ),
        StatKind(
            stat="unobservable",
            words="could not be observed",
            is_loss=True,
            advice="What runs there has to be looked at by other means.",
        ),
        StatKind(
            stat="failed",
            words="was not recorded in full because of an error",
            is_loss=True,
            advice="Report it, with this reason, to the makers of tfdbg_arrow.",
        ),
        StatKind(
            stat="changed",
            words="ran otherwise than without recording",
            is_loss=False,
            is_asked=True,
            advice="Nothing, unless what changed is what you are looking for.",
        ),
        StatKind(
            stat="masked",
            words="was bad and did not stop the program",
            is_loss=False,
            is_asked=True,
            advice="Nothing, unless that value should have stopped it: see docs/live_stop.md.",
        ),
        StatKind(
            stat="recovered",
            words="were recovered",
            is_loss=False,
            is_asked=True,
            advice="Nothing: what the program recorded before it died is there.",
        ),
    )
}
"""By the value of `stat`."""

_OTHER = StatKind(
    stat="",
    words="was noted",
    is_loss=True,
    advice="Install the newest tfdbg_arrow, which may know what that means.",
)


@dataclass(frozen=True)
class Cue:
    """What the reason of a row tells beyond its kind.

    Attributes:
        words: What the reason holds.
        advice: What to do.
        is_asked: Whether it is what the user asked for.
    """

    words: str
    advice: str
    is_asked: bool = False


CUES: tuple[Cue, ...] = (
    Cue("The spool had no room", "Raise max_memory_bytes, or record less by op_regex, tensor_dtypes or steps."),
    Cue(
        "The circular buffer kept only the last ones",
        "Record with a larger circular_buffer_size, or with 0 for all.",
        is_asked=True,
    ),
    Cue(
        "The black box wrote only",
        "Record without dump_on to keep all, or with a larger circular_buffer_size.",
        is_asked=True,
    ),
    Cue("the middle of the run", "Record with a larger max_bytes, or narrow the recording down.", is_asked=True),
    Cue("outside of the schedule", "Record with other steps to see those.", is_asked=True),
    Cue("The logdir's store could not be reached", "Check the store, and raise max_local_bytes so that more can wait."),
    Cue("parts wait in", "Send what still waits by: tfdbg-arrow upload --remove DIRECTORY URL."),
    Cue("Parts could not be written", "Free space where the logdir lies, and record again."),
    Cue(
        "was traced before recording began",
        "Call enable() before a concrete function is taken, or call the tf.function itself.",
    ),
    Cue("is compiled by XLA, as xla=", "Record with xla='inside', or with xla='observe' without XLA.", is_asked=True),
    Cue("which refuses the summaries", "Record with xla='observe', which runs such functions without XLA."),
    Cue("since XLA compiles it", "Record with xla='observe', which runs such functions without XLA."),
    Cue(
        "runs without XLA while recording",
        "Record with xla='inside' where it must stay compiled.",
        is_asked=True,
    ),
    Cue("on devices of other processes", "Record in those processes too: each writes a run of its own."),
    Cue("runs in another process", "Record in that process too: it writes a run of its own."),
    Cue(
        "a fork of this process records nothing",
        "Call enable() in the child, or start it by spawn: it writes a run of its own then.",
    ),
)
"""In this order: the first that a reason holds counts. What the recorder writes holds them; a test looks."""


@dataclass(frozen=True)
class CaptureStat:
    """A row of capture_stat, None for NULL; rows that differ only in time are one.

    Attributes:
        run_id: The run.
        stat: `dropped`, `disabled`, `unobservable`, `failed`, `changed` or `masked`.
        subject: What it happened to.
        reason: Why.
        num_events: How many events it concerns; None where that cannot be counted.
    """

    run_id: str
    stat: str
    subject: str
    reason: str
    num_events: int | None

    @property
    def kind(self) -> StatKind:
        """What the `stat` means."""
        return STAT_KINDS.get(self.stat, _OTHER)

    @property
    def cue(self) -> Cue | None:
        """What the reason tells beyond that, or None."""
        return next((cue for cue in CUES if cue.words in self.reason), None)

    @property
    def is_asked(self) -> bool:
        """Whether it is what the user asked for."""
        return self.kind.is_asked or (self.cue is not None and self.cue.is_asked)

    @property
    def advice(self) -> str:
        """What to do about it."""
        return self.kind.advice if self.cue is None else self.cue.advice

    @property
    def sentence(self) -> str:
        """The row in words, as `step was traced before recording began (7 events)`."""
        number = "" if self.num_events is None else f" ({self.num_events:,} events)"
        # The reason of a gap is a sentence by itself; others begin with their verb.
        return f"{self.reason}{number}" if self.kind.is_gap else f"{self.subject}: {self.reason}{number}"


def read_capture_stats(logdir: Engine, *, run_id: str | None = None) -> tuple[CaptureStat, ...]:
    """Returns what capture_stat says, by run, in order of time.

    Args:
        logdir: The logdir.
        run_id: Only this run; None: all.
    """
    rows = logdir.rows(
        "SELECT run_id, stat, subject, reason, CAST(sum(num_events) AS BIGINT) FROM capture_stat "
        "WHERE (run_id = ? OR ? IS NULL) GROUP BY run_id, stat, subject, reason "
        "ORDER BY run_id, min(event_index), stat, subject, reason",
        [run_id, run_id],
    )
    return tuple(CaptureStat(*row) for row in rows)


def merged(stats: Iterable[CaptureStat]) -> tuple[CaptureStat, ...]:
    """Returns gaps of one run and reason as one each, with the first one's subject; the others as they are."""
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
    """Returns, by run, what ran unrecorded between what was recorded, as sentences; runs without such are not there."""
    found: dict[str, tuple[str, ...]] = {}
    for stat in merged(stats):
        if stat.kind.is_gap:
            found[stat.run_id] = (*found.get(stat.run_id, ()), stat.sentence)
    return found


def losses_text(stats: Iterable[CaptureStat], *, with_gaps: bool) -> str | None:
    """Returns in one line what was lost, as `2 noted as unobservable`; None where nothing was.

    Args:
        stats: The rows.
        with_gaps: Whether those that `gap_sentences` tells are among it.
    """
    lost = Counter(stat.stat for stat in stats if stat.kind.is_loss and (with_gaps or not stat.kind.is_gap))
    return ", ".join(f"{number:,} noted as {name}" for name, number in sorted(lost.items())) or None
