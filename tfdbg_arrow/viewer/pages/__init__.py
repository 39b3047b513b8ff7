"""The pages, in the order of the navigation. Each page has one module and one template."""

from __future__ import annotations

from tfdbg_arrow.viewer.page import PageKind
from tfdbg_arrow.viewer.pages import (
    alerts,
    diff,
    executions,
    graph,
    history,
    model,
    overview,
    provenance,
    runs,
    source,
    tensor,
    tensors,
)

PAGES: tuple[PageKind, ...] = (
    overview.PAGE,
    model.PAGE,
    alerts.PAGE,
    executions.PAGE,
    tensors.PAGE,
    graph.PAGE,
    source.PAGE,
    runs.PAGE,
    tensor.PAGE,
    history.PAGE,
    provenance.PAGE,
    diff.PAGE,
)
