"""How one bad tensor came about: the way from where it went bad, as far back as it goes."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Growth, Logdir, Provenance
from tfdbg_arrow.query.windows.tensors import TensorRow, read_tensor
from tfdbg_arrow.viewer.failures import NoSuchPageError
from tfdbg_arrow.viewer.page import PageKind, needed_run
from tfdbg_arrow.viewer.parameters import Parameters

DEFAULT_LIMIT = 10_000


@dataclass(frozen=True, kw_only=True)
class ProvenancePage:
    """How one bad tensor came about.

    Attributes:
        tensor: The tensor.
        provenance: All ways back from it.
        why: What the op in which it went bad did, where the counts prove it.
        repair: What would mend it.
    """

    tensor: TensorRow
    provenance: Provenance
    why: str | None
    repair: str | None

    @property
    def growth(self) -> Growth | None:
        """What had grown from step to step until the origin went bad."""
        return self.provenance.growth


def read_provenance(logdir: Logdir, event_index: int, *, run_id: str, limit: int = DEFAULT_LIMIT) -> ProvenancePage:
    """Returns how a bad tensor came about.

    Args:
        logdir: The logdir.
        event_index: Its row in tensor_health.
        run_id: The run.
        limit: At most so many tensors.

    Raises:
        NoSuchPageError: The run has no such tensor.
        QueryError: It is not bad.
    """
    tensor = read_tensor(logdir, event_index, run_id=run_id)
    if tensor is None:
        raise NoSuchPageError(f"event {event_index} of run {run_id} is no recorded tensor.")
    provenance = logdir.provenance(event_index, run_id=run_id, limit=limit)
    why, repair = next(((hop.why, hop.repair) for hop in provenance.path if hop.why is not None), (None, None))
    return ProvenancePage(tensor=tensor, provenance=provenance, why=why, repair=repair)


def _read(logdir: Logdir, parameters: Parameters) -> ProvenancePage:
    parameters.needed("event")
    return read_provenance(
        logdir,
        parameters.integer("event") or 0,
        run_id=needed_run(logdir, parameters),
        limit=parameters.integer("limit") or DEFAULT_LIMIT,
    )


PAGE = PageKind(name="provenance", title="Provenance", key=None, read=_read)
