"""Test that enable() and `tfdbg-arrow run` have the settings that Request declares, with the same defaults."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.cli.run import run
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.writer.active_recording import enable
from tfdbg_arrow.writer.settings import Request

DECLARED = {
    field.name: inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(Request)
}
NOT_SETTINGS = {"program", "module", "seed", "json"}
ONLY_FROM_CODE = {"storage_options", "local_dir", "upload_timeout_s", "max_local_bytes"}
OTHER_DEFAULTS = {"logdir": "tfdbg_logdir", "max_memory_bytes": None}
"""Options of `run` with other defaults. `run` has a default directory, and its help text names the memory limit."""


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def test_enable_takes_the_settings_with_their_defaults() -> None:
    assert defaults_of(enable) == DECLARED


def test_run_has_an_option_for_each_setting_with_its_default() -> None:
    words = run.make_context("run", ["program.py"]).params
    options = {name: value for name, value in words.items() if name not in NOT_SETTINGS}
    options["tensor_debug_mode"] = options.pop("mode")
    assert options == {**{k: v for k, v in DECLARED.items() if k not in ONLY_FROM_CODE}, **OTHER_DEFAULTS}


def test_a_mapping_of_tags_becomes_texts(tmp_path: Path) -> None:
    settings = Request(logdir=tmp_path, run_name="größe", tags={"lr": 0.1, "seed": 3}, notes="a\nb").check()
    assert (settings.run_name, settings.tags, settings.notes) == ("größe", ("lr=0.1", "seed=3"), "a\nb")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run_name": ""}, "expected a text that is not empty"),
        ({"run_name": 3}, "expected a text that is not empty"),
        ({"run_name": "all"}, "choose another name"),
        ({"run_name": "x" * 201}, "has 201 characters; expected at most 200"),
        ({"run_name": "a\x1b[31m"}, "expected one line of text"),
        ({"run_name": "a\u202eb"}, "expected one line of text"),
        ({"tags": "baseline"}, "expected strings, such as"),
        ({"tags": ["a", "b\n"]}, "expected one line of text"),
        ({"tags": [3]}, "expected a text"),
        ({"tags": ["a"] * 101}, "has 101 tags; expected at most 100"),
        ({"notes": "x" * 10_001}, "has 10,001 characters; expected at most 10,000"),
        ({"dump_on": "nan", "circular_buffer_size": 5}, "dump_on is 'nan'"),
        ({"dump_on": "nonfinite"}, "circular_buffer_size -1"),
        ({"dump_on": "nonfinite", "circular_buffer_size": 0}, "circular_buffer_size 0"),
        ({"dump_on": "nonfinite", "circular_buffer_size": 5, "tensor_debug_mode": "SHAPE"}, "mode SHAPE"),
        ({"dump_on": "nonfinite", "circular_buffer_size": 5, "tensor_debug_mode": "NO_TENSOR"}, "mode NO_TENSOR"),
        ({"dump_on": "nonfinite", "circular_buffer_size": 5, "dump_after": -1}, "dump_after is -1"),
        ({"dump_on": "nonfinite", "circular_buffer_size": 5, "dump_after": 1.5}, "dump_after is 1.5"),
        ({"dump_after": 5}, "dump_after is 5 with circular_buffer_size -1"),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"max_bytes": 2**20 - 1}, "max_bytes is 1048575"),
        ({"max_bytes": "1GB"}, "max_bytes is '1GB'"),
        ({"max_bytes": float(2**20)}, "max_bytes is 1048576.0"),
        ({"values": "("}, "values is '('"),
        ({"values": 3}, "values is 3"),
        ({"values": re.compile(b"x")}, "not a valid regular expression for text"),
        ({"values": "x", "tensor_debug_mode": "FULL_TENSOR"}, "keeps every tensor"),
        ({"values": "x", "tensor_debug_mode": "NO_TENSOR"}, "keeps no tensor"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        Request(logdir=tmp_path, **settings).check()
