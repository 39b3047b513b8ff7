"""Test that no module imports itself through others: at its top, inside functions, for types, or as a package.

To import a module, Python first imports the packages in which it is.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def packages_of(module: str) -> set[str]:
    """Returns the packages in which a module is, from the outermost on."""
    names = module.split(".")
    return {".".join(names[:depth]) for depth in range(1, len(names))}


def test_no_import_cycle() -> None:
    graph = grimp.build_graph("tfdbg_arrow", exclude_type_checking_imports=False, cache_dir=None)
    imports = {
        module: {
            needed
            for imported in graph.find_modules_directly_imported_by(module)
            for needed in {imported, *packages_of(imported)} - packages_of(module)
            if needed != module
        }
        for module in graph.modules
    }
    # These three are imported inside functions, and for types.
    assert "tfdbg_arrow.query.present.answers" in imports["tfdbg_arrow.query"]
    assert "tfdbg_arrow.query.trace_back" in imports["tfdbg_arrow.query.answers"]
    assert "tfdbg_arrow.query.nonfinite_tensor" in imports["tfdbg_arrow.query.present.tensors"]
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules of a cycle
