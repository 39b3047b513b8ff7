"""Test pages while a program records: new data appears without a reload, complete and without errors."""

from __future__ import annotations

import contextlib
import re
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.storage.layout import MARKER_NAME

from ..programs.running import Program, start_python
from .browser import chromium, watched_page
from .serving import TOKEN, Served, serving

pytestmark = pytest.mark.exhaustive

PROGRAM = """
    import select, sys, time
    import tensorflow as tf
    import tfdbg_arrow

    @tf.function
    def halved(x):
        return x * 0.5

    def told():
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return sys.stdin.readline().strip() if ready else None

    with tfdbg_arrow.capture(sys.argv[1]):
        x, step = tf.constant([4.0, 9.0]), 0
        while (word := told()) != "end":
            if word == "bad":
                x = -x
            tfdbg_arrow.mark(step=step)
            halved(tf.sqrt(x))
            tfdbg_arrow.flush()
            step += 1
            time.sleep(0.25)
"""
"""Records steps until it reads `end`. Once it has read `bad`, it takes the square root of negative numbers."""
WAIT_S = 60
WAIT_MS = 1000 * WAIT_S


@contextlib.contextmanager
def recording(directory: Path) -> Iterator[tuple[Program, Path]]:
    """Yields a recording program and its logdir."""
    script, logdir = directory / "program.py", directory / "logdir"
    script.write_text(textwrap.dedent(PROGRAM))
    with start_python(script, logdir, stdin=subprocess.PIPE) as program:
        try:
            until = time.monotonic() + WAIT_S
            while not (logdir / MARKER_NAME).exists():
                assert program.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            yield program, logdir
        finally:
            program.kill()


def tell(program: Program, word: str) -> None:
    assert program.stdin is not None
    program.stdin.write(word + "\n")
    program.stdin.flush()


def num_rows(page: Page) -> int:
    """Returns the total number of rows in the heading of the page."""
    found = re.search(r"([\d,]+)$", page.get_by_role("heading", level=1).inner_text())
    assert found is not None
    return int(found[1].replace(",", ""))


def more_rows(page: Page, number: int) -> int:
    """Waits until the total number of rows on the page exceeds `number`, and returns it."""
    heading = page.get_by_role("heading", level=1)
    expect(heading).not_to_have_text(re.compile(rf"(?<![\d,]){number:,}$"), timeout=WAIT_MS)
    assert num_rows(page) > number
    return num_rows(page)


def count_whole_rows(served: Served, name: str) -> int:
    """Requests the last rows of a page, checks that they are complete, and returns the total number of rows."""
    answer = served.ask(f"/{name}.json?before={2**63 - 1}")
    assert answer.status == 200
    assert all(row["wall_time_ns"] and (row["op_type"] or row["scope"] == "external") for row in answer.json["rows"])
    number: int = answer.json["num_matching"]
    return number


def test_pages_follow_a_recording_program(tmp_path: Path) -> None:
    failed: list[str] = []

    def watch(page: Page, target: str) -> Page:
        page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
        page.goto(f"{served.url}{target}?token={TOKEN}")
        page.evaluate("window.isSamePage = true")
        return page

    with recording(tmp_path) as (program, logdir), serving(logdir) as served, contextlib.ExitStack() as stack:
        browser = stack.enter_context(chromium())
        pages = [
            watch(stack.enter_context(watched_page(browser)), target) for target in ("/", "/tensors", "/executions")
        ]
        overview, *lists = pages
        shown = [more_rows(page, 0) for page in lists]
        expect(overview.get_by_role("heading", level=1)).to_contain_text("Nothing is bad", timeout=WAIT_MS)
        counts = [count_whole_rows(served, name) for name in ("tensors", "executions")]
        for page, number in zip(lists, shown, strict=True):
            more_rows(page, number)
        later = [count_whole_rows(served, name) for name in ("tensors", "executions")]
        assert all(before < after for before, after in zip(counts, later, strict=True))

        tell(program, "bad")
        expect(overview.get_by_role("heading", level=1)).to_contain_text("made NaN", timeout=WAIT_MS)
        expect(overview.locator(".excerpt .row.lit")).to_contain_text("halved(tf.sqrt(x))")
        tell(program, "end")
        assert program.wait(WAIT_S) == 0

        with open_logdir(logdir) as opened:
            ((num_tensors,),) = opened.rows("SELECT count(*) FROM tensor_health")
            ((num_executions,),) = opened.rows("SELECT count(*) FROM execution")
        for page, number in zip(lists, (num_tensors, num_executions), strict=True):
            expect(page.get_by_role("heading", level=1)).to_contain_text(f"of {number:,}", timeout=WAIT_MS)
            page.keyboard.press("n")
            expect(page.locator(":focus")).to_contain_text("Sqrt")
        assert all(page.evaluate("window.isSamePage") for page in pages)
        assert failed == []
