"""The provenance page: the path from the origin of a bad value to one bad tensor."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Growth, Logdir, Provenance
from tfdbg_arrow.query.display.tensor_window import TensorRow
from tfdbg_arrow.viewer.page import PageKind, Parameters, needed_run, needed_tensor

DEFAULT_LIMIT = 10_000
"""Default maximum number of tensors that are followed back. The page says if there are more."""


@dataclass(frozen=True, kw_only=True)
class ProvenancePage:
    """The provenance of one bad tensor.

    Attributes:
        tensor: The tensor.
        provenance: All paths back from the tensor.
        why: What the origin's op did, if the counts prove it.
        repair: How to fix the bad values.
    """

    tensor: TensorRow
    provenance: Provenance
    why: str | None
    repair: str | None

    @property
    def growth(self) -> Growth | None:
        """A quantity that grew from step to step until the origin went bad; None if there is none."""
        return self.provenance.growth


def read_provenance(logdir: Logdir, parameters: Parameters) -> ProvenancePage:
    """Returns the provenance of a bad tensor.

    Raises:
        NoSuchPageError: The run has no such tensor.
        QueryError: The tensor is not bad.
    """
    event_index, run_id = parameters.needed_integer("event"), needed_run(logdir, parameters)
    tensor = needed_tensor(logdir, event_index, run_id=run_id)
    provenance = logdir.provenance(event_index, run_id=run_id, limit=parameters.integer("limit") or DEFAULT_LIMIT)
    why, repair = next(((hop.why, hop.repair) for hop in provenance.path if hop.why is not None), (None, None))
    return ProvenancePage(tensor=tensor, provenance=provenance, why=why, repair=repair)


PAGE = PageKind(name="provenance", title="Provenance", key=None, read=read_provenance)
