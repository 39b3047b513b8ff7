"""Test how answers are displayed in a notebook and in a terminal."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tfdbg_arrow.query as query
from tfdbg_arrow.query import HistoryRow, Logdir, open_logdir, read_reasons
from tfdbg_arrow.query.displayed import CUT_TEXT, Displayed, Rows
from tfdbg_arrow.query.model_health import layer_health, training_curves
from tfdbg_arrow.query.model_health.histograms import distributions
from tfdbg_arrow.query.present.html import MAX_BYTES, MAX_DRAWING_BYTES

from .builder import CLEAN, RunBuilder, counts

EVIL = "<script>alert(1)</script>\x1b[31m'\"&"


class Text(HTMLParser):
    """Reads the text and the tags of HTML.

    An unclosed tag is an error. An attribute other than `style` is also an error, unless it belongs to a shape of a
    drawing.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self._open = "", set[str](), list[str]()
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if "svg" in (tag, *self._open):
            assert not [name for name, _ in attributes if name.startswith("on") or "href" in name or name == "style"]
        else:
            assert {name for name, _ in attributes} <= {"style"}
        self.tags.add(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.text += f"{text} "


def bad_run(*, name: str = "Log", number: int = 1, run_id: str = "run-a") -> RunBuilder:
    run = RunBuilder(run_id)
    stack = run.stack((f"/home/me/{name}.py", 3, "loss", f"tf.math.log({name})", "user"))
    graph = run.graph(f"loss{name}").op("probs", "Softmax").op(name, "Log", inputs=["probs"], stack=stack, layer=name)
    for step in range(number):
        run.tensors(graph, {"probs": counts(zero=2, pos=4), name: counts(neg_inf=2, neg=4)})
        for row in run.rows["tensor_health"][-2:]:
            row["step"] = step
    return run


def good_run() -> RunBuilder:
    run = RunBuilder("run-b")
    graph = run.graph("lossLog").op("probs", "Softmax").op("Log", inputs=["probs"], layer="Log")
    run.tensors(graph, {"probs": counts(zero=2, pos=4), "Log": {**CLEAN, "step": 0}})
    return run


def answers(logdir: Logdir) -> Iterator[Any]:
    """Yields one answer for each public class of answers."""
    found = logdir.first_nonfinite()
    yield found
    assert found.inputs[0].health is not None
    yield found.inputs[0].health
    yield logdir.nonfinite()
    provenance = logdir.provenance(found.event_index)
    yield from (provenance, provenance.hops[0])
    spread = logdir.spread(found.event_index)
    yield from (spread, spread.hops[0])
    history = logdir.history(".*")
    yield from (history, history[0], history[:1])
    alerts = logdir.alerts()
    yield from (alerts, alerts.summary[0], alerts.findings[0], alerts.alerts[0])
    yield from (logdir.coverage(), logdir.info(), query.doctor(str(logdir.path)), logdir.verify())
    diff = logdir.diff(logdir.path)
    yield from (diff, logdir.history(""))
    health, curves = layer_health(logdir), training_curves(logdir)
    assert health is not None
    assert curves is not None
    yield from (health, curves)
    differences = logdir.layer_differences(logdir.path)
    assert differences is not None
    yield differences
    shares = logdir.distributions()
    assert shares is not None
    yield shares
    reasons = read_reasons(logdir, found.event_index, run_id=found.run_id)
    yield from (reasons, reasons.explanation)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logdir]:
    with open_logdir(bad_run().write(tmp_path_factory.mktemp("logdir"))) as opened:
        yield opened


def test_a_bad_tensor_has_the_words_of_the_command_line(logdir: Logdir) -> None:
    found = logdir.first_nonfinite()
    text = Text(found._repr_html_()).text
    for words in ("made -Inf", "Log:0 (Log)", "/home/me/Log.py:3", "tf.math.log(Log)", "layer", "Softmax", "2 zero, 4"):
        assert words in text
    assert repr(found) == "<NonFinite `tf.math.log(Log)` at Log.py:3 made -Inf in step 0. Event 1: Log:0 (Log)>"


@pytest.mark.slow
def test_every_answer_is_a_small_card_and_one_line(logdir: Logdir) -> None:
    for answer in answers(logdir):
        html = answer._repr_html_()
        assert Text(html).text.strip()
        limit = MAX_BYTES if "<svg" not in html else MAX_BYTES + MAX_DRAWING_BYTES
        assert len(html.encode()) <= limit
        assert "\n" not in repr(answer) or isinstance(answer, Rows)
        assert max(map(len, repr(answer).splitlines())) < 300


