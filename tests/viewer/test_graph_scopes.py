"""Test the model graph: a graph by its layers and scopes, down to the ops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.display.graph_scopes import MAX_OPS_OF_SCOPE, ScopeGraph, scope_graph

from ..query.builder import CLEAN, NAN, RunBuilder
from .browser import watched_page
from .serving import TOKEN, Served, serving

OPS = (
    # name, type, inputs, layer, role
    ("x", "Placeholder", [], None, None),
    ("net_1/dense_1/w", "ReadVariableOp", [], "net/dense", "forward"),
    ("net_1/dense_1/MatMul", "MatMul", ["x", "net_1/dense_1/w"], "net/dense", "forward"),
    ("net_1/act_1/Relu", "Relu", ["net_1/dense_1/MatMul"], "net/act", "forward"),
    ("loss/Log", "Log", ["net_1/act_1/Relu"], None, "loss"),
    ("loss/Mean", "Mean", ["loss/Log"], None, "loss"),
    ("tape/act_1/ReluGrad", "ReluGrad", ["loss/Mean", "net_1/act_1/Relu"], "net/act", "gradient"),
    ("tape/dense_1/MatMul", "MatMul", ["tape/act_1/ReluGrad", "x"], "net/dense", "gradient"),
    ("adam/add", "AddV2", ["tape/dense_1/MatMul"], None, "optimizer"),
)


def training(path: Path) -> Path:
    """Writes a run of a training step. `Log` in the loss makes a NaN, so the gradients are bad."""
    run = RunBuilder("run-a")
    graph = run.graph("step")
    for name, op_type, inputs, layer, role in OPS:
        graph.op(name, op_type, inputs)
        run.rows["graph_op"][-1].update(layer=layer, role=role)
    for name, health in (("net_1/dense_1/MatMul", CLEAN), ("net_1/act_1/Relu", CLEAN), ("loss/Log", NAN)):
        run.tensor(graph, name, health)
    for name in ("loss/Mean", "tape/act_1/ReluGrad", "tape/dense_1/MatMul", "adam/add"):
        run.tensor(graph, name, NAN)
    return run.write(path)


def large(path: Path, *, num_ops: int = 5_000) -> Path:
    """Writes a run of a chain of ops. Half of the ops are in 50 scopes, the rest in one scope. The last op is bad."""
    run = RunBuilder("run-a")
    graph = run.graph("big").op("x", "Placeholder")
    before = "x"
    for number in range(num_ops - 1):
        scope = f"block{number // 50}" if number < num_ops // 2 else "flat"
        name = f"{scope}/op{number}"
        graph.op(name, "Neg", [before])
        before = name
    run.tensor(graph, before, NAN)
    return run.write(path)


def scopes(path: Path, open_ids: tuple[int, ...] | None = None, **settings: int) -> ScopeGraph:
    with open_logdir(path) as logdir:
        return scope_graph(logdir, run_id="run-a", graph_id=0, open_ids=open_ids, **settings)


def edges(model: ScopeGraph) -> list[tuple[str, str, int, int]]:
    def name(place: int) -> str:
        node = model.nodes[place]
        return f"{node.side or ''} {node.name}".strip()

    return [(name(edge.source), name(edge.target), edge.num_tensors, edge.num_bad) for edge in model.edges]


def test_folded_scopes_are_layers_gradient_sides_and_roles(tmp_path: Path) -> None:
    model = scopes(training(tmp_path), (0,))
    rows = [(node.kind, node.name, node.side, node.num_ops, node.health.state) for node in model.nodes]
    assert rows == [
        ("scope", "other ops", None, 1, "not recorded"),
        ("scope", "net", None, 3, "healthy"),
        ("scope", "loss", None, 2, "bad"),
        ("scope", "net", "gradient", 2, "bad"),
        ("scope", "optimizer", None, 1, "bad"),
    ]
    assert [node.health.num_bad for node in model.nodes] == [0, 0, 2, 2, 1]
    assert edges(model) == [
        ("other ops", "net", 1, 0),
        ("other ops", "gradient net", 1, 0),
        ("net", "loss", 1, 0),
        ("net", "gradient net", 1, 0),
        ("loss", "gradient net", 1, 1),
        ("gradient net", "optimizer", 1, 1),
    ]


def test_layers_are_unfolded_at_first_and_scopes_unfold_down_to_the_ops(tmp_path: Path) -> None:
    path = training(tmp_path)
    at_first = scopes(path)
    assert [(scope.name, scope.side) for scope in at_first.open_scopes] == [("net", None), ("net", "gradient")]
    dense = next(node for node in at_first.nodes if node.name == "dense" and node.side is None)
    assert dense.scope_id is not None
    model = scopes(path, (*at_first.open_ids, dense.scope_id))
    inside = [(node.op_name, node.op_type) for node in model.nodes if node.outer_id == dense.scope_id]
    assert inside == [("net_1/dense_1/w", "ReadVariableOp"), ("net_1/dense_1/MatMul", "MatMul")]
    assert sum(node.num_ops for node in model.nodes) == len(OPS)
    # A scope is shown only if the scopes around it are unfolded.
    assert scopes(path, (dense.scope_id, 999)).open_scopes == ()


def test_the_number_of_nodes_is_bounded(tmp_path: Path) -> None:
    path = large(tmp_path)
    folded = scopes(path)
    assert (len(folded.nodes), folded.num_ops) == (52, 5_000)
    flat = next(node for node in folded.nodes if node.name == "flat")
    assert flat.scope_id is not None
    model = scopes(path, (flat.scope_id,))
    assert len(model.nodes) == 51 + MAX_OPS_OF_SCOPE + 1
    (rest,) = [node for node in model.nodes if node.kind == "rest"]
    assert (rest.name, rest.health.num_bad) == ("2,439 more ops", 0)
    assert [node.op_name for node in model.nodes if node.health.num_bad] == ["flat/op4998"]
    everything = scopes(path, tuple(range(1, 52)))
    assert len(everything.nodes) <= 300
    assert everything.no_room
    assert sum(node.num_ops for node in everything.nodes) == 5_000


def test_a_scope_is_unfolded_and_folded_with_links_without_javascript(tmp_path: Path) -> None:
    with serving(training(tmp_path)) as served:
        text = served.ask("/graph?graph=0&open=0").text

        def link(label: str) -> str:
            (found,) = set(re.findall(f'href="([^"]*)" aria-label="{label}"', text))
            return unescape(found)

        text = served.ask(link("unfold net")).text
        text = served.ask(link("unfold act")).text
        assert "/graph?run=run-a&amp;graph=0&amp;op=net_1%2Fact_1%2FRelu" in text
        assert link("fold act") != link("fold net")
        text = served.ask(link("fold net")).text
        assert "unfold net" in text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(training(tmp_path_factory.mktemp("logdir"))) as server:
        yield server


def opened(page: Page, served: Served, query: str) -> None:
    page.goto(f"{served.url}/graph?graph=0{query}&token={TOKEN}")
    expect(page.locator(".picture svg")).to_be_visible()


@pytest.mark.slow
def test_keys_and_clicks_unfold_and_fold_in_place(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "&open=0")
        page.evaluate("window.isSame = true")
        boxes, frames = page.locator(".picture .box"), page.locator(".picture .frame")
        expect(boxes).to_have_count(5)
        net = page.get_by_role("link", name=re.compile("^net;"))
        net.click()
        expect(boxes).to_have_count(5)  # one click selects
        net.dblclick()
        expect(frames).to_have_count(1)
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^dense;"))
        page.keyboard.press("Enter")
        expect(frames).to_have_count(2)
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^ReadVariableOp w; .*dense_1"))
        page.keyboard.press("-")
        expect(frames).to_have_count(1)
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^dense;"))
        page.keyboard.press("+")
        expect(frames).to_have_count(2)
        page.get_by_role("link", name=re.compile("^fold net;")).click()
        expect(frames).to_have_count(0)
        page.get_by_role("link", name=re.compile("^loss;")).locator(".unfold").click()
        log = page.get_by_role("link", name=re.compile("^Log Log;.*loss.Log;"))
        expect(log).to_have_attribute("data-bad", "")
        page.go_back()
        expect(frames).to_have_count(0)
        page.go_forward()
        assert page.evaluate("window.isSame") is True
        log.click()
        page.wait_for_url("**op=loss%2FLog**")


@pytest.mark.slow
def test_going_forward_while_the_boxes_are_placed_is_not_lost(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "&open=0")
        frames = page.locator(".picture .frame")
        page.get_by_role("link", name=re.compile("^net;")).dblclick()
        expect(frames).to_have_count(1)
        page.evaluate(
            """() => {
                const observer = new MutationObserver(() => {
                    if (!document.querySelector(".picture .is-waiting")) return;
                    observer.disconnect();
                    history.forward();
                    document.body.dataset.hasGoneForward = "";
                });
                observer.observe(document.body, { childList: true, subtree: true });
                history.back();
            }"""
        )
        expect(page.locator("body[data-has-gone-forward]")).to_be_attached()
        expect(frames).to_have_count(1)
        expect(page.locator(".picture .is-waiting")).to_have_count(0)


@pytest.mark.slow
def test_a_large_graph_has_a_minimap_and_does_not_freeze(browser: Browser, tmp_path: Path) -> None:
    with serving(large(tmp_path)) as served, watched_page(browser) as page:
        opened(page, served, "&open=" + ",".join(map(str, range(1, 52))))
        expect(page.locator("#model .warn")).to_contain_text("No room to unfold")
        assert page.locator(".picture .box").count() <= 300
        minimap, holder = page.locator(".minimap"), page.locator(".picture")
        expect(minimap).to_be_visible()
        expect(minimap.locator(".cross")).to_have_count(1)
        holder.evaluate("(e) => e.scrollTo(0, 0)")
        minimap.scroll_into_view_if_needed()
        box = minimap.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2)
        expect(minimap.locator(".view")).not_to_have_attribute("y", "0")
        assert holder.evaluate("(e) => e.scrollTop") > 0
