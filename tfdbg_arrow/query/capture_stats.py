"""The rows of capture_stat as text. The rows list what was not recorded, or was recorded differently than requested.

Only this module defines the wording. Answers, `coverage`, `info` and `doctor` all use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.safe_text import number_of


@dataclass(frozen=True)
class StatKind:
    """The meaning of a value of the column `stat`.

    Attributes:
        words: What happened to the subject, such as `was dropped`.
        advice: What the user can do.
        is_loss: Whether the row may mean that a tensor that could be bad was not examined.
        is_gap: Whether something is missing between recorded events. The missing events may contain an earlier bad
            value, so every answer mentions these rows.
        is_asked: Whether rows of this kind always report something that the user requested.
    """

    words: str
    advice: str
    is_loss: bool = False
    is_gap: bool = False
    is_asked: bool = False


STAT_KINDS: Mapping[str, StatKind] = {
    "dropped": StatKind(
        "was dropped",
        "Record less by op_regex, tensor_dtypes or steps, or write to a faster disk.",
        is_loss=True,
        is_gap=True,
    ),
    "disabled": StatKind(
        "was left out as requested",
        "Record without that setting to see what was left out.",
        is_loss=True,
        is_gap=True,
        is_asked=True,
    ),
    "unobservable": StatKind("could not be observed", "Inspect what runs there by other means.", is_loss=True),
    "failed": StatKind(
        "was not recorded in full because of an error",
        "If the reason is the disk or the memory of the machine, free some and record again. Otherwise, report the "
        "reason to the developers of tfdbg_arrow.",
        is_loss=True,
    ),
    "changed": StatKind(
        "ran differently than without recording",
        "No action is needed, unless the change is what you are looking for.",
        is_asked=True,
    ),
    "unchanged": StatKind(
        "was not measured again",
        "No action is needed, unless code outside TensorFlow writes into that memory: for example, through DLPack.",
        is_asked=True,
    ),
    "unkept": StatKind("were not kept", "All tensors were recorded. Only the elements of these inputs are missing."),
    "masked": StatKind(
        "was bad and did not stop the program",
        "No action is needed, unless that value should have stopped it: see docs/live_stop.md.",
        is_asked=True,
    ),
    "recovered": StatKind(
        "were recovered",
        "No action is needed, unless another finding says what is missing.",
        is_asked=True,
    ),
}
"""The kinds by the value of `stat`."""
_OTHER = StatKind("was noted", "Install the latest tfdbg_arrow, which may know the meaning.", is_loss=True)


@dataclass(frozen=True)
class ReasonKind:
    """The meaning of a value of the column `reason_code`.

    Attributes:
        advice: What the user can do.
        is_asked: Whether rows with this reason report something that the user requested.
    """

    advice: str
    is_asked: bool = False


REASON_KINDS: Mapping[str, ReasonKind] = {
    "input_budget": ReasonKind(
        "To keep the inputs of later bad values, record fewer steps or ops with steps or op_regex."
    ),
    "spool_full": ReasonKind("Raise max_memory_bytes, or record less by op_regex, tensor_dtypes or steps."),
    "circular_buffer": ReasonKind(
        "Record with a larger circular_buffer_size, or without one to keep all events.", is_asked=True
    ),
    "max_bytes": ReasonKind("Record with a larger max_bytes, or narrow the recording down.", is_asked=True),
    "schedule": ReasonKind("Record with different steps to see these.", is_asked=True),
    "store_unreachable": ReasonKind("Check the store, and raise max_local_bytes so that more can wait."),
    "upload_waits": ReasonKind("Upload the waiting parts with: tfdbg-arrow upload --remove DIRECTORY URL."),
    "parts_unwritable": ReasonKind("Free space on the disk of the logdir, and record again."),
    "traced_before": ReasonKind("Call enable() before a concrete function is taken, or call the tf.function itself."),
    "xla_kept": ReasonKind("Record with xla='inside', or with xla='observe' without XLA.", is_asked=True),
    "xla_refused": ReasonKind("Record with xla='observe', which runs such functions without XLA."),
    "xla_left_out": ReasonKind("Record with xla='observe', which runs such functions without XLA."),
    "ran_without_xla": ReasonKind("Record with xla='inside' if it must stay compiled.", is_asked=True),
    "other_devices": ReasonKind("Record in those processes too: each writes a run of its own."),
    "other_process": ReasonKind("Record in that process too: it writes a run of its own."),
    "forked": ReasonKind(
        "Call enable() in the child, or start it with the spawn method. It then writes a run of its own."
    ),
}
"""The kinds by the value of `reason_code`. A test checks that the recorder writes exactly these codes."""


@dataclass(frozen=True)
class CaptureStat:
    """A row of capture_stat, with None for NULL. Rows that differ only in time are merged.

    Attributes:
        run_id: The run.
        stat: The kind of the row: a key of STAT_KINDS.
        subject: What was affected, such as a function.
        reason: Why the subject was affected.
        num_events: Number of affected events; None if the events cannot be counted.
        reason_code: The kind of the reason; None for a reason without a code.
    """

    run_id: str
    stat: str
    subject: str
    reason: str
    num_events: int | None
    reason_code: str | None = None

    @property
    def kind(self) -> StatKind:
        """The meaning of the `stat`."""
        return STAT_KINDS.get(self.stat, _OTHER)

    @property
    def is_asked(self) -> bool:
        """Whether the row reports something that the user requested."""
        reason = self._reason_kind
        return self.kind.is_asked or (reason is not None and reason.is_asked)

    @property
    def advice(self) -> str:
        """What the user can do. If the reason has no code, this is the general advice for the `stat`."""
        return (self._reason_kind or self.kind).advice

    @property
    def _reason_kind(self) -> ReasonKind | None:
        return None if self.reason_code is None else REASON_KINDS.get(self.reason_code)

    @property
    def sentence(self) -> str:
        """The row as a sentence, such as `step was traced before recording began (7 events)`."""
        number = "" if self.num_events is None else f" ({number_of(self.num_events, 'event')})"
        # The reason of a gap is a complete sentence. Other reasons begin with their verb.
        return f"{self.reason}{number}" if self.kind.is_gap else f"{self.subject}: {self.reason}{number}"


def read_capture_stats(logdir: Engine, *, run_id: str | None = None) -> tuple[CaptureStat, ...]:
    """Returns the rows of capture_stat, sorted by run and then by time."""
    rows = logdir.rows(
        "SELECT run_id, stat, subject, reason, CAST(sum(num_events) AS BIGINT), reason_code FROM capture_stat "
        "WHERE (run_id = ? OR ? IS NULL) GROUP BY run_id, stat, subject, reason, reason_code "
        "ORDER BY run_id, min(event_index), stat, subject, reason",
        [run_id, run_id],
    )
    return tuple(CaptureStat(*row) for row in rows)


def merged(stats: Iterable[CaptureStat]) -> tuple[CaptureStat, ...]:
    """Merges gaps that have the same run and reason: adds their numbers of events, and keeps the first subject.

    Other rows are merged only if they also have the same subject.
    """
    stat_of_key: dict[tuple[str, ...], CaptureStat] = {}
    for stat in stats:
        key = (stat.run_id, stat.stat, stat.reason, "" if stat.kind.is_gap else stat.subject)
        before = stat_of_key.get(key)
        if before is None:
            stat_of_key[key] = stat
        elif stat.num_events is not None:
            stat_of_key[key] = replace(before, num_events=(before.num_events or 0) + stat.num_events)
    return tuple(stat_of_key.values())


def gap_sentences(stats: Iterable[CaptureStat]) -> dict[str, tuple[str, ...]]:
    """Returns one sentence for each gap in the recording, by run ID. Runs without gaps are omitted."""
    sentences: dict[str, tuple[str, ...]] = {}
    for stat in merged(stats):
        if stat.kind.is_gap:
            sentences[stat.run_id] = (*sentences.get(stat.run_id, ()), stat.sentence)
    return sentences


def losses_text(stats: Iterable[CaptureStat], *, with_gaps: bool) -> str | None:
    """Returns the losses in one line, such as `2 noted as unobservable`, or None if nothing was lost.

    Args:
        stats: The rows.
        with_gaps: Whether to include the rows of `gap_sentences`.
    """
    lost = Counter(stat.stat for stat in stats if stat.kind.is_loss and (with_gaps or not stat.kind.is_gap))
    return ", ".join(f"{number:,} noted as {name}" for name, number in sorted(lost.items())) or None
