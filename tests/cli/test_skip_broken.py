"""Test `--skip-broken`: every reading command leaves out what is broken, and names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .commands import run_cli

PART = "tensor_health/run=run-a/part-000000.parquet"


@pytest.mark.parametrize(
    "command",
    [
        ("first-nonfinite",), ("why",), ("show", "{logdir}", ".*"), ("diff", "{logdir}", "{logdir}"), ("alerts",),
        ("check",), ("sql", "{logdir}", "SELECT * FROM tensor_health"), ("coverage",), ("info",),
        ("report", "{logdir}", "-o", "{logdir}.html"), ("export", "{logdir}", "{logdir}-export", "--csv"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_a_reading_command_leaves_out_a_broken_part_on_request(bad: Path, command: tuple[str, ...]) -> None:
    part = bad / (PART if command[0] != "coverage" else PART.replace("tensor_health", "graph_op_output"))
    content = bytearray(part.read_bytes())
    part.write_bytes(content[: len(content) // 2])
    name, *arguments = command
    words = [name, *(word.format(logdir=bad) for word in arguments or ["{logdir}"])]
    result = run_cli(*words)
    assert result.exit_code == 2
    assert f"{part} cannot be read as Parquet" in result.stderr
    assert "--skip-broken" in result.stderr
    result = run_cli(*words, "--skip-broken")
    # Two runs without any tensor have nothing to compare.
    assert result.exit_code in (0, 1) or command[0] == "diff", result.stderr
    assert f"left out 1 broken file of {bad} with 2 known rows: {part} has {len(content) // 2:,} bytes" in result.stderr
    if command[0] == "report":
        assert f"<b>1 broken file left out:</b> {part} has" in Path(f"{bad}.html").read_text()


def test_skip_broken_is_refused_for_an_export_as_a_dump(bad: Path) -> None:
    result = run_cli("export", str(bad), str(bad) + "-dump", "--debugger-v2", "--skip-broken")
    assert result.exit_code == 2
    assert "--skip-broken was given with --debugger-v2" in result.stderr
