"""Test that the copy of a run at a URL is always readable, whatever fails, and finally equals the run."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.durability.parts_on_disk import marks
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.location import RemoteLocation, parse_location
from tfdbg_arrow.storage.manifest import read_live_parts
from tfdbg_arrow.writer.remote.transfer import RemoteRun, Transfer, mark_remote
from tfdbg_arrow.writer.sink.parts import PartWriter

from .stores import PROTOCOLS, Store, events_in, live_in, store


class StoreFailedError(Exception):
    pass


@pytest.fixture
def remote_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with store("place") as made:
        yield made


class Copying:
    """A run that is written and copied in turns. After each request it checks what a reader would find."""

    def __init__(self, logdir: Path, store: Store, protocol: str) -> None:
        self.logdir, self.store = logdir, store
        self.run = RemoteRun()
        self.parts = PartWriter(logdir, "r", merge_parts=3, on_change=self.run.change)
        self.parts.start()
        location = parse_location(f"{protocol}://place/log")
        assert isinstance(location, RemoteLocation)
        self.remote = location.open()
        self.transfer = Transfer(self.run, run_id="r", local=logdir, remote=self.remote)
        self.seen: set[int] = set()
        self.num_written = self.num_failures = self.num_lost = 0
        self.is_marked = False
        store.after = self.check

    def check(self) -> None:
        events = events_in(self.store.files, "r")
        assert len(set(events)) == len(events), "a row is duplicated"
        assert self.seen.issubset(events), "a row has disappeared"
        self.seen.update(events)

    def write(self) -> None:
        self.parts.write("mark", marks(self.num_written, self.num_written + 1))
        self.num_written += 2
        self.parts.merge_small("mark")

    def drop(self) -> None:
        """Drops the oldest unsent rows."""
        drop = self.run.oldest_drop()
        if drop is not None:
            self.num_lost += sum(drop.lost_rows.values())
            self.parts.drop([entry.path for entry in drop.removed], drop.restored)

    def release(self) -> None:
        """Removes local files of parts that are in the store."""
        self.parts.release(frozenset(list(self.run.published)[:2]))

    def step(self) -> bool:
        try:
            if not self.is_marked:
                mark_remote(self.remote)
                self.is_marked = True
            return self.transfer.step()
        except StoreFailedError:
            self.num_failures += 1
            self.check()
            return True

    def finish(self) -> None:
        for _ in range(1000):
            if not self.step():
                break
        else:
            pytest.fail("the copy does not finish")
        assert self.run.is_complete
        live = read_live_parts(self.logdir, run_id="r")
        assert set(live_in(self.store.files, "r")) == set(live)
        names = {f"log/{entry.path}" for entry in live} | {"log/tfdbg_arrow.json", "log/manifest/r.jsonl"}
        assert set(self.store.files) == names, "the store has unexpected or missing files"
        events = events_in(self.store.files, "r")
        assert set(events) <= set(range(self.num_written))
        assert len(events) == self.num_written - self.num_lost


def story(copying: Copying, moments: random.Random) -> None:
    """Writes, merges, replaces and compacts, while the copy falls behind and catches up."""
    for _ in range(10):
        copying.write()
        for _ in range(moments.choice((0, 0, 1, 3, 9))):
            copying.step()
    copying.parts.write("run", run_table())
    for _ in range(moments.choice((0, 2))):
        copying.step()
    for table in copying.parts.tables:
        copying.parts.compact(table)
    copying.finish()


def run_table() -> pa.Table:

    return arrow_schema("run").empty_table()


def before(number: int) -> Callable[[int, str], None]:
    def fault(request: int, name: str) -> None:
        if request == number:
            raise StoreFailedError(f"request {number}, {name}")

    return fault


def after(number: int) -> Callable[[int, str], Callable[[], None] | None]:
    """Returns a fault that lets the request succeed and loses its response."""

    def fault(request: int, name: str) -> Callable[[], None] | None:
        def lost() -> None:
            raise StoreFailedError(f"the answer to request {number}, {name}")

        return lost if request == number else None

    return fault


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fault", [before, after])
def test_any_single_request_can_fail_without_loss(
    tmp_path: Path, remote_store: Store, protocol: str, fault: Callable[[int], Callable[[int, str], None]]
) -> None:
    story(Copying(tmp_path / "whole", remote_store, protocol), random.Random(0))
    num_requests = remote_store.num_requests
    assert num_requests > 20
    for number in range(num_requests):
        remote_store.files.clear()
        remote_store.num_requests = 0
        remote_store.fault = fault(number)
        copying = Copying(tmp_path / str(number), remote_store, protocol)
        story(copying, random.Random(0))
        assert copying.num_failures == 1, number
    remote_store.fault = lambda request, name: None


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_dropped_and_local_files_removed_while_requests_fail(
    tmp_path: Path, remote_store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("tfdbg_arrow.writer.remote.transfer.EVENT_TABLES", frozenset({"mark"}))
    chance = random.Random(seed)
    remote_store.fault = lambda request, name: before(request)(request, name) if chance.random() < 0.3 else None
    copying = Copying(tmp_path, remote_store, PROTOCOLS[seed % 2])
    for _ in range(25):
        action = chance.choice(
            (copying.write, copying.write, copying.step, copying.step, copying.drop, copying.release)
        )
        action()
    for table in copying.parts.tables:
        copying.parts.compact(table)
    if seed % 3 == 0:
        copying.drop()
    copying.finish()


@pytest.mark.parametrize("seed", range(12))
def test_many_requests_fail_at_random(tmp_path: Path, remote_store: Store, seed: int) -> None:
    chance = random.Random(seed)
    faults = (before, after)

    def fault(request: int, name: str) -> Callable[[], None] | None:
        return chance.choice(faults)(request)(request, name) if chance.random() < 0.4 else None

    remote_store.fault = fault
    story(Copying(tmp_path, remote_store, PROTOCOLS[seed % 2]), random.Random(seed))
