"""Sandbox: runs untrusted SQL over an untrusted logdir, each query in a separate process.

In that process, DuckDB is locked (`worker`): it opens only the live parts, loads no extensions, cannot access Python
objects, and its settings cannot be changed. The time, the memory and the size of the answer are limited. The process
ends after one query, so a failure affects no other query.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import QueryError, TfdbgArrowError

_ATTEMPTS = 3
_GRACE_S = 10.0
"""Seconds that the process may take to start and to open the logdir, in addition to the query's time."""


class SandboxBusyError(TfdbgArrowError):
    """Another query is running."""


@dataclass(frozen=True, kw_only=True)
class SandboxColumn:
    """A column of an answer: its name, and Arrow's name of its type."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class SandboxAnswer:
    """The rows that a SELECT returned.

    Attributes:
        columns: The columns.
        rows: The rows, with values converted by `to_json`.
        is_cut: Whether rows are missing because of the limits.
    """

    columns: tuple[SandboxColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool


class Sandbox:
    """Answers SQL over a logdir, one SELECT at a time.

    Args:
        path: The logdir's path or URL.
        timeout_s: Maximum time of a query in seconds.
        memory_limit: How many bytes DuckDB may use. The process as a whole gets 2 GB more of address space.
        max_rows: Maximum number of rows of an answer.
        skip_broken: Whether to leave out broken parts.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        timeout_s: float = 20.0,
        memory_limit: int = 512 << 20,
        max_rows: int = 1000,
        skip_broken: bool = False,
    ) -> None:
        self._settings = {
            "path": str(path),
            "timeout_s": timeout_s,
            "memory_limit": memory_limit,
            "max_rows": max_rows,
            "skip_broken": skip_broken,
        }
        self._timeout_s = timeout_s
        self._slot = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a query is running."""
        return self._slot.locked()

    def ask(self, query: str) -> SandboxAnswer:
        """Returns the first rows of a SELECT.

        Args:
            query: One SELECT in DuckDB's SQL, over the tables and views of the logdir.

        Raises:
            QueryError: It is not one SELECT, DuckDB refuses it, or it needs more time or memory than the limits allow.
            SandboxBusyError: Another query is running.
        """
        answer = self._answer(query, as_csv=False)
        return SandboxAnswer(
            columns=tuple(SandboxColumn(**column) for column in answer["columns"]),
            rows=tuple(tuple(row) for row in answer["rows"]),
            is_cut=answer["is_cut"],
        )

    def csv(self, query: str) -> str:
        """Returns as many rows as `ask` as CSV, in the form of `export --format csv`.

        Args:
            query: As for `ask`.

        Raises:
            QueryError: As for `ask`.
            SandboxBusyError: As for `ask`.
        """
        return str(self._answer(query, as_csv=True)["csv"])

    def _answer(self, query: str, *, as_csv: bool) -> Mapping[str, Any]:
        if not self._slot.acquire(blocking=False):
            raise SandboxBusyError("another query is running; try again when it is done.")
        try:
            for _ in range(_ATTEMPTS):
                answer = self._ask_process({**self._settings, "query": query, "as_csv": as_csv})
                if "is_stale" not in answer:
                    break
            if "error" in answer:
                raise QueryError(answer["error"])
            return answer
        finally:
            self._slot.release()

    def _ask_process(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        command = [sys.executable, "-P", "-m", "tfdbg_arrow.query.sandbox.worker"]
        # The directory is removed with the files that a killed process leaves.
        with tempfile.TemporaryDirectory(prefix="tfdbg_arrow_sql_") as scratch:
            try:
                done = subprocess.run(
                    command,
                    input=json.dumps(request).encode(),
                    capture_output=True,
                    timeout=self._timeout_s + _GRACE_S,
                    check=False,
                    env={**os.environ, "TMPDIR": scratch},
                )
            except subprocess.TimeoutExpired:
                return {"error": f"the query took longer than {self._timeout_s:g} seconds and was stopped."}
        try:
            answer: Mapping[str, Any] = json.loads(done.stdout)
        except ValueError:
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            return {"error": f"the query's process ended with {how}; it may have run out of memory. {last}".strip()}
        return answer