def test_layers_and_curves_are_drawings_and_without_the_viewer_tables(
    logdir: Logdir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    differences = logdir.layer_differences(good_run().write(tmp_path))
    shown = (logdir.layer_health(), logdir.training_curves(), differences)
    for answer in shown:
        assert {"svg", "path", "text"} <= Text(answer._repr_html_()).tags
    shares = distributions(Path(__file__).parents[1] / "compat" / "golden" / "2.3" / "full_numerics")
    assert {"svg", "path", "text"} <= Text(shares._repr_html_()).tags
    shown = (*shown, shares)
    for module in ("map_drawing", "line_drawing", "distribution_drawing"):
        monkeypatch.setitem(sys.modules, f"tfdbg_arrow.viewer.{module}", None)
    for answer in shown:
        assert "table" in Text(answer._repr_html_()).tags
        assert "svg" not in Text(answer._repr_html_()).tags


@pytest.mark.slow
def test_nothing_of_a_logdir_is_markup_or_controls_a_terminal(tmp_path: Path) -> None:
    with open_logdir(bad_run(name=EVIL * 30, number=3).write(tmp_path / "logdir")) as logdir:
        for answer in answers(logdir):
            html = answer._repr_html_()
            drawing = (
                {"svg", "g", "path", "rect", "text", "title", "line", "circle", "polyline"} if "<svg" in html else set()
            )
            assert Text(html).tags <= {"div", "span", "table", "tr", "th", "td", "pre"} | drawing
            assert len(html.encode()) <= MAX_BYTES + (MAX_DRAWING_BYTES if drawing else 0)
            assert "\x1b" not in html + repr(answer)


def test_long_answers_are_cut_and_say_so(tmp_path: Path) -> None:
    with open_logdir(bad_run(number=500).write(tmp_path / "logdir")) as logdir:
        rows = logdir.history(".*", limit=900)
        html = rows._repr_html_()
        assert len(html.encode()) <= MAX_BYTES
        num_shown = html.count("<tr>")
        assert f"… {900 - num_shown:,} more" in Text(html).text
        assert repr(rows).endswith(f",\n … 890 more,\n {CUT_TEXT}]")
        assert repr(rows).count("\n") == 11
        assert CUT_TEXT in Text(html).text
        for num_all, ask in ((1000, partial(logdir.history, ".*")), (500, logdir.nonfinite)):
            cuts = [ask(limit=limit).is_cut for limit in (0, num_all - 1, num_all)]
            assert (cuts, len(ask(limit=num_all))) == ([True, True, False], num_all)


def test_rows_are_a_list(logdir: Logdir) -> None:
    rows = logdir.history(".*")
    assert isinstance(rows, list)
    assert rows == list(rows)
    assert list(rows) == rows
    assert rows * 1 == rows
    assert (type(rows[:1]), rows[:1], rows[-1]) == (Rows, [rows[0]], list(rows)[1])
    assert pickle.loads(pickle.dumps(rows)) == copy.deepcopy(rows) == rows
    assert query.to_arrow(rows).num_rows == 2
    assert repr(Rows()) == "[]"
    assert "nothing was found" in Rows[HistoryRow]()._repr_html_()


def test_answers_keep_their_attributes_and_comparisons(logdir: Logdir) -> None:
    found = logdir.first_nonfinite()
    assert found is not None
    assert dataclasses.replace(found) == found == pickle.loads(pickle.dumps(found))
    assert found != dataclasses.replace(found, step=77)
    assert hash(found) == hash(dataclasses.replace(found))


@pytest.mark.slow
def test_every_displayed_class_of_the_package_is_tested(logdir: Logdir) -> None:
    shown = {type(answer) for answer in answers(logdir)}
    public = {kind for name in query.__all__ if isinstance(kind := getattr(query, name), type)}
    displayed = {kind for kind in public if issubclass(kind, Displayed)}
    untested = {kind.__name__ for kind in displayed - shown}
    assert untested <= {"TensorHop", "DiffTensor", "Growth"}  # base classes, and parts of answers


def test_a_difference_of_two_runs_names_both_sides(tmp_path: Path) -> None:
    a, b = bad_run().write(tmp_path / "a"), good_run().write(tmp_path / "b")
    with open_logdir(a) as logdir:
        found = logdir.diff(b)
    assert "The first divergence: Log:0 (Log)" in Text(found._repr_html_()).text
    assert repr(found).startswith("<Diff The first divergence: Log:0 (Log)")
    assert repr(found.divergence.a).startswith("<DiffTensor Log:0 (Log), in lossLog, step 0: float32 [6]: ")
