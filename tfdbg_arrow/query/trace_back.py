"""provenance: follows a bad tensor back to the ops that created the bad value, and to the healthy inputs of these ops.

`trace_forward` searches in the other direction. Both modules return hops. A hop is a tensor with its op and source
line.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.bad_tensor import BadTensorReader, run_and_row
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.explanation import explain_event
from tfdbg_arrow.query.explanation.growth import Growth, find_growth
from tfdbg_arrow.query.explanation.surroundings import Surroundings
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.recorded import KINDS, TensorEvent, TensorHealth, health_facts
from tfdbg_arrow.query.stacks import Frame
from tfdbg_arrow.query.user_places import UserPlaces
from tfdbg_arrow.schema.op_traits import OPTIMIZERS

DEFAULT_LIMIT = 1000
"""Default maximum number of tensors of an answer. Bounds the time; `is_cut` says if there are more."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TensorHop(TensorHealth):
    """One tensor on a path. An attribute is None if it was not measured, is unknown or does not apply.

    The class also has the attributes of TensorHealth.

    The search found each hop from another hop. Data flows from the op of one of the two hops (the earlier op) to the op
    of the other hop (the later op).

    Attributes:
        hop_index: The index of this hop among the hops.
        input_index: The input of the later op that received the data; None for the start of the search, and if other
            tensors lie between the two ops.
        how: The first border between the two ops, going back from the later op. The attribute has the values of
            `Producer.how` and four more. `unrecorded` means that unrecorded tensors lie between the two ops. `zeros`
            means that the later op took zeros that are the exponentials of elements that are -Inf in this tensor.
            `gradient` means that the later op belongs to the gradient of the earlier op. `start` means that this hop is
            the start of the search.
        execution_index: The execution that made the tensor, or the call in which the tensor's op ran.
        step: The marked training step.
        iteration: Iteration of the loop, from 0; None outside loops.
        op_type: Type of the program's op that made the tensor; None for a tensor from outside.
        op_name: Name of the op in its graph; None outside graphs.
        graph_name: Name of the graph; None outside graphs.
        output_slot: Index of the op's output; None for a tensor from outside, and for an op that wrote to a variable.
        ran_as: The op that TensorFlow ran in place of the program's op; None if TensorFlow ran the program's op
            unchanged.
        layer: The Keras layer or module that the op belongs to, as the user named it. For a gradient, the layer of its
            forward op. None outside layers.
        op_role: The purpose of the op: `forward`, `gradient`, `optimizer`, `loss`, `metric` or `input`.
        forward_op_type: For a gradient, the type of the forward op: the op whose gradient was computed.
        forward_op_name: Name of the forward op in its graph; None outside graphs.
        source: The line to look at, as in `NonFinite.source`.
        made_at: The line where the user made the Keras layer, loss, metric or optimizer, as in `NonFinite.made_at`.
    """

    hop_index: int
    input_index: int | None
    how: str
    execution_index: int | None
    step: int | None
    iteration: int | None
    op_type: str | None
    op_name: str | None
    graph_name: str | None
    output_slot: int | None
    ran_as: str | None
    layer: str | None = None
    op_role: str | None
    forward_op_type: str | None = None
    forward_op_name: str | None = None
    source: Frame | None = None
    made_at: Frame | None = None


_Hop = TypeVar("_Hop", bound=TensorHop)


class HopReader:
    """Reads the attributes of hops."""

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._flow = flow
        self._places = UserPlaces(logdir, flow, run_id=run_id)
        self._events: dict[int, TensorEvent] = {}

    def facts(self, event: TensorEvent) -> dict[str, Any]:
        """Returns the attributes of a TensorHop that depend only on the tensor.

        `with_sources` adds the other attributes.
        """
        event = self._flow.as_written(event)
        self._events[event.event_index] = event
        maker = self._flow.program_ops.maker(event)
        return {
            **health_facts(self._flow.program_ops.as_output(event) if event.has_inf_or_nan else event),
            "execution_index": event.execution_index,
            # A data set reads ahead: one of its functions makes a record in one step, and a later step uses this
            # record.
            "step": None if self._flow.labels.is_in_data_set(event) else event.step,
            "iteration": event.loop_iteration,
            "op_type": event.op_type if maker is None else maker.op.op_type,
            "op_name": event.op_name if maker is None else maker.op.op_name,
            "graph_name": self._places.graph_name(event.graph_id if maker is None else maker.place.graph_id),
            "output_slot": None if (event.op_type or "").startswith(OPTIMIZERS) else event.output_slot,
            "ran_as": None if maker is None else maker.ran_as,
            "op_role": self._flow.label_of_maker(event).role,
        }

    def with_sources(self, hops: Iterable[_Hop]) -> tuple[_Hop, ...]:
        """Returns hops with their source lines, layers and forward ops added.

        Args:
            hops: Hops that were made from the attributes that `facts` returns.
        """
        hops = tuple(hops)
        self._places.read_stacks(self._events[hop.event_index] for hop in hops)
        return tuple(self._with_source(hop) for hop in hops)

    def _with_source(self, hop: _Hop) -> _Hop:
        place = self._places.place(self._events[hop.event_index])
        return replace(
            hop,
            layer=place.layer,
            forward_op_type=place.forward.op_type if place.forward else None,
            forward_op_name=place.forward.op_name if place.forward else None,
            source=place.source,
            made_at=place.made_at,
        )


