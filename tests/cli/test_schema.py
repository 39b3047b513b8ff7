"""Test `tfdbg-arrow schema`."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb

from .commands import run_cli


class TestSchema:
    def test_names_every_table_and_view(self) -> None:
        text = run_cli("schema").stdout
        assert all(f"  {name} " in text for name in ("tensor_health", "capture_stat", "op_source", "nonfinite_tensor"))

    def test_a_table_and_a_view_by_name(self) -> None:
        assert "lineno" in run_cli("schema", "stack_frame").stdout
        assert run_cli("schema", "stack").stdout.startswith("-- One row is one frame of one distinct stack trace")

    def test_the_script_for_a_plain_client(self, bad: Path) -> None:
        result = run_cli("schema", "--sql", bad)
        assert result.exit_code == 0
        with duckdb.connect() as plain:
            plain.execute(result.stdout)
            assert plain.sql("SELECT op_name FROM nonfinite_tensor").fetchall() == [("Log",)]

    def test_json(self) -> None:
        content = json.loads(run_cli("schema", "--json").stdout)
        assert {"run", "tensor_health"} <= {table["name"] for table in content["tables"]}
        assert all(view["text"].startswith("-- One row is ") for view in content["views"])

    def test_errors_give_exit_code_2(self, tmp_path: Path) -> None:
        unknown = run_cli("schema", "nope")
        assert (unknown.exit_code, unknown.stderr.split(";")[0]) == (2, "tfdbg-arrow: 'nope' is not a table or view")
        assert run_cli("schema", "--sql", tmp_path / "missing").exit_code == 2
