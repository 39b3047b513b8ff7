"""Test the page of the path from a bad tensor back to its origin."""

from __future__ import annotations

from pathlib import Path

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.viewer.page import parameters_of
from tfdbg_arrow.viewer.pages.provenance import read_provenance

from . import logdirs


def test_the_path_to_the_origin_and_the_reason(tmp_path: Path) -> None:
    with open_logdir(logdirs.log_of_zero(tmp_path)) as logdir:
        page = read_provenance(logdir, parameters_of(run="run-a", event=6))
        cut = read_provenance(logdir, parameters_of(run="run-a", event=6, limit=1))
    assert [(hop.op_name, hop.role) for hop in page.provenance.path] == [
        ("probs", "cause"),
        ("Log", "origin"),
        ("Neg", "propagator"),
    ]
    assert page.why == "Log of 0: 2 of 6 elements are 0, and the logarithm of 0 is -Inf."
    assert (cut.provenance.is_cut, cut.provenance.path) == (True, ())
