"""Test the server: pages as HTML and JSON, errors, and new data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.errors import LogdirError, SettingError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.safe_text import to_json
from tfdbg_arrow.viewer import pages, rendering
from tfdbg_arrow.viewer.background import InTurn
from tfdbg_arrow.viewer.page import Parameters
from tfdbg_arrow.viewer.pages import PAGES
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.server import listen

from ..query.builder import NAN, RunBuilder
from . import logdirs
from .serving import Served, serving

QUERIES = {
    "executions": "?execution=0",
    "graph": "?event=3",
    "history": "?event=3",
    "provenance": "?event=6",
    "source": "?line=7",
    "tensor": "?event=6",
}


@pytest.mark.parametrize("kind", PAGES, ids=lambda kind: kind.name)
def test_every_page_is_also_available_as_json(kind: pages.PageKind, served: Served, path: Path) -> None:
    query = QUERIES.get(kind.name, "")
    html = served.ask(f"/{kind.name}{query}")
    assert (html.status, html.headers["content-type"]) == (200, "text/html; charset=utf-8")
    json = served.ask(f"/{kind.name}.json{query}")
    assert (json.status, json.headers["content-type"]) == (200, "application/json")
    parameters = Parameters(dict(pair.split("=") for pair in query.removeprefix("?").split("&") if pair))
    with open_logdir(path) as logdir:
        page = kind.read(logdir, parameters)
        if kind.complete is not None:
            page = kind.complete(InTurn(logdir, budget_s=1000), page, parameters)
        expected = to_json(page)
    # The number of rules that finish in time depends on the machine.
    changing = {"rules", "groups", "num_found", "silent_rules", "unfinished_rules"}
    assert {**json.json, **dict.fromkeys(changing)} == {**expected, **dict.fromkeys(changing)}
    assert json.json.keys() == expected.keys()
    assert served.ask(f"/{kind.name}{query or '?'}&format=json").json == json.json


def test_the_module_template_and_test_of_a_page_are_named_like_its_url() -> None:
    directory = Path(pages.__file__).parent
    for kind in PAGES:
        assert kind.read.__module__ == f"tfdbg_arrow.viewer.pages.{kind.name}"
        assert (directory / kind.template).is_file()
        assert (Path(__file__).parent / f"test_{kind.name}.py").is_file()


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("/nowhere.json", 404, "there is no page /nowhere.json"),
        ("/tensor.json?event=77", 404, "event 77 of run run-a is not a recorded tensor."),
        ("/tensor.json", 400, "the address has no event; add ?event=…."),
        ("/tensor.json?event=-1", 400, "event is '-1', expected a whole number from 0 on."),
        ("/tensors.json?at=99999999999999999999", 400, "expected a whole number from 0 on."),
        ("/tensors.json?scope=evil", 400, "scope is 'evil', expected one of graph, execution, external."),
        ("/executions.json?execution=7", 404, "execution 7 of run run-a was not recorded."),
        ("/executions.json?place=-1", 400, "place is '-1', expected a whole number from 0 on."),
        ("/alerts.json?rule=evil", 400, "rule is 'evil', expected one of"),
        ("/overview.json?run=evil", 404, "run 'evil' is not in"),
        ("/graph.json?graph=9", 404, "run run-a has no graph 9"),
        ("/graph.json?graph=0&op=x", 404, "graph 0 (loss) of run run-a has no op 'x'"),
        ("/provenance.json?event=99", 404, "event 99 of run run-a is not a recorded tensor."),
        ("/provenance.json?event=2", 400, "holds no infinity and no NaN"),
        (f"/tensors.json?name={'x' * 20_000}", 400, "name has 20,000 characters"),
    ],
)
def test_errors_as_json(served: Served, target: str, status: int, message: str) -> None:
    answer = served.ask(target)
    assert (answer.status, answer.json["error"]["status"]) == (status, status)
    assert message in answer.json["error"]["message"]
    html = served.ask(target.replace(".json", ""))
    assert (html.status, html.headers["content-type"]) == (status, "text/html; charset=utf-8")


@pytest.mark.slow
def test_a_page_shows_new_data(tmp_path: Path) -> None:
    logdirs.healthy(tmp_path)
    with serving(tmp_path) as served:
        assert served.ask("/overview.json").json["verdict"] == "healthy"
        run = RunBuilder("run-b")
        run.tensor(run.graph("f").op("x", "Mul"), "x", NAN)
        run.write(tmp_path)
        assert served.ask("/overview.json").json["verdict"] == "bad"


def test_a_healthy_page_is_complete_without_javascript(tmp_path: Path) -> None:
    with serving(logdirs.healthy(tmp_path)) as served:
        text = served.ask("/").text
    assert "Nothing is bad: none of 1 recorded tensors contains an infinity or a NaN." in text
    assert "<b>Not looked at:</b> 1 op outputs (op_regex)." in text


def test_errors_at_the_start_of_the_server(tmp_path: Path, served: Served) -> None:
    with pytest.raises(LogdirError):
        Reader(tmp_path / "nothing")
    reader = Reader(logdirs.healthy(tmp_path))
    with pytest.raises(SettingError, match=rf"cannot listen on 127\.0\.0\.1 port {served.port}"):
        listen(reader, token="t", port=served.port)
    with pytest.raises(SettingError, match=r"cannot listen on no\.such\.host\.invalid"):
        listen(reader, token="t", host="no.such.host.invalid")
    reader.close()


def test_templates_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(logdirs.log_of_zero(tmp_path)) as served:
        assert served.ask("/").status == 200
        monkeypatch.setattr(rendering, "PackageLoader", None)
        assert served.ask("/tensors").status == 200
