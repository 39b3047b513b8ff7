"""The garbage collector leaves the objects of TensorFlow's import out for a minute."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tfdbg_arrow.writer import import_garbage
from tfdbg_arrow.writer.import_garbage import frozen_at_end


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


class _Clock:
    """Replaces the module `time`."""

    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Clock]:
    callbacks = list(gc.callbacks)
    clock = _Clock()
    monkeypatch.setattr(import_garbage, "time", clock)
    yield clock
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.enable()


def test_garbage_of_the_block_is_freed_at_its_end(clock: _Clock) -> None:
    cycle = weakref.ref(_Cycle())
    with frozen_at_end():
        assert not gc.isenabled()
        assert cycle() is not None
    assert gc.isenabled()
    assert cycle() is None


def test_objects_come_back_after_a_minute(clock: _Clock) -> None:
    cycle = _Cycle()
    with frozen_at_end():
        pass
    assert gc.get_freeze_count() > 0
    before, after = weakref.ref(cycle), weakref.ref(_Cycle())
    del cycle
    gc.collect()
    assert (before() is None, after() is None) == (False, True)
    clock.now_s += 60
    gc.collect()
    assert before() is None
    assert gc.get_freeze_count() == 0


def test_objects_that_the_program_freezes_stay_frozen(clock: _Clock) -> None:
    with frozen_at_end():
        pass
    objects = [_Cycle() for _ in range(1_000)]
    gc.freeze()
    clock.now_s += 60
    gc.collect()
    assert gc.get_freeze_count() >= len(objects)


def test_a_program_that_turned_the_collector_off_keeps_it_off(clock: _Clock) -> None:
    gc.disable()
    with frozen_at_end():
        pass
    assert not gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_failed_import_freezes_nothing(clock: _Clock) -> None:
    with pytest.raises(ImportError), frozen_at_end():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
