"""Test that commands import only the packages that they need, because imports take most of their time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SLOW = ("asyncio", "duckdb", "jinja2", "numpy", "pandas", "polars", "pyarrow", "rich", "starlette", "tensorflow")
GOLDEN = Path(__file__).parents[1] / "compat" / "golden" / "2.3" / "full_numerics"


def imported(*words: str) -> tuple[int, set[str]]:
    """Runs a command, and returns its exit code and which of SLOW it imported."""
    code = (
        f"import sys; sys.argv = ['tfdbg-arrow', *{list(words)!r}]\n"
        "from tfdbg_arrow.cli import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, set(done.stderr.splitlines()[-1].split()) & set(SLOW)


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("alerts", "--help")], ids=" ".join)
def test_help_imports_nothing_slow(words: tuple[str, ...]) -> None:
    assert imported(*words) == (0, set())


@pytest.mark.slow
def test_an_answer_imports_duckdb_and_what_prints() -> None:
    assert imported("first-nonfinite", str(GOLDEN)) == (1, {"duckdb", "rich"})
    assert imported("first-nonfinite", str(GOLDEN), "--json") == (1, {"duckdb"})
