"""Test the viewer in a real browser on a logdir of ten million tensors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tfdbg_arrow.query import open_logdir

from .browser import watched_page
from .serving import TOKEN, Served, serving

pytestmark = pytest.mark.exhaustive

GENERATE = Path(__file__).resolve().parents[2] / "benchmarks" / "generate_logdir.py"
NUM_ROWS = 10_000_000
NUM_RUNS = 2
NUM_WINDOWS = 12
"""The number of windows to scroll through. They have more rows than the document keeps."""
STEP = 2000
"""The training step to jump to."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a table in the bad run: their number, the first bad row, the first row of STEP, and the last row."""

    number: int
    first_bad: int
    first_of_step: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Large:
    """A server of the logdir, its bad run, and the expected contents of that run.

    Attributes:
        served: The server.
        run_id: The ID of the bad run.
        num_steps: The number of training steps.
        bad_mean: The event at which the loss is bad for the first time.
        rows: The rows of `tensors` and `executions`.
    """

    served: Served
    run_id: str
    num_steps: int
    bad_mean: int
    rows: dict[str, Rows]

    def open(self, page: Page, target: str) -> None:
        """Opens a page of the bad run."""
        page.goto(f"{self.served.url}{target}{'&' if '?' in target else '?'}run={self.run_id}&token={TOKEN}")


ROWS = """
SELECT count(*), min({index}) FILTER (step = ?), max({index}), max(step) + 1 FROM {table} WHERE run_id = ?
"""
FIRST_BAD = "SELECT min(event_index), min(execution_index) FROM tensor_health WHERE run_id = ? AND has_inf_or_nan"

