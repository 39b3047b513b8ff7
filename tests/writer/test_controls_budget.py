"""The budget `max_bytes=`: which rows are kept, which rows are dropped, and what `capture_stat` says."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.spool.convert import EVENT_TABLES
from tfdbg_arrow.storage.manifest import read_live_parts

from .tables import rows

MIB = 1 << 20
VALUES = np.random.default_rng(5).normal(size=(48, 8, 1024)).astype(np.float32)  # 32 KiB each, not compressible


def negate(values: np.ndarray[Any, Any]) -> None:
    tf.raw_ops.Neg(x=tf.constant(values))


def run_long(*, bad: dict[int, float] | None = None, flush: bool = True, logdir: Path | None = None) -> int:
    """Records one execution for each step, with 64 KiB of elements. Returns the maximum size of events on disk."""
    most = 0
    for step, values in enumerate(VALUES):
        tfdbg_arrow.mark(step=step)
        if bad and step in bad:
            values = values.copy()
            values[0, 0] = bad[step]
        negate(values)
        if flush and step % 3 == 2:
            tfdbg_arrow.flush()
        if logdir is not None:
            most = max(most, size_of_events(logdir))
    return most


def size_of_events(logdir: Path) -> int:
    return sum(path.stat().st_size for name in EVENT_TABLES for path in (logdir / name).rglob("*.parquet"))


def steps_of(logdir: Path, name: str = "tensor_health") -> set[int]:
    return {row["step"] for row in rows(logdir, name)}


def kept(logdir: Path) -> dict[tuple[int, str], tuple[Any, ...]]:
    values = {row["event_index"]: row["value"] for row in rows(logdir, "tensor_value")}
    return {
        (row["step"], row["scope"]): (row["num_nan"], row["size"], row["op_type"], values[row["event_index"]])
        for row in rows(logdir, "tensor_health")
    }


def check_manifest(logdir: Path) -> None:
    """Checks that the manifest matches the parts on disk."""
    (run,) = rows(logdir, "run")
    live = read_live_parts(logdir, run_id=run["run_id"])
    for entry in live:
        content = (logdir / entry.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.bytes, entry.sha256)
        assert ds.dataset(logdir / entry.path).count_rows() == entry.rows
    found = {str(path.relative_to(logdir)) for name in EVENT_TABLES for path in (logdir / name).rglob("*.parquet")}
    assert found == {entry.path for entry in live if entry.table in EVENT_TABLES}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording without a budget."""
    logdir = tmp_path_factory.mktemp("complete")
    with tfdbg_arrow.capture(logdir, "FULL_TENSOR"):
        run_long()
    return logdir


@pytest.mark.slow
@pytest.mark.parametrize("flush", [True, False])
def test_the_first_and_the_last_are_kept_and_the_middle_is_dropped(flush: bool, complete: Path, tmp_path: Path) -> None:
    logdir = tmp_path / "some"
    with tfdbg_arrow.capture(logdir, "FULL_TENSOR", max_bytes=MIB):
        most = run_long(flush=flush, logdir=logdir)
    assert most <= MIB
    assert MIB // 2 < size_of_events(logdir) <= MIB
    steps = steps_of(logdir)
    # A batch may end between an execution and its tensors.
    assert len(steps ^ steps_of(logdir, "execution")) <= 2
    missing = sorted(set(range(len(VALUES))) - steps)
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert 3 < missing[0] < missing[-1] < len(VALUES) - 1
    # The kept rows equal the same rows of an unbounded recording.
    full = kept(complete)
    some = kept(logdir)
    assert some == {key: full[key] for key in some}
    check_manifest(logdir)
    assert rows(logdir, "run")[0]["is_clean_end"]


@pytest.mark.slow
def test_dropped_rows_are_listed_exactly(complete: Path, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path / "some", "FULL_TENSOR", max_bytes=MIB):
        run_long()
    stats = {row["subject"]: row for row in rows(tmp_path / "some", "capture_stat")}
    assert stats.pop("events")["num_events"] is None
    assert {row["stat"] for row in stats.values()} == {"dropped"}
    for name in EVENT_TABLES:
        lost = len(rows(complete, name)) - len(rows(tmp_path / "some", name))
        # No op failed, and no inputs were kept, so these tables have no rows to drop.
        assert (f"table {name}" in stats) == (name not in ("execution_error", "input_value", "step_input")), name
        assert stats.get(f"table {name}", {"num_events": 0})["num_events"] == lost, name
    (reason,) = {row["reason"] for row in stats.values()}
    ranges = re.findall(r"(\d+) to (\d+)", reason)
    events = {row["event_index"] for row in rows(complete, "tensor_health")}
    left = {row["event_index"] for row in rows(tmp_path / "some", "tensor_health")}
    dropped = {event for event in events if any(int(first) <= event <= int(last) for first, last in ranges)}
    assert dropped == events - left
    with tfdbg_arrow.open_logdir(tmp_path / "some") as opened:
        assert any("the middle of the run was dropped" in text for text in opened.runs()[0].left_out)


@pytest.mark.slow
def test_the_first_of_each_kind_of_bad_value_is_never_dropped(tmp_path: Path) -> None:
    bad = {19: float("inf"), 25: float("nan"), 29: float("nan")}
    with tfdbg_arrow.capture(tmp_path, "FULL_TENSOR", max_bytes=MIB):
        run_long(bad=bad)
    steps = steps_of(tmp_path)
    assert {19, 25} <= steps
    assert not {16, 22, 29} & steps
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert (found.num_pos_inf, found.num_nan, found.size) == (1, 0, VALUES[0].size)
    # The inf came from outside. An earlier, dropped event could have made the inf.
    assert (found.op_type, found.is_origin) == (None, False)
    nan = tfdbg_arrow.first_nan(tmp_path)
    assert nan is not None
    assert nan.num_nan == 1
    check_manifest(tmp_path)
    assert size_of_events(tmp_path) <= MIB


@pytest.mark.slow
def test_small_batches_are_merged(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, max_bytes=MIB):
        for number in range(80):
            negate(np.float32([number]))
            tfdbg_arrow.flush()
        assert len(list((tmp_path / "tensor_health").rglob("*.parquet"))) < 60
    assert sorted(row["execution_index"] for row in rows(tmp_path, "execution")) == list(range(80))
    assert rows(tmp_path, "capture_stat") == []
    check_manifest(tmp_path)


def test_a_tensor_larger_than_the_budget_is_dropped_and_reported(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, "FULL_TENSOR", max_bytes=MIB):
        tf.raw_ops.Neg(x=tf.constant(VALUES.reshape(-1)))
        negate(VALUES[0])
    assert size_of_events(tmp_path) <= MIB
    assert [row["size"] for row in rows(tmp_path, "tensor_health")][-2:] == [VALUES[0].size] * 2
    assert "table tensor_value" in {row["subject"] for row in rows(tmp_path, "capture_stat")}
    check_manifest(tmp_path)


def test_a_circular_buffer_stays_within_the_budget(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, "FULL_TENSOR", circular_buffer_size=2, max_bytes=MIB):
        for number in range(24):
            negate(VALUES[number])
            tfdbg_arrow.flush()
        assert size_of_events(tmp_path) <= MIB
    executions = [row["execution_index"] for row in rows(tmp_path, "execution")]
    assert executions[0] == 0
    assert executions[-1] == max(executions)
    assert "max_bytes" in {row["reason_code"] for row in rows(tmp_path, "capture_stat")}
    check_manifest(tmp_path)
