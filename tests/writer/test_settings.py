"""Test that enable() and `tfdbg-arrow run` have the settings that Request declares, with the same defaults."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from tfdbg_arrow.cli.run import run
from tfdbg_arrow.writer.active_recording import enable
from tfdbg_arrow.writer.settings import Request

DECLARED = {
    field.name: inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(Request)
}
NOT_SETTINGS = {"program", "module", "seed", "json"}
ONLY_FROM_CODE = {"storage_options", "local_dir", "upload_timeout_s", "max_local_bytes"}
OTHER_DEFAULTS = {"logdir": "tfdbg_logdir", "max_memory_bytes": None}
"""Options of `run` that differ: `run` writes to a directory of its own choice, and names the limit in its help."""


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def test_enable_takes_the_settings_with_their_defaults() -> None:
    assert defaults_of(enable) == DECLARED


def test_run_has_an_option_for_each_setting_with_its_default() -> None:
    options = {name: value for name, value in defaults_of(run).items() if name not in NOT_SETTINGS}
    options["tensor_debug_mode"] = options.pop("mode")
    assert options == {**{k: v for k, v in DECLARED.items() if k not in ONLY_FROM_CODE}, **OTHER_DEFAULTS}
