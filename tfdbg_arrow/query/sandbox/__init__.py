"""Sandbox: SQL of whoever asks over one logdir of whoever wrote it, each question in a process of its own.

In that process DuckDB is locked (`worker`): it opens the parts that hold and no other file, loads nothing, sees nothing
of Python and cannot be set otherwise. The process has bounds of time, memory and answer, and ends with its question:
what goes wrong in it goes wrong there.
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
"""What the process may take to start and to open the logdir, beside the time of the query."""


class SandboxBusyError(TfdbgArrowError):
    """Another question is being answered."""


@dataclass(frozen=True, kw_only=True)
class SandboxColumn:
    """A column of an answer: its name, and its type in Arrow's words."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class SandboxAnswer:
    """The rows that a SELECT gave.

    Attributes:
        columns: The columns.
        rows: The rows, values as `to_json` has them.
        is_cut: Whether there are more rows than were wanted or fitted.
    """

    columns: tuple[SandboxColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool


class Sandbox:
    """Answers SQL over a logdir, one SELECT at a time.

    Args:
        path: The logdir's path or URL.
        timeout_s: Seconds that a query may take.
        memory_limit: Bytes that DuckDB may take; the process as a whole gets 2 GB more of address space.
        max_rows: Rows of an answer.
        skip_broken: Whether to leave out parts that are broken.
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
        """Whether a question is being answered."""
        return self._slot.locked()

    def ask(self, query: str) -> SandboxAnswer:
        """Returns the first rows that a SELECT gives.

        Args:
            query: One SELECT in DuckDB's SQL, over the tables and views of the logdir.

        Raises:
            QueryError: It is not one SELECT, DuckDB refuses it, or it needs more time or memory than there is for it.
            SandboxBusyError: Another one is being answered.
        """
        answer = self._answer(query, as_csv=False)
        return SandboxAnswer(
            columns=tuple(SandboxColumn(**column) for column in answer["columns"]),
            rows=tuple(tuple(row) for row in answer["rows"]),
            is_cut=answer["is_cut"],
        )

    def csv(self, query: str) -> str:
        """Returns what a SELECT gives as CSV, in the form of `export --format csv`, with as many rows as `ask` gives.

        Args:
            query: As for `ask`.

        Raises:
            QueryError: As for `ask`.
            SandboxBusyError: As for `ask`.
        """
        return str(self._answer(query, as_csv=True)["csv"])

    def _answer(self, query: str, *, as_csv: bool) -> Mapping[str, Any]:
        if not self._slot.acquire(blocking=False):
            raise SandboxBusyError("another query is being answered; ask again when it is done.")
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
        # What a process that is ended leaves behind goes with the directory.
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
                return {"error": f"the query took longer than {self._timeout_s:g} seconds and was ended."}
        try:
            answer: Mapping[str, Any] = json.loads(done.stdout)
        except ValueError:
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            return {"error": f"the query's process ended with {how}, as it does when memory runs out. {last}".strip()}
        return answer