def bad_start(flow: DataFlow, event_index: int, *, run_id: str) -> TensorEvent:
    """Returns the row of a bad tensor from which a search starts.

    Raises:
        QueryError: There is no such row, or the tensor is not bad.
    """
    event = flow.events.event(event_index)
    if event is None:
        raise QueryError(f"event {event_index} of run {run_id} is not a row of tensor_health.")
    if not event.has_inf_or_nan:
        raise QueryError(
            f"event {event_index} of run {run_id} holds no infinity and no NaN; pass the event_index of "
            "a bad tensor, for example from SELECT event_index FROM nonfinite_tensor."
        )
    return event


class HopRows(Displayed):
    """An answer that consists of hops, as rows.

    Attributes:
        hop_type: The class of the hops.
        hops: The hops, in order.
    """

    hop_type: ClassVar[type[TensorHop]]
    hops: tuple[TensorHop, ...]

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Returns the names of the columns of `rows`."""
        names = [field.name for field in fields(cls.hop_type)]
        place = names.index("source")
        return (*names[:place], "file_path", "lineno", *names[place + 1 :])

    def rows(self) -> list[dict[str, Any]]:
        """Returns the hops in order, as flat rows.

        `source` becomes the columns file_path and lineno, and lists become text.
        """
        return [_row(hop) for hop in self.hops]


def _row(hop: TensorHop) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in fields(hop):
        value = getattr(hop, field.name)
        if field.name == "source":
            row["file_path"] = None if value is None else value.file_path
            row["lineno"] = None if value is None else value.lineno
        elif field.name == "shape":
            row["shape"] = None if value is None else str(list(value))
        else:
            row[field.name] = ", ".join(map(str, value)) if isinstance(value, tuple) else value
    return row


@dataclass(frozen=True, kw_only=True, repr=False)
class Hop(TensorHop):
    """One tensor on the path back from a bad tensor.

    The class also has the attributes of TensorHop.

    Attributes:
        user_hop_index: The hop whose op took this tensor; None for the start of the search. If several ops took the
            tensor, this is the hop from which the search first found the tensor.
        role: What the tensor is on the path:

            * `origin`: the op created a bad value of one of the kinds
            * `propagator`: all bad values of the tensor came from an input
            * `candidate`: the tensor is bad, but the recording does not prove that it is an origin or a propagator,
              because an input was not recorded, or the search for it stopped at a limit
            * `cause`: a healthy input of an origin or candidate
            * `infinite`: an infinite input of the origin on the path, or an infinite tensor whose exponentials are
              zeros in such an input
            * `literal`: the op that wrote the infinities of such an input as constants of the program
            * `unfollowed`: the tensor is bad, but the search reached its limit before examining the tensor
        is_on_path: Whether the hop lies on the path to the earliest origin or candidate, or has the role `cause`,
            `infinite` or `literal` for this origin or candidate.
        why: One sentence that says how the op created the bad value; None if the recorded counts do not prove it.
        repair: How to fix the op, as a short instruction; None if `why` is None or if there is no standard fix.
    """

    user_hop_index: int | None
    role: str
    is_on_path: bool = False
    why: str | None = None
    repair: str | None = None

    @property
    def is_input(self) -> bool:
        """Whether the hop is shown as an input of the origin."""
        return self.role in ("cause", "infinite")


@dataclass(frozen=True, kw_only=True, repr=False)
class Provenance(HopRows):
    """Where a bad tensor came from.

    Attributes:
        run_id: The run.
        hops: The tensors on all paths back, in the order in which the search found them. The first hop is the start of
            the search.
        is_cut: Whether the search reached its limit before it found all tensors.
        growth: The tensor that grew from step to step until the origin went bad; None if no tensor grew, if magnitudes
            were not recorded, or if the bad value did no harm.
        effect: Where the bad value ended up, as in `NonFinite`; None if the effect is not known, or if the start of the
            search is not an origin.
        expected_reason: Why the bad value did no harm, as in `NonFinite`; None if the value did harm or may have done
            harm. If the value did no harm, no hop has a `repair`.
        ended_in_error: Whether the program got an error instead of a result, as in `NonFinite`.
    """

    hop_type: ClassVar[type[TensorHop]] = Hop

    run_id: str
    hops: tuple[Hop, ...]
    is_cut: bool
    growth: Growth | None = None
    effect: str | None = None
    expected_reason: str | None = None
    ended_in_error: bool = False

    @property
    def origin(self) -> Hop | None:
        """The earliest origin or, if there is no origin, the earliest candidate.

        None if the search reached its limit before it found an origin or a candidate.
        """
        return next((hop for hop in self.path if hop.role in ("origin", "candidate")), None)

    @property
    def path(self) -> tuple[Hop, ...]:
        """The path from the inputs of the origin's op over `origin` to the start of the search.

        If the program wrote the infinities of an input as constants, the hops of these constants come first.
        """
        on_path = [hop for hop in self.hops if hop.is_on_path]
        literals = [hop for hop in on_path if hop.role == "literal"]
        inputs = [hop for hop in on_path if hop.is_input]
        return (*literals, *inputs, *reversed([hop for hop in on_path if hop not in (*literals, *inputs)]))


def provenance(
    logdir: Engine | str | Path, tensor: NonFinite | int, *, run_id: str | None = None, limit: int = DEFAULT_LIMIT
) -> Provenance:
    """Follows a bad tensor back to the ops that created the bad value.

    The search follows the data edges of the tensor's call and iteration. The search crosses the borders of arguments,
    nested calls, loops and eager tensors, and goes from a captured variable to its last assignment. At each bad tensor,
    the search continues with the bad inputs of the tensor's op.

    Args:
        logdir: An open logdir or its path.
        tensor: The result of `first_nonfinite`, or the event_index of a bad tensor.
        run_id: The run of the tensor. None means the newest run.
        limit: Maximum number of tensors.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: The run is unknown, the run has no such tensor, or the tensor is not bad.
        BrokenPartError: A part cannot be read.
    """
    if limit < 1:
        raise QueryError(f"limit is {limit}; expected 1 or more tensors.")
    with opened(logdir) as open_:
        run, event_index = run_and_row(open_, tensor, run_id)
        search = _Search(open_.of_run(run), run_id=run)
        with search.flow.lock:
            return search.run(event_index, limit=limit)


class _Search:
    """One search. The search follows the earliest bad tensors first, because it then reaches the origins sooner."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self.flow = DataFlow.of(logdir, run_id=run_id)
        self._reader = BadTensorReader(logdir, run_id=run_id, kinds=KINDS)
        self._origins = self._reader.origins
        self._hop_reader = HopReader(logdir, self.flow, run_id=run_id)
        self._hops: list[Hop] = []
        self._found: dict[int, int] = {}
        self._sources: dict[int, set[int]] = {}
        """For each bad hop, the hops that its op took. Healthy hops are included only for origins and candidates."""

    def run(self, event_index: int, *, limit: int) -> Provenance:
        event = bad_start(self.flow, event_index, run_id=self._run_id)
        self._add(event, user=None, input_index=None, how="start", role="unfollowed")
        to_follow = [(event_index, event)]
        is_cut = False
        while to_follow:
            if len(self._hops) >= limit:
                is_cut = True
                break
            _, row = heapq.heappop(to_follow)
            for source in self._expand(row):
                heapq.heappush(to_follow, (source.event_index, source))
        provenance = Provenance(run_id=self._run_id, hops=self._hop_reader.with_sources(self._marked()), is_cut=is_cut)
        effect = self._reader.own_effect(event)
        provenance = replace(
            provenance,
            effect=effect.name,
            expected_reason=effect.expected_reason,
            ended_in_error=self._reader.ended_in_error(event, effect),
        )
        if effect.expected_reason is None:
            return replace(provenance, growth=self._growth(provenance.origin))
        # The bad value did no harm, so there is nothing to fix.
        return replace(provenance, hops=tuple(replace(hop, repair=None) for hop in provenance.hops))

    def _growth(self, origin: Hop | None) -> Growth | None:
        event = None if origin is None else self.flow.events.event(origin.event_index)
        return None if event is None else find_growth(self._logdir, self.flow, event, run_id=self._run_id)

    def _expand(self, event: TensorEvent) -> list[TensorEvent]:
        """Adds the inputs of a bad tensor's op as hops, and returns the bad inputs that were not found before."""
        own = self._found[event.event_index]
        verdict = self._origins.verdict(event)
        role = "origin" if verdict.is_origin else "propagator" if verdict.causes else "candidate"
        # For a propagator, only the bad inputs become hops.
        is_propagator = role == "propagator"
        maker = self.flow.as_written(event)
        taken: list[tuple[int | None, str, TensorEvent]] = [*self.flow.taken_by(maker, is_recent=is_propagator)]
        sources = self.flow.recent_sources_of(event) if is_propagator else self.flow.sources_of(maker).events
        taken_rows = {row.event_index for _, _, row in taken}
        sources = (*sources, *(row for row in verdict.causes if row not in sources))
        taken += [(None, "unrecorded", row) for row in sources if row.event_index not in taken_rows]
        why = None
        if not is_propagator:
            why = explain_event(self._logdir, self.flow, event, run_id=self._run_id, is_origin=verdict.is_origin)
            around = Surroundings(self._logdir, self.flow, event, self._run_id)
            taken += [(None, "zeros", row) for row in around.infinities_behind()]
            dividend = self.flow.program_ops.dividend(event)
            if dividend is not None and dividend.has_inf_or_nan is False:
                taken.append((0, "graph", dividend))
        self._hops[own] = replace(
            self._hops[own],
            role=role,
            why=None if why is None else why.sentence,
            repair=None if why is None else why.repair,
        )
        new = []
        for index, how, row in taken:
            is_bad = bool(row.has_inf_or_nan)
            if is_propagator and not is_bad:
                continue
            is_zeros = how == "zeros"
            is_new = row.event_index not in self._found
            if is_new:
                role = "infinite" if is_zeros else "unfollowed" if is_bad else "cause"
                self._add(row, user=own, input_index=index, how=how, role=role)
            place = self._found[row.event_index]
            self._sources.setdefault(own, set()).add(place)
            is_unfollowed = is_new or self._hops[place].role == "infinite"
            if is_bad and is_unfollowed and (not is_zeros or self._origins.is_literal(row)):
                new.append(row)
        return new

    def _add(self, event: TensorEvent, *, user: int | None, input_index: int | None, how: str, role: str) -> None:
        self._found[event.event_index] = len(self._hops)
        self._hops.append(
            Hop(
                hop_index=len(self._hops),
                user_hop_index=user,
                input_index=input_index,
                how=how,
                role=role,
                **self._hop_reader.facts(event),
            )
        )

    def _marked(self) -> tuple[Hop, ...]:
        """Returns the hops, with `is_on_path` set for those on the path to the earliest origin.

        If there is no origin, the path leads to the earliest candidate. An infinity that the program wrote as a
        constant only counts as an origin if there is no other origin.
        """
        hops = list(self._hops)
        origins = [hop for hop in hops if hop.role == "origin"]
        written = self._written(origins)
        ends = [hop for hop in origins if hop.hop_index not in written] or origins
        ends = ends or [hop for hop in hops if hop.role == "candidate"]
        if not ends:
            return tuple(hops)
        end = self._earliest(ends)
        inputs = [hops[index] for index in sorted(self._sources.get(end.hop_index, ()))]
        infinite = [hop for hop in inputs if hop.role != "cause" and not hop.num_nan]
        literals = [literal for hop in infinite if (literal := self._nearest_literal(hop, written)) is not None]
        roles = {
            **{hop.hop_index: "infinite" for hop in infinite},
            **{hop.hop_index: "literal" for hop in literals},
        }
        on_path = {*roles, *(hop.hop_index for hop in inputs if hop.role == "cause")}
        at: int | None = end.hop_index
        while at is not None:
            on_path.add(at)
            at = hops[at].user_hop_index
        # The explanation and the repair belong to the origin on the path, not to the op that wrote an infinity.
        hops = [
            replace(hop, role=roles[hop.hop_index], why=None, repair=None) if hop.hop_index in roles else hop
            for hop in hops
        ]
        return tuple(replace(hop, is_on_path=hop.hop_index in on_path) for hop in hops)

    def _nearest_literal(self, start: Hop, written: set[int]) -> Hop | None:
        """Returns the nearest origin behind an infinite hop; None if the program did not write the infinities."""
        behind = breadth_first([start.hop_index], lambda hop_index: sorted(self._sources.get(hop_index, ())))
        origin = next((hop for hop in map(self._hops.__getitem__, behind) if hop.role == "origin"), None)
        return origin if origin is not None and origin.hop_index in written else None

    def _written(self, origins: list[Hop]) -> set[int]:
        """Returns the indexes of the origins whose infinities the program wrote as constants."""
        rows = [self.flow.events.event(hop.event_index) for hop in origins]
        others = self._origins.without_written([row for row in rows if row is not None])
        return {hop.hop_index for hop in origins} - {self._found[row.event_index] for row in others}

    def _earliest(self, ends: list[Hop]) -> Hop:
        """Returns the earliest of several hops in the data flow: one that was not computed from another one.

        If there are several such hops, returns the hop that was recorded first. Within a call, the order of recording
        can differ from the data flow.
        """
        indexes = {hop.hop_index for hop in ends}
        for end in sorted(ends, key=lambda hop: hop.event_index):
            behind = breadth_first([end.hop_index], lambda hop_index: self._sources.get(hop_index, ()))
            if indexes.isdisjoint(set(behind) - {end.hop_index}):
                return end
        return min(ends, key=lambda hop: hop.event_index)