BAD_MEAN = "SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND op_name = 'Mean' AND has_inf_or_nan"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    path = tmp_path_factory.mktemp("large") / "logdir"
    command = [sys.executable, str(GENERATE), str(path), "--rows", str(NUM_ROWS), "--runs", str(NUM_RUNS)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    expected = json.loads(path.with_name("logdir.json").read_text())
    assert expected["rows"] >= NUM_ROWS
    (run_id,) = expected["bad_runs"]
    rows, num_steps = {}, 0
    with open_logdir(path) as logdir:
        (first_bad,) = logdir.rows(FIRST_BAD, [run_id])
        ((bad_mean,),) = logdir.rows(BAD_MEAN, [run_id])
        tables = (("tensors", "tensor_health", "event_index"), ("executions", "execution", "execution_index"))
        for (name, table, index), bad in zip(tables, first_bad, strict=True):
            query = ROWS.format(table=table, index=index)
            ((number, first_of_step, last, num_steps),) = logdir.rows(query, [STEP, run_id])
            rows[name] = Rows(number=number, first_bad=bad, first_of_step=first_of_step, last=last)
    assert first_bad[0] == expected["event_index"]
    with serving(path) as served:
        yield Large(served=served, run_id=run_id, num_steps=num_steps, bad_mean=bad_mean, rows=rows)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with watched_page(browser, viewport={"width": 1280, "height": 800}) as opened:
        yield opened


def test_the_first_page_shows_the_origin(page: Page, large: Large) -> None:
    page.goto(f"{large.served.url}/?token={TOKEN}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("made -Inf")
    expect(page.locator(".verdict .pill.neg-inf")).to_be_in_viewport()
    expect(page.locator(".why")).to_contain_text("Log of 0")
    expect(page.locator(".chain .hop", has_text="Softmax:0")).to_be_in_viewport()
    expect(page.locator(".chain .origin", has_text="Log:0")).to_be_in_viewport()
    expect(page.locator(".excerpt .row.lit")).to_contain_text("log_probability = tf.math.log(probability)")
    expect(page.locator(".excerpt .row.lit")).to_be_in_viewport()


@pytest.mark.parametrize("name", ["tensors", "executions"])
def test_endless_scrolling_keeps_few_rows_in_the_document(page: Page, large: Large, name: str) -> None:
    large.open(page, f"/{name}")
    page.get_by_role("link", name="first", exact=False).first.click()  # the page opens at the first bad row
    page.wait_for_selector("tbody[data-before='0']", state="attached")
    for number in range(1, NUM_WINDOWS):
        page.evaluate("document.querySelector('[data-pane]').scrollBy(0, 100_000)")
        page.wait_for_selector(f"tbody[data-before='{100 * number}']", state="attached")
    assert page.locator("tr[data-at]").count() <= 600
    places = page.evaluate("[...document.querySelectorAll('tr[data-at]')].map(row => Number(row.dataset.at))")
    assert places == sorted(set(places))
    expect(page.locator("tr[data-at] [data-item]").last).to_have_text(re.compile(r"\w"))


@pytest.mark.parametrize(("name", "label"), [("tensors", "Event"), ("executions", "Execution")])
def test_jumps_to_places_steps_indexes_and_bad_rows(page: Page, large: Large, name: str, label: str) -> None:
    rows = large.rows[name]
    large.open(page, f"/{name}")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text(f"of {rows.number:,}")

    middle = rows.number // 2
    page.get_by_label(f"Place among all {rows.number:,} rows").fill(str(middle))
    expect(heading).to_contain_text(f"{middle + 1:,} to ")

    page.get_by_label("Step", exact=True).fill(str(STEP))
    page.get_by_role("button", name="Jump").click()
    page.wait_for_url(f"**step={STEP}**")
    expect(page.locator(f"tr[data-at='{rows.first_of_step}']")).to_be_in_viewport()
    expect(page.locator(f"tr[data-at='{rows.first_of_step}'] [data-label='Step']")).to_have_text(f"{STEP:,}")

    page.get_by_label(label, exact=True).fill(str(rows.first_bad))
    page.get_by_role("button", name="Jump").click()
    page.wait_for_url(f"**at={rows.first_bad}**")
    expect(page.locator(f"tr.bad[data-at='{rows.first_bad}']")).to_be_in_viewport()

    page.get_by_role("link", name="last").click()
    expect(page.locator(f"tr[data-at='{rows.last}']")).to_be_in_viewport()
    expect(heading).to_contain_text(f"to {rows.number:,} of {rows.number:,}")

    page.get_by_role("link", name="first", exact=False).first.click()
    expect(page.locator("tr[data-at='0']" if name == "executions" else "tr[data-at]").first).to_be_in_viewport()
    page.locator("[data-pane]").focus()
    page.keyboard.press("n")
    expect(page.locator("tr:has(:focus)")).to_have_attribute("data-at", str(rows.first_bad))
    expect(page.locator("tr:has(:focus)")).to_be_in_viewport()


def test_filters(page: Page, large: Large) -> None:
    large.open(page, "/tensors?op_type=Log")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"of {large.num_steps:,}")
    page.get_by_label("only bad").check()
    page.wait_for_url("**bad=1**")
    first = page.locator("tr[data-at]").first
    expect(first).to_have_attribute("data-at", str(large.rows["tensors"].first_bad))
    first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Log:0")
    expect(page.locator(".inputs")).to_contain_text("Softmax:0")


def test_details_of_an_execution_beside_the_list(page: Page, large: Large) -> None:
    index = large.rows["executions"].first_bad
    large.open(page, f"/executions?execution={index}")
    detail = page.locator("[data-detail]")
    expect(detail.get_by_role("heading", level=2).first).to_contain_text(f"execution {index:,}")
    expect(page.locator("tr[aria-current]")).to_be_in_viewport()
    page.get_by_label("next execution").click()
    expect(detail.get_by_role("heading", level=2).first).to_contain_text(f"execution {index + 1:,}")


def test_walking_the_graph_around_the_origin(page: Page, large: Large) -> None:
    large.open(page, f"/graph?event={large.rows['tensors'].first_bad}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Log")
    picture = page.locator(".picture")
    expect(picture.get_by_role("link", name=re.compile("^Mul mul_1; bad"))).to_be_visible()
    picture.get_by_role("link", name=re.compile("^Softmax Softmax")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Softmax Softmax in loss")
    page.keyboard.press("s")
    expect(page.locator(".row.lit")).to_contain_text("probability = tf.nn.softmax(")


def test_the_history_of_an_op_over_all_steps(page: Page, large: Large) -> None:
    large.open(page, f"/history?event={large.rows['tensors'].first_bad}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Log:0 over time")
    expect(page.locator("main")).to_contain_text(f"{large.num_steps:,} tensors")
    expect(page.locator(".plot .area").first).to_be_visible()


def test_the_provenance_of_a_bad_loss(page: Page, large: Large) -> None:
    large.open(page, f"/provenance?event={large.bad_mean}")
    origin = page.locator(".chain .origin").first
    expect(origin).to_contain_text("Log:0")
    expect(origin).to_contain_text("log_probability = tf.math.log(probability)")
    expect(page.locator(".chain .propagator").last).to_contain_text("Mean:0")


def test_the_page_of_runs(page: Page, large: Large) -> None:
    page.goto(f"{large.served.url}/runs?token={TOKEN}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"{large.run_id} went bad first")
    expect(page.locator("main .rows tbody tr")).to_have_count(NUM_RUNS)
    expect(page.locator("main")).to_contain_text(f"{large.rows['tensors'].number:,}")
    page.locator("[data-bad]").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Log:0")


def test_alerts_name_the_origin_first(page: Page, large: Large) -> None:
    large.open(page, "/alerts")
    expect(page.locator("[data-bad]").first).to_be_visible()  # the rules run in the background
    page.keyboard.press("n")
    expect(page.locator(":focus")).to_have_text("Log:0")
