"""Test the tab in TensorBoard: the viewer's pages for the logdirs below TensorBoard's logdir, and who may read them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Frame, Page, Request, expect
from tensorboard.plugins.base_plugin import TBContext

from tfdbg_arrow.storage.search import LogdirBelow, LogdirsBelow
from tfdbg_arrow.tensorboard_plugin.plugin import Loader, Plugin
from tfdbg_arrow.viewer.logdir_search import LogdirSearch, key_of
from tfdbg_arrow.viewer.pages import PAGES
from tfdbg_arrow.viewer.security import FRAMED_HEADERS, Hosts

from ..query.builder import NAN, RunBuilder
from . import logdirs
from .serving import Answer, Served, serving

MOUNT = "/data/plugin/tfdbg_arrow"
QUERIES = {
    "graph": "?event=3",
    "history": "?event=3",
    "provenance": "?event=6",
    "source": "?line=7",
    "tensor": "?event=6",
}
_FIRST_MS = 40_000
"""How long the browser waits for the first page, which loads the viewer and DuckDB."""
# Without TensorFlow, which TensorBoard imports if it is installed.
PROGRAM = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
from tensorboard import default, program
from tfdbg_arrow.tensorboard_plugin.plugin import Loader
board = program.TensorBoard(plugins=[*default.get_static_plugins(), Loader])
board.configure(argv=[None, "--load_fast=false", "--host=127.0.0.1", "--port=0", *sys.argv[1:]])
url = board.launch()
loaded = [name for name in ("duckdb", "jinja2", "starlette", "tensorflow") if name in sys.modules]
print(url, *loaded, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def board(*arguments: object) -> Iterator[tuple[Served, list[str]]]:
    """Yields a running TensorBoard, and the large packages that it had loaded when it began to serve.

    At the end, checks that the plugin logged no error and that DuckDB's connections were closed.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url, *loaded = process.stdout.readline().split()
            yield Served(urlsplit(url).port or 0, ""), loaded
        finally:
            process.stdin.close()
            process.wait(30)
            process.stdout.close()
        log.seek(0)
        text = log.read()
        assert "Traceback" not in text, text
        assert "leaked" not in text, text
        assert "become an error" not in text, text


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one logdir, two levels down."""
    path = tmp_path_factory.mktemp("logs")
    logdirs.log_of_zero(path / "fit" / "health")
    return path


@pytest.fixture(scope="module")
def started(logs: Path) -> Iterator[tuple[Served, list[str]]]:
    with board("--logdir", logs) as found:
        yield found


@pytest.fixture(scope="module")
def served(started: tuple[Served, list[str]]) -> Served:
    return started[0]


@pytest.fixture(scope="module")
def root(logs: Path) -> str:
    return f"{MOUNT}/{key_of(logs / 'fit' / 'health')}"


def followed(served: Served, target: str) -> Answer:
    """Returns the answer at the end of redirects."""
    for _ in range(3):
        answer = served.ask(target)
        if answer.status != 303:
            return answer
        target = urljoin(target, answer.headers["location"])
    raise AssertionError(f"{target} redirects again")


def test_the_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["tensorboard_plugins"]
    assert [EntryPoint(name, value, "tensorboard_plugins").load() for name, value in points.items()] == [Loader]


def test_tensorboard_starts_without_duckdb_and_lists_the_tab(started: tuple[Served, list[str]]) -> None:
    served, loaded = started
    assert loaded == []
    assert served.ask("/data/plugins_listing").json["tfdbg_arrow"] == {
        "disable_reload": True,
        "enabled": True,
        "loading_mechanism": {"type": "IFRAME", "module_path": f"{MOUNT}/index.js"},
        "remove_dom": False,
        "tab_name": "Tensor Health",
    }


@pytest.mark.slow
def test_the_only_logdir_opens_by_itself(served: Served) -> None:
    answer = followed(served, f"{MOUNT}/logdirs")
    assert answer.status == 200
    assert "<code>log_probs = tf.math.log(probs)</code> at train.py:7 made -Inf in step 1." in answer.text
    assert ">Logdirs<" not in answer.text


def content(answer: Answer) -> str:
    """Returns a page with links from the root. Its queries are left out, because they depend on the cache."""
    assert "card questions" in answer.text
    return re.sub(r'("|&#34;)\./', r"\1/", answer.text.partition('<details class="card questions"')[0])


@pytest.mark.slow
def test_every_page_is_that_of_the_viewer(served: Served, root: str, logs: Path) -> None:
    with serving(logs / "fit" / "health") as viewer:
        for kind in PAGES:
            target = f"/{kind.name}{QUERIES.get(kind.name, '')}"
            twin = target.replace(kind.name, f"{kind.name}.json")
            shown, expected = served.ask(root + target), viewer.ask(target)
            assert (kind.name, shown.status) == (kind.name, expected.status)
            # The number of rules that finish in time depends on the machine.
            if kind.name not in ("alerts", "overview"):
                assert content(shown) == content(expected)
                assert served.ask(root + twin).json == viewer.ask(twin).json
            assert not re.findall(r'(?:href|src|action)="/[^"]*"', shown.text)
        assert served.ask(f"{root}/state.json").json == viewer.ask("/state.json").json
        assert served.ask(f"{root}/static/viewer.css").body == viewer.ask("/static/viewer.css").body
    assert served.ask(f"{root}/sql").status == served.ask(f"{root}/sql.csv?query=SELECT+1").status == 404


@pytest.mark.parametrize(
    "target", ["/nowhere", "/0123456789abcdef/tensors", "/0123456789abcdef/a/b", "/static/nothing"]
)
def test_pages_of_errors_find_their_style_and_the_way_back(served: Served, target: str) -> None:
    answer = served.ask(MOUNT + target)
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    style, back = re.search(r'href="([^"]*viewer\.css)"', answer.text), re.search(r'href="([^"]*)">To the', answer.text)
    assert style is not None
    assert back is not None
    assert served.ask(urljoin(MOUNT + target, style[1])).status == 200
    assert followed(served, urljoin(MOUNT + target, back[1])).status == 200


TARGETS = (
    "logdirs",
    "logdirs.json",
    "state.json",
    "static/viewer.css",
    "{key}/",
    "{key}/tensors.json",
    "{key}/nowhere",
)
REQUESTS: list[tuple[int, dict[str, str]]] = [
    (400, {"host": "evil.test"}),
    (400, {"host": "127.0.0.1.evil.test:6006"}),
    (403, {"sec_fetch_site": "cross-site"}),
    (403, {"sec_fetch_site": "same-site"}),
    (403, {"origin": "http://evil.test"}),
    (403, {"origin": "null"}),
    (403, {"origin": "http://127.0.0.1:1"}),
    (405, {"method": "POST"}),
    (405, {"method": "OPTIONS"}),
]


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_requests_are_refused(served: Served, root: str, target: str) -> None:
    address = f"{MOUNT}/{target.format(key=root.rpartition('/')[2])}"
    for status, request in REQUESTS:
        refused = served.ask(address, **request)  # type: ignore[arg-type]
        assert (refused.status, refused.headers["content-type"]) == (status, "text/plain; charset=utf-8"), request
        assert FRAMED_HEADERS.items() <= refused.headers.items()
    answer = served.ask(address, origin=served.url, sec_fetch_site="same-origin")
    assert answer.status in (200, 303, 404)
    assert FRAMED_HEADERS.items() <= answer.headers.items()


def test_the_headers_allow_only_the_server_itself_to_frame_the_pages() -> None:
    policy = FRAMED_HEADERS["content-security-policy"]
    assert policy.endswith("frame-ancestors 'self'")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert FRAMED_HEADERS["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.parametrize(
    "target",
    [
        "/../../../etc/passwd",
        "/static/../../secret.txt",
        "/static/%2e%2e/%2e%2e/secret.txt",
        "/static/%252e%252e%252fsecret.txt",
        "/static//etc/passwd",
        "/%00",
        "/..%5csecret.txt",
        "/%c0%ae%c0%ae/secret.txt",
    ],
)
def test_invalid_paths_are_refused(served: Served, root: str, target: str) -> None:
    for address in (MOUNT + target, root + target):
        answer = served.ask(address)
        assert answer.status in (400, 404)
        assert b"root:" not in answer.body


@pytest.mark.slow
def test_further_host_names_are_named_by_a_flag(logs: Path) -> None:
    with board("--logdir", logs, "--tfdbg_arrow_hosts", "hub.test, Other.test") as (served, _):
        status = {
            host: served.ask(f"{MOUNT}/state.json", host=host).status
            for host in ("hub.test", "other.test:443", "127.0.0.1:6006", "evil.test", "10.0.0.1:6006")
        }
    assert status == {
        "hub.test": 200,
        "other.test:443": 200,
        "127.0.0.1:6006": 200,
        "evil.test": 400,
        "10.0.0.1:6006": 400,
    }


@pytest.mark.parametrize(
    ("address", "allowed", "refused"),
    [
        ("localhost", ["localhost:6006", "127.0.0.1", "[::1]:1"], ["10.0.0.1", "[::2]", "evil.test", "0.0.0.0"]),
        ("0.0.0.0", ["localhost", "10.0.0.1:6006", "[fe80::1]:6006"], ["evil.test", "10.0.0.1.evil.test", "10.1", ""]),
        ("Hub.test", ["hub.test:1", "HUB.test"], ["localhost", "10.0.0.1", "evil.test"]),
        ("fe80::1", ["[fe80::1]:1"], ["[fe80::2]:1", "fe80"]),
    ],
)
def test_the_hosts_of_an_address(address: str, allowed: list[str], refused: list[str]) -> None:
    hosts = Hosts.of(address)
    assert [host for host in allowed if not hosts.allow(host)] == []
    assert [host for host in refused if hosts.allow(host)] == []


@pytest.mark.slow
def test_several_logdirs_are_listed(tmp_path: Path) -> None:
    names = ("a/bad", "b healthy", "c/<script>")
    logdirs.log_of_zero(tmp_path / names[0])
    logdirs.healthy(tmp_path / names[1])
    logdirs.healthy(tmp_path / names[2])
    with board("--logdir", tmp_path) as (served, _):
        page = served.ask(f"{MOUNT}/logdirs.json").json
        rows = {row["name"]: row for row in page["rows"]}
        assert rows.keys() == set(names)
        assert {name: (row["summary"]["num_runs"], row["summary"]["is_bad"]) for name, row in rows.items()} == {
            names[0]: (1, True),
            names[1]: (1, False),
            names[2]: (1, False),
        }
        html = served.ask(f"{MOUNT}/logdirs").text
        assert "3 logdirs, 1 with a NaN or an infinity" in html
        assert "<script>" not in html.replace('<script src="static', "")
        for name, sentence in zip(names, ("made -Inf", "Nothing is bad", "Nothing is bad"), strict=True):
            assert rows[name]["url"] in html
            text = served.ask(f"{MOUNT}/{rows[name]['url']}").text
            assert sentence in text
            assert 'href="../logdirs"' in text


def watched(page: Page) -> list[str]:
    """Returns a list that collects the errors of the plugin's pages, and all requests to other machines."""
    wrong: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        # TensorBoard's own script warns about Three.js.
        if not urlsplit(message.location["url"]).path.startswith("/index.js"):
            wrong.append(f"{message.type}: {message.text}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))

    def on_failure(request: Request) -> None:
        # The script stops at redirects, and a click ends the requests of the page that it leaves.
        if MOUNT in request.url and not request.redirected_from and request.failure != "net::ERR_ABORTED":
            wrong.append(f"failed: {request.url}: {request.failure}")

    page.on("requestfailed", on_failure)
    page.on("request", lambda request: None if "//127.0.0.1:" in request.url else wrong.append(request.url))
    return wrong


def frame_of(page: Page) -> Frame:
    return next(frame for frame in page.frames if urlsplit(frame.url).path.startswith(MOUNT))


@pytest.mark.slow
def test_the_tab_shows_the_pages_and_follows_the_recording(browser: Browser, tmp_path: Path) -> None:
    logdir = logdirs.log_of_zero(tmp_path / "health")
    with board("--logdir", tmp_path) as (served, _), contextlib.closing(browser.new_page()) as page:
        wrong = watched(page)
        page.goto(served.url)
        tab = page.get_by_role("tab", name="Tensor Health")
        expect(tab).to_be_visible()
        tab.click()
        frame = page.frame_locator("iframe")
        heading = frame.get_by_role("heading", level=1)
        expect(heading).to_contain_text(
            "log_probs = tf.math.log(probs) at train.py:7 made -Inf in step 1.", timeout=_FIRST_MS
        )
        frame.get_by_role("link", name="Log:0").first.click()
        expect(frame.locator("body[data-page=tensor]")).to_be_visible()
        expect(heading).to_contain_text("Log:0")
        frame_of(page).evaluate("history.back()")
        expect(frame.locator("body[data-page=overview]")).to_be_visible()
        frame_of(page).evaluate("window.isSamePage = true")
        run = RunBuilder("run-b")
        run.tensor(run.graph("g").op("y", "Log"), "y", NAN)
        run.write(logdir)
        expect(frame.locator("#run option")).to_have_count(4)
        assert frame_of(page).evaluate("window.isSamePage")
        for key in ("a", "x", "t", "h", "s", "u", "o"):
            frame.locator("body").press("g")
            frame.locator("body").press(key)
            expect(frame.locator(f"[data-go={key}][aria-current=page]")).to_be_visible()
            page.wait_for_load_state("networkidle")
        assert not wrong


@pytest.mark.slow
def test_a_first_recording_appears_by_itself(browser: Browser, tmp_path: Path) -> None:
    with board("--logdir", tmp_path) as (served, _), contextlib.closing(browser.new_page()) as page:
        wrong = watched(page)
        page.goto(f"{served.url}/#tfdbg_arrow")
        frame = page.frame_locator("iframe")
        expect(frame.get_by_role("heading", level=1)).to_contain_text("No recording yet", timeout=_FIRST_MS)
        logdirs.log_of_zero(tmp_path / "health")
        heading = frame.get_by_role("heading", level=1)
        expect(heading).to_contain_text("made -Inf", timeout=_FIRST_MS)
        assert not wrong


@pytest.mark.slow
def test_the_pages_are_not_shown_in_a_frame_of_another_site(browser: Browser, served: Served) -> None:
    entry = f"{served.url}/data/plugin_entry.html?name=tfdbg_arrow"
    with contextlib.closing(browser.new_page()) as page:
        page.set_content(f"<iframe src='{entry}'></iframe>")
        link = page.frame_locator("iframe").get_by_role("link")
        expect(link).to_be_visible()
        with page.context.expect_page() as opened:
            link.click()
        expect(opened.value.get_by_role("heading", level=1)).to_contain_text("made -Inf")
        opened.value.close()


def plugin(tmp_path: Path, logdir: str = "", **flags: object) -> Plugin:
    return Loader().load(TBContext(logdir=logdir, flags=SimpleNamespace(**flags)))


@pytest.mark.parametrize(
    "spec", ["{0}", "name:{0}", "{1},name:{0}", "gs://bucket/x,{0}", "other:s3://bucket/x,{1},{0}", "{0},"]
)
def test_directories_of_a_logdir_spec_are_searched(tmp_path: Path, spec: str) -> None:
    logdirs.healthy(tmp_path / "x:y" / "logdir")
    text = spec.format(tmp_path / "x:y", tmp_path / "nothing")
    assert plugin(tmp_path, logdir_spec=text).is_active()
    assert not plugin(tmp_path, logdir_spec=text.replace("x:y", "other")).is_active()


@pytest.mark.parametrize("logdir", ["", "nothing", "s3://bucket/logs", "gs://bucket"])
def test_the_tab_is_inactive_without_a_logdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logdir: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert not plugin(tmp_path, logdir).is_active()
    if logdir == "nothing":
        monkeypatch.setenv("HOME", str(tmp_path))
        logdirs.healthy(tmp_path / "nothing")
        assert plugin(tmp_path, "nothing").is_active()
        assert plugin(tmp_path, "~/nothing").is_active()


def searched(path: Path, *names: str) -> LogdirsBelow:
    found = tuple(LogdirBelow(path=path / name, num_runs=1, wall_time_ns=1) for name in names)
    return LogdirsBelow(path=path, logdirs=found, num_searched=1, is_cut=False)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """The event that a slow search waits for."""
    event = threading.Event()
    yield event
    event.set()


def slow(gate: threading.Event, *names: str) -> Callable[[Path], LogdirsBelow]:
    def find(path: Path) -> LogdirsBelow:
        assert gate.wait(60)
        return searched(path, *names)

    return find


def test_nobody_waits_long_for_a_slow_search(gate: threading.Event) -> None:
    search = LogdirSearch([Path("/logs")], every_s=0, find=slow(gate, "a"))
    start = time.monotonic()
    assert search.result(patience_s=0).paths == {}
    assert search.result(patience_s=0.1).paths == {}
    assert time.monotonic() - start < 10
    gate.set()
    assert list(search.result(patience_s=60).paths.values()) == [Path("/logs/a")]


def test_a_search_is_repeated_only_when_its_result_is_old(tmp_path: Path) -> None:
    num_searches = 0

    def find(path: Path) -> LogdirsBelow:
        nonlocal num_searches
        num_searches += 1
        return searched(path, *(["a"] * num_searches))

    lasting = LogdirSearch([tmp_path, tmp_path], every_s=3_600, find=find)
    states = {lasting.result(patience_s=60).state for _ in range(3)}
    assert (num_searches, len(states)) == (1, 1)
    short = LogdirSearch([tmp_path], every_s=0, find=find)
    states = {short.result(patience_s=60).state for _ in range(3)}
    assert (num_searches, len(states)) == (4, 3)


def test_a_search_that_fails_leaves_the_earlier_results(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = [searched(tmp_path, "a"), searched(tmp_path, "b")]

    def find(path: Path) -> LogdirsBelow:
        if len(results) == 1 and not caplog.records:
            raise RuntimeError("this search fails")
        return results.pop(0)

    search = LogdirSearch([tmp_path], every_s=0, find=find)
    assert [list(search.result(patience_s=60).paths.values()) for _ in range(3)] == [
        [tmp_path / "a"],
        [tmp_path / "a"],
        [tmp_path / "b"],
    ]
    assert "this search fails" in caplog.text
