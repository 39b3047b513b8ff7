"""Test that the list of ops that a script may run is that of TensorFlow."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tfdbg_arrow.errors import ReproError
from tfdbg_arrow.reproduction.op_signatures import DtypeName, choices, signature_of, split_inputs

ROOT = Path(__file__).parents[2]


def test_the_file_has_the_signatures_of_tensorflow() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "op_signatures.py"))
    here = tool["signatures"]()
    stored = json.loads(tool["PATH"].read_text(encoding="utf-8"))
    both = sorted(here.keys() & stored.keys())
    # Other versions of TensorFlow have a few ops and attributes more.
    assert len(both) > 0.9 * len(stored)
    assert {name: here[name]["inputs"] for name in both} == {name: stored[name]["inputs"] for name in both}
    for name in both:
        assert here[name]["is_single"] == stored[name]["is_single"], name
        attributes = here[name]["attributes"]
        assert {key: stored[name]["attributes"].get(key, value)["type"] for key, value in attributes.items()} == {
            key: value["type"] for key, value in attributes.items()
        }, name


def test_inputs_are_split_into_arguments() -> None:
    concat, split = signature_of("ConcatV2"), signature_of("IdentityN")
    assert concat is not None
    assert split is not None
    assert split_inputs(concat, 4, {"N": 3}) == [("values", 3), ("axis", None)]
    assert split_inputs(concat, 4, {}) == [("values", 3), ("axis", None)]
    assert split_inputs(split, 2, {"T": [1, 1]}) == [("input", 2)]
    with pytest.raises(ReproError, match="ConcatV2 takes 2 inputs, and the recording has 2"):
        split_inputs(concat, 2, {"N": 5})


def test_unknown_attributes_are_tried_with_the_default_first() -> None:
    matmul, cast = signature_of("MatMul"), signature_of("Cast")
    assert matmul is not None
    assert cast is not None
    tried = choices(matmul, {}, dtype="float32", is_recorded=False)
    assert tried[0] == {}
    assert {"transpose_b": True} in tried
    assert choices(matmul, {"transpose_b": True}, dtype="float32", is_recorded=True) == [{"transpose_b": True}]
    assert choices(cast, {}, dtype="float16", is_recorded=False)[0] == {"DstT": DtypeName("float16")}


def test_an_attribute_without_a_default_that_was_not_recorded_is_an_error() -> None:
    einsum = signature_of("Einsum")
    assert einsum is not None
    with pytest.raises(ReproError, match=r"attribute equation of Einsum .* tf\.function"):
        choices(einsum, {}, dtype="float32", is_recorded=False)
