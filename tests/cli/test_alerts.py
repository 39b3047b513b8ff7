"""Test `tfdbg-arrow alerts`."""

from __future__ import annotations

import json
from pathlib import Path

from .commands import run_cli


class TestAlerts:
    def test_a_finding_gives_exit_code_1(self, bad: Path) -> None:
        result = run_cli("alerts", bad)
        assert result.exit_code == 1
        summary, _, findings = result.stdout.partition("\n\n")
        assert [line.split() for line in summary.splitlines()] == [
            ["rule", "steps", "alerts", "places"],
            ["error", "nonfinite_origin", "1", "1"],
            ["warning", "nonfinite", "1", "1"],
        ]
        assert findings.startswith("error nonfinite_origin: Log:0 (Log) in loss\\x07\n    A bad value originated here")
        assert "warning nonfinite: Log:0 (Log)" in result.stdout

    def test_a_healthy_logdir_gives_exit_code_0(self, healthy: Path) -> None:
        result = run_cli("alerts", healthy)
        assert (result.exit_code, result.stdout) == (0, "No rule found anything.\n")

    def test_findings_beyond_the_limit_are_counted(self, bad: Path) -> None:
        result = run_cli("alerts", bad, "--limit", "0")
        assert result.exit_code == 1
        assert result.stdout.partition("\n\n")[2] == (
            "2 more findings are not shown (1 of nonfinite_origin, 1 of nonfinite); --limit raises the limit.\n"
        )

    def test_json(self, bad: Path) -> None:
        content = json.loads(run_cli("alerts", bad, "--rule", "nonfinite", "--json").stdout)
        assert content["num_found"] == {"nonfinite": 1}
        assert [alert["op_name"] for alert in content["alerts"]] == ["Log"]
        assert content["summary"] == [
            {
                "kind": "nonfinite",
                "severity": "warning",
                "num_alerts": 1,
                "num_places": 1,
                "first_step": None,
                "last_step": None,
            }
        ]

    def test_check_gives_the_exit_code_for_ci(self, bad: Path, healthy: Path) -> None:
        assert run_cli("check", bad).exit_code == 1
        clean = run_cli("check", healthy)
        assert (clean.exit_code, clean.stdout) == (0, "Nothing found by nonfinite_origin.\n")
        assert run_cli("check", bad, "--rule", "shape_change").exit_code == 0
        assert run_cli("check", bad, "--rule", "shape_change", "--set", "shape_change.num_shapes=1").exit_code == 1

    def test_errors_give_exit_code_2(self, bad: Path) -> None:
        for arguments in (["--rule", "nope"], ["--set", "nope"], ["--set", "overflow_near.bits=x"]):
            result = run_cli("alerts", bad, *arguments)
            assert result.exit_code == 2
            assert result.stderr.startswith("tfdbg-arrow: ")
