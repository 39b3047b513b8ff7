"""Test `tfdbg-arrow verify`: its output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from .commands import run_cli

PART = "tensor_health/run=run-a/part-000000.parquet"


def test_an_intact_logdir(healthy: Path) -> None:
    result = run_cli("verify", str(healthy))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{healthy}: nothing is damaged (runs: 1, ")
    found = json.loads(run_cli("verify", str(healthy), "--json").stdout)
    assert (found["is_intact"], found["verification"]["deviations"]) == (True, [])


def test_damage_is_named_and_counted(bad: Path) -> None:
    (bad / PART).unlink()
    (bad / "mark" / "\x1b[31mred").write_text("x")
    for number in range(1030):
        (bad / "mark" / f"extra-{number:04}").write_text("x")
    result = run_cli("verify", str(bad))
    assert result.exit_code == 1
    assert f"missing: {PART} is missing\n" in result.stdout
    assert "extra: mark/\\x1b[31mred is not a part of a run" in result.stdout
    assert "extra: and 1,011 more; see --json for the first 1,000\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith(f"{bad}: damage in 1,032 places (")
    result = run_cli("verify", str(bad), "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["is_intact"], found["verification"]["num_damaged"]) == (False, 1032)
    assert found["verification"]["deviations"][0] == {
        "kind": "missing", "path": PART, "run_id": "run-a", "what": "is missing",
    }  # fmt: skip


def test_a_path_that_cannot_be_verified_gives_an_error(tmp_path: Path) -> None:
    result = run_cli("verify", str(tmp_path))
    assert result.exit_code == 2
    assert "is an empty directory" in result.stderr
    result = run_cli("verify", "s3://bucket/logs")
    assert result.exit_code == 2
    assert "is a URL" in result.stderr
