"""Test that no module of the package imports itself, not even through imports inside functions or for types."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_import_cycle() -> None:
    graph = grimp.build_graph("tfdbg_arrow", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # These three are imported inside functions, and for types.
    assert "tfdbg_arrow.query.notebook" in imports["tfdbg_arrow.query"]
    assert "tfdbg_arrow.query.trace_back" in imports["tfdbg_arrow.query.answers"]
    assert "tfdbg_arrow.query.bad_tensor" in imports["tfdbg_arrow.query.one_line"]
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules of a cycle
