"""Test the table of op types."""

from __future__ import annotations

import pytest

from tfdbg_arrow.schema.op_traits import (
    ADDING,
    BORDERS,
    POLES,
    REFERENCE_WRITER,
    REPEATED,
    REPLACING,
    TRAITS,
    WRITER,
    Trait,
    types_with,
)


def test_each_trait_is_described_and_some_type_has_it() -> None:
    documentation = (Trait.__doc__ or "").splitlines()
    described = {name for line in documentation for name in line.strip().partition(":")[0].split(", ")}
    for trait in Trait:
        assert trait.name in described
        assert types_with(trait)


def test_traits_that_exclude_each_other() -> None:
    assert not types_with(Trait.EQUAL) & types_with(Trait.MERGES | Trait.RESHAPED | Trait.FINDS_BAD | Trait.COMPARES)
    assert not types_with(Trait.CARRIES) & types_with(Trait.TESTS)
    assert not types_with(Trait.KEEPS_FINITE) & types_with(Trait.IS_SINGULAR)
    assert types_with(Trait.CAN_FAIL) <= types_with(Trait.EQUAL)
    assert not types_with(BORDERS) & types_with(Trait.STANDS_FOR_CALL)
    assert {*ADDING, *REPLACING} == {name for name in (*ADDING, *REPLACING) if WRITER.fullmatch(name)}
    assert not ADDING.keys() & REPLACING


def test_the_table_agrees_with_the_ops_of_tensorflow() -> None:
    """Each type exists, writers take a resource or a reference, and each index is that of a data input."""
    pywrap = pytest.importorskip("tensorflow.python.client.pywrap_tf_session")
    op_def_pb2 = pytest.importorskip("tensorflow.core.framework.op_def_pb2")
    ops = {op.name: op for op in op_def_pb2.OpList.FromString(pywrap.TF_GetBuffer(pywrap.TF_GetAllOpList())).op}
    assert {*TRAITS, *ADDING, *REPLACING, *POLES, *REPEATED} - ops.keys() == set()
    for name, op in ops.items():
        takes = [argument.type for argument in op.input_arg]
        names = [argument.name for argument in op.input_arg]
        if WRITER.fullmatch(name):
            assert 20 in takes, name  # DT_RESOURCE
        if REFERENCE_WRITER.fullmatch(name):
            assert op.input_arg[0].is_ref, name
        if name in ADDING:
            added = ADDING[name]
            assert takes[0] == 20
            assert names[added.value] in ("value", "delta")
            assert added.rate is None or names[added.rate] == "alpha"
