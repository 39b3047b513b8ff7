"""A reader of the format that uses only Polars and the specification. The reader finds the origins of bad values.

The module uses no code of tfdbg_arrow. The reader tests whether `spec/README.md` and `spec/tables.md` are enough to
answer the main question: which op made the first NaN or infinity? The reader reads any logdir on a local disk.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars

from tests.spec_reader.flow import TAKING, Flow, Row, Tensor

MAJOR_VERSION = 2
_RUN_ID = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_RECIPROCAL = re.compile(r"ConstantFolding/.+_recip")
_CHECKSUM = re.compile(rb', "checksum": "([0-9a-f]{8})"\}\n?$')
_SUMS = frozenset({"Sum", "Mean", "ExpandDims", "Reshape", "Squeeze", "Transpose", "Identity", "StopGradient"})
_PIPELINE_ENDS = ("Iterator", "MultiDeviceIterator", "OptionalGetValue", "DatasetToSingleElement")


class FormatError(Exception):
    """The directory is not a logdir, or the logdir is damaged."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """An op output with a kind of bad value that no input of the op has."""

    run_id: str
    event_index: int
    op_type: str | None
    op_name: str | None
    graph_name: str | None
    output_slot: int | None
    kinds: frozenset[str]
    line: str | None


def _lines(path: Path) -> Iterator[Row]:
    """Checks the lines of a manifest or of the marker, and yields them as objects."""
    before = zlib.crc32(b"")
    lines = path.read_bytes().splitlines(keepends=True)
    for line in lines:
        found = _CHECKSUM.search(line)
        is_damaged = found is None or zlib.crc32(line[: found.start()], before) != int(found[1], 16)
        try:
            content = json.loads(line)
        except ValueError:
            is_cut = not line.endswith(b"\n") or line.startswith(b"\0\0") or bytes(512) in line
            if line is lines[-1] and is_cut:
                return
            raise FormatError(f"{path} is damaged") from None
        if is_damaged or not isinstance(content, dict):
            raise FormatError(f"{path} is damaged")
        before = zlib.crc32(line, before)
        yield content


def _live_parts(logdir: Path, manifest: Path) -> dict[str, Row]:
    """Returns the `add` entries of the live parts of a run, by path."""
    run_id = manifest.stem
    if not _RUN_ID.fullmatch(run_id):
        raise FormatError(f"{run_id!r} is not a run id")
    live: dict[str, Row] = {}
    for line in _lines(manifest):
        added = [line] if line["op"] == "add" else line["added"]
        for path in line.get("removed", ()):
            live.pop(path, None)
        for part in added:
            expected = rf"{re.escape(part['table'])}/run={re.escape(run_id)}/part-\d{{6,}}\.parquet"
            path = part["path"]
            if not re.fullmatch(expected, path) or not (logdir / path).resolve().is_relative_to(logdir.resolve()):
                raise FormatError(f"{manifest} names {path!r}")
            live[path] = part
    return live


def _read_parts(logdir: Path, manifest: Path) -> dict[str, polars.DataFrame]:
    """Returns the rows of a run, by table."""
    parts = defaultdict(list)
    for path, part in _live_parts(logdir, manifest).items():
        content = (logdir / path).read_bytes()
        if hashlib.sha256(content).hexdigest() != part["sha256"]:
            raise FormatError(f"{path} is damaged")
        parts[part["table"]].append(polars.read_parquet(io.BytesIO(content), hive_partitioning=False))
    return {table: polars.concat(frames, how="diagonal") for table, frames in parts.items()}


def open_logdir(logdir: Path) -> list[Run]:
    """Reads all runs of a logdir, in the order of their start.

    Raises:
        FormatError: The directory is not a logdir of major version 2, or the logdir is damaged.
    """
    marker = logdir / "tfdbg_arrow.json"
    if not marker.is_file():
        raise FormatError(f"{logdir} has no tfdbg_arrow.json")
    version = next(_lines(marker))["format_version"]
    if int(version.split(".")[0]) != MAJOR_VERSION:
        raise FormatError(f"{logdir} has format {version}; install a newer version of this reader")
    runs = []
    for manifest in (logdir / "manifest").glob("*.jsonl"):
        try:
            tables = _read_parts(logdir, manifest)
        except FileNotFoundError:
            tables = _read_parts(logdir, manifest)  # a part was replaced after the manifest was read
        runs.append(Run(manifest.stem, tables))
    return sorted(runs, key=lambda run: run.start)


class Run(Flow):
    """One run, with methods that find its origins and its first origin."""

    @functools.cache  # noqa: B019
    def origins(self) -> dict[Tensor, frozenset[str]]:
        """Returns the origins with the kinds of bad values that each origin made, in the order of `event_index`."""
        found = {}
        for tensor, row in self.health.items():
            made = self.kinds_of_row(row)
            if made:
                made -= frozenset().union(*map(self.kinds, [*self.inputs(tensor), *self.behind_exponentials(tensor)]))
            if made:
                found[tensor] = made
        return found

    def first(self) -> Origin | None:
        """Returns the first origin in the order of the program. Skips origins into which another origin flows."""
        origins = self.origins()
        for tensor in sorted(origins, key=self.position):
            before = itertools.chain(self.ancestors(tensor), self.unlinked(tensor))
            if not any(source in origins for source in before):
                return self.describe(tensor, origins[tensor])
        return None

    def behind_exponentials(self, tensor: Tensor) -> list[Tensor]:
        """Returns the -Inf tensors behind a Log of zeros, if these zeros are the exponentials of the -Inf elements."""
        row = self.health[tensor]
        if row["op_type"] != "Log" or not row["num_neg_inf"] or row["num_nan"] or row["num_pos_inf"]:
            return []
        found: list[Tensor] = []
        waiting = self.nearest_rows(tensor)
        seen = {tensor}
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            op_type, nearest = self.health[at]["op_type"], self.nearest_rows(at)
            num_zero = 0 if self.health[at]["num_subnormal"] else self.health[at]["num_zero"]
            if op_type == "Exp" and num_zero and [self.health[each]["num_neg_inf"] for each in nearest] == [num_zero]:
                found += nearest
            elif op_type in _SUMS and nearest:
                waiting += nearest
            else:
                return []
        return found

    def nearest_rows(self, tensor: Tensor) -> list[Tensor]:
        """Returns the nearest tensors with a row from which a tensor was computed."""
        return [source for source in self.ancestors(tensor, is_through_rows=False) if source in self.health]

    def unlinked(self, tensor: Tensor) -> list[Tensor]:
        """Returns the tensors from which a tensor may have been computed, although no row links the two.

        Such a tensor is an element of a pipeline, the result of a call without rows, or was in a TensorArray or a
        stack.
        """
        row = self.health[tensor]
        is_call = row["op_type"] in self._graph_of and (row["execution_index"], -1) not in self._roots
        rows = itertools.takewhile(lambda item: item[1]["event_index"] < row["event_index"], self.health.items())
        if is_call or (row["op_type"] or "").startswith(_PIPELINE_ENDS):
            return [source for source, other in rows if other["scope"] == "graph" and other["execution_index"] is None]
        if tensor.context is None or TAKING.fullmatch(row["op_type"] or "") is None:
            return []
        stored = self.stored(tensor.context.graph_id)
        here = (row["graph_id"], row["execution_index"])
        return [
            source
            for source, other in rows
            if (other["graph_id"], other["execution_index"]) == here and source.op in stored
        ]

    def position(self, tensor: Tensor) -> tuple[Any, ...]:
        """Returns a sort key: it puts tensors into the order in which the program computes them."""
        row = self.health[tensor]
        is_in_graph = tensor.context is not None and tensor.context.step_id is not None
        is_known = is_in_graph or row["execution_index"] in self._executions
        order = self._order(tensor.context, tensor.op if is_in_graph else row["execution_index"]) if is_known else ()
        phase = {"gradient": 1, "optimizer": 2}.get(self.code(tensor).get("role") or "", 0)
        start = order[0] if order else row["event_index"]
        return start, phase, order[1:], row["output_slot"] or 0, row["event_index"]

    def ancestors(self, tensor: Tensor, *, is_through_rows: bool = True) -> Iterator[Tensor]:
        """Yields the tensors from which a tensor was computed, without the tensor itself.

        Args:
            tensor: The tensor.
            is_through_rows: Whether to follow tensors that have a row, too.
        """
        seen = {tensor}
        waiting = [tensor]
        while waiting:
            for source in self.inputs(waiting.pop()):
                if source not in seen:
                    seen.add(source)
                    yield source
                    if is_through_rows or source not in self.health:
                        waiting.append(source)

    def kinds(self, tensor: Tensor) -> frozenset[str]:
        """Returns the kinds of bad values in a tensor, or in its nearest ancestors with rows if it has no row."""
        if tensor in self.health:
            return self.kinds_of_row(self.health[tensor])
        nearest = self.ancestors(tensor, is_through_rows=False)
        return frozenset().union(
            *(self.kinds_of_row(self.health[source]) for source in nearest if source in self.health)
        )

    def describe(self, tensor: Tensor, kinds: frozenset[str]) -> Origin:
        """Returns an origin with its names and the line of the user's innermost frame."""
        row = self.health[tensor]
        return Origin(
            run_id=self.run_id,
            event_index=row["event_index"],
            op_type=row["op_type"],
            op_name=row["op_name"],
            graph_name=self._graphs.get(row["graph_id"], {}).get("graph_name"),
            output_slot=row["output_slot"],
            kinds=kinds,
            line=self._lines_of_stacks.get(self.code(tensor).get("stack_trace_id")),
        )

    def code(self, tensor: Tensor) -> Row:
        """Returns the row of the op or of the execution that made a tensor."""
        row = self.health[tensor]
        if tensor.context is None:
            return self._executions.get(row["execution_index"], {})
        node = self._node(tensor) or {}
        divisions = self._divisions_by(node) if _RECIPROCAL.fullmatch(row["op_name"]) and node else []
        if divisions:
            return min(divisions, key=lambda op: op["op_index"])
        names = (row["op_name"], node.get("made_for"))
        return next((self._ops[row["graph_id"], name] for name in names if (row["graph_id"], name) in self._ops), {})

    def _divisions_by(self, reciprocal: Row) -> list[Row]:
        """Returns the program's divisions that the optimizer replaced by products with a reciprocal, given its node."""
        graph_id = reciprocal["executed_graph_id"]
        edges = [edge for (of_graph, _), edges in self._node_edges.items() if of_graph == graph_id for edge in edges]
        users = (
            self._node_of_name[graph_id, edge["node_name"]]
            for edge in edges
            if edge["source_node_name"] == reciprocal["node_name"] and not edge["is_control"]
        )
        ops = (self._ops.get((user["graph_id"], user["op_name"])) for user in users)
        return [op for op in ops if op is not None and op["op_type"] in ("Div", "RealDiv")]

    @functools.cached_property
    def _lines_of_stacks(self) -> dict[int | None, str]:
        frames = self._by("stack_frame", "stack_frame_id")
        lines: dict[int | None, str] = {}
        for row in sorted(self.rows("stack_trace"), key=lambda row: row["depth"]):
            frame = frames.get(row["stack_frame_id"])
            if frame is not None and frame["owner"] == "user":
                lines.setdefault(row["stack_trace_id"], f"{frame['file_path']}:{frame['lineno']}")
        return lines

    @staticmethod
    def kinds_of_row(row: Row) -> frozenset[str]:
        """Returns the kinds of bad values in a row."""
        if row["num_nan"] is None:  # CURT_HEALTH does not tell the kinds apart
            return frozenset(("nan", "inf") if row["has_inf_or_nan"] else ())
        is_infinite = (row["num_neg_inf"] or 0) + (row["num_pos_inf"] or 0) > 0
        return frozenset(("nan",) * (row["num_nan"] > 0) + ("inf",) * is_infinite)
