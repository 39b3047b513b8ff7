"""Test `tfdbg-arrow sql`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from .commands import run_cli


class TestSql:
    QUERY = (
        "SELECT 'a,b' AS text, 'nan'::DOUBLE AS x, 1 AS n, NULL AS nothing, true AS yes, "
        r"'\x41\xC3\xBF'::BLOB AS b, [1] AS l"
    )

    def test_json(self, healthy: Path) -> None:
        for options in (("--json",), ("--format", "json")):
            result = run_cli("sql", healthy, self.QUERY, *options)
            assert result.exit_code == 0
            assert json.loads(result.stdout) == {
                "columns": ["text", "x", "n", "nothing", "yes", "b", "l"],
                "rows": [["a,b", "NaN", 1, None, True, "QcO/", [1]]],
            }

    def test_infinities_in_json_are_strings(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT unnest(['inf'::DOUBLE, '-inf'::DOUBLE, 1.5])", "--json")
        assert json.loads(result.stdout)["rows"] == [["Infinity"], ["-Infinity"], [1.5]]

    def test_csv(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, self.QUERY, "--format", "csv")
        assert list(csv.reader(io.StringIO(result.stdout))) == [
            ["text", "x", "n", "nothing", "yes", "b", "l"],
            ["a,b", "NaN", "1", "", "true", "QcO/", "[1]"],
        ]

    def test_table(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT 'x\x1b]0;[b]' AS \"a\x07\", NULL AS n, 20 AS many")
        assert [line.split() for line in result.stdout.splitlines()] == [
            ["a\\x07", "n", "many"],
            ["x\\x1b]0;[b]", "NULL", "20"],
        ]

    def test_a_long_cell_is_not_cut(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT repeat('x', 500) AS x, repeat('y', 500) AS y")
        assert result.stdout.splitlines()[1].split() == ["x" * 500, "y" * 500]

    def test_a_result_without_rows(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT label FROM mark")
        assert (result.exit_code, result.stdout.split(), result.stderr) == (0, ["label"], "")

    def test_a_wrong_statement_gives_exit_code_2(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT nothing FROM run")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("tfdbg-arrow: ")
        assert "Traceback" not in result.stderr

    def test_a_mark_in_an_error_is_below_its_column(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT 1,\n'\x1b[31m', '日',\tnothing FROM run")
        first, *_, line, mark = result.stderr.splitlines()
        assert first == 'tfdbg-arrow: Binder Error: Referenced column "nothing" not found in FROM clause!'
        assert line == r"    LINE 2: '\x1b[31m', '日',\tnothing FROM run"
        assert mark.strip() == "^" * len("nothing")
        assert mark.index("^") == line.index("nothing") + 1  # 日 is as wide as two letters

    def test_expanded_rows_have_a_line_for_each_column(self, healthy: Path) -> None:
        query = "SELECT 1 AS n, NULL AS nothing, 'a' AS text UNION ALL SELECT 2, NULL, 'b' ORDER BY n"
        assert run_cli("sql", healthy, query, "--expanded").stdout.splitlines() == [
            "row 1",
            "n        1",
            "nothing  NULL",
            "text     a",
            "row 2",
            "n        2",
            "nothing  NULL",
            "text     b",
        ]

    def test_rows_are_expanded_if_they_are_wider_than_the_terminal(
        self, healthy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.cli.output._WIDTH_OF_A_FILE", 9)
        assert run_cli("sql", healthy, "SELECT 'four' AS a, 'for' AS b").stdout.split() == ["a", "b", "four", "for"]
        wide = "SELECT 'four' AS a, 'three' AS b"
        assert run_cli("sql", healthy, wide).stdout == "row 1\na  four\nb  three\n"
        assert run_cli("sql", healthy, wide, "--no-expanded").stdout.split()[:2] == ["a", "b"]
