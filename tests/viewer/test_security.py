"""Test that the server answers only the user who has the printed address, and not the pages of other sites."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer.page import TookTooLongError
from tfdbg_arrow.viewer.pages import PAGES
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.security import CONTENT_SECURITY_POLICY

from . import logdirs
from .serving import TOKEN, Served, serving

ROUTES = (
    *("/", "/nowhere", "/static/viewer.css", "/static/vendor/dagre/dagre.min.js", "/state.json"),
    *(f"/{kind.name}{suffix}" for kind in PAGES for suffix in ("", ".json")),
    *("/sql?query=SELECT+1", "/sql.json?query=SELECT+1", "/sql.csv?query=SELECT+1", "/tensors?format=json"),
)
"""One address of each kind that the server answers."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("outside") / "logdir"
    (path.parent / "secret.txt").write_text("secret")
    with serving(logdirs.log_of_zero(path), sandbox=Sandbox(path)) as server:
        yield server


@pytest.fixture(autouse=True)
def goes_on(served: Served) -> Iterator[None]:
    """Checks after every test that the server still answers its user."""
    yield
    assert served.ask("/overview.json").json["verdict"] == "bad"


@pytest.mark.slow
def test_the_token_becomes_a_cookie_and_is_removed_from_the_address(served: Served) -> None:
    answer = served.ask(f"/alerts?rule=nonfinite&token={TOKEN}", cookie="")
    assert (answer.status, answer.headers["location"]) == (303, "/alerts?rule=nonfinite")
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert cookie == served.cookie
    assert cookie.startswith(f"tfdbg_arrow_{served.port}=")
    assert TOKEN not in cookie
    assert {attribute.lower() for attribute in attributes} == {"httponly", "path=/", "samesite=strict"}
    assert served.ask("/alerts?rule=nonfinite", cookie=cookie).status == 200


def test_the_token_is_no_cookie_and_the_cookie_is_no_token(served: Served) -> None:
    name, _, value = served.cookie.partition("=")
    assert served.ask("/", cookie=f"{name}={TOKEN}").status == 403
    assert served.ask(f"/?token={value}").status == 403


def test_a_file_that_opens_the_address_gets_a_page_that_goes_on(served: Served) -> None:
    answer = served.ask(f"/?token={TOKEN}&run=%22a", cookie="", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert (answer.status, answer.headers["set-cookie"].partition(";")[0]) == (200, served.cookie)
    assert 'content="0; url=/?run=%22a"' in answer.text
    assert TOKEN not in answer.text
    assert served.ask("/?token=x", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 403


@pytest.mark.parametrize("target", ROUTES)
@pytest.mark.parametrize("cookie", ["", "tfdbg_arrow_1=the-token", "other=the-token"])
def test_requests_without_the_token_are_refused(served: Served, target: str, cookie: str) -> None:
    answer = served.ask(target, cookie=cookie)
    assert (answer.status, b"token is missing" in answer.body) == (403, True)


@pytest.mark.parametrize("target", ROUTES)
def test_the_guard_applies_to_every_route(served: Served, target: str) -> None:
    assert served.ask(target, host="evil.test").status == 400
    assert served.ask(target, sec_fetch_site="cross-site").status == 403
    assert served.ask(target, origin="http://evil.test").status == 403
    assert served.ask(target, method="POST").status == 405


@pytest.mark.parametrize("target", ["/sql.save", "/sql.delete"])
def test_only_a_page_of_the_server_saves_and_deletes_queries(served: Served, target: str) -> None:
    form = b"name=one&query=SELECT+1"
    for refused, status in (
        ({"cookie": ""}, 403),
        ({"host": "evil.test"}, 400),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "null"}, 403),
    ):
        assert served.ask(target, method="POST", body=form, **refused).status == status
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        assert served.ask(f"{target}?name=one&query=SELECT+1", method=method).status == 405
    assert served.ask("/sql.json").json["saved"] == []


@pytest.mark.parametrize("token", ["", "wrong", "the-token&token=the-token", "%00", "%ED%A0%80", "%C3%A9"])
def test_a_wrong_token_is_refused_even_with_the_cookie(served: Served, token: str) -> None:
    assert served.ask(f"/?token={token}").status == 403


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:80", "127.0.0.1.evil.test", "localhost@evil.test", "", "[::1].evil", "127.0.0.1:x"]
)
def test_other_host_names_are_refused(served: Served, host: str) -> None:
    assert served.ask("/overview.json", host=host).status == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:8888", "[::1]:8888"])
def test_names_of_this_machine_are_accepted_with_any_port(served: Served, host: str) -> None:
    assert served.ask("/overview.json", host=host).status == 200


@pytest.mark.parametrize("target", ["/", "/overview.json", "/sql.csv?query=SELECT+1", f"/?token={TOKEN}"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_pages_of_other_sites_are_refused(served: Served, target: str, site: str) -> None:
    assert served.ask(target, sec_fetch_site=site).status == 403


@pytest.mark.parametrize("origin", ["http://evil.test", "null", "http://127.0.0.1:1", "https://127.0.0.1"])
def test_other_origins_are_refused(served: Served, origin: str) -> None:
    assert served.ask("/tensors.json", origin=origin, sec_fetch_site="same-origin").status == 403


def test_its_own_pages_are_answered(served: Served) -> None:
    assert served.ask("/tensors.json", origin=served.url, sec_fetch_site="same-origin").status == 200


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/static/../../secret.txt",
        "/static/..%2f..%2fsecret.txt",
        "/static/%2e%2e/%2e%2e/secret.txt",
        "/static/%252e%252e%252fsecret.txt",
        "/static/..%5csecret.txt",
        "/static/..\\secret.txt",
        "/static/%c0%ae%c0%ae/secret.txt",
        "/static/.%00./secret.txt",
        "/static//etc/passwd",
        "//evil.test/",
        "//evil.test/?token=the-token",
        "/static/%2fetc%2fpasswd",
        "/static/vendor/../../../secret.txt",
        "/static/vendor/dagre/..%2f..%2f..%2fsecret.txt",
        "/static/vendor/%2e%2e/%2e%2e/%2e%2e/secret.txt",
        "/static/vendor/%252e%252e%252fsecret.txt",
        "/static/vendor/..%c0%af..%c0%afsecret.txt",
        "/static/vendor\\..\\..\\secret.txt",
        "/static/vendor/dagre",
        "/static/vendor%2fdagre%2fLICENSE",
        "/state.json/../secret.txt",
        "/state.json%00.html",
        "/sql.csv/../../secret.txt",
        "/sql.csv%2f..%2f..%2fsecret.txt",
        "/source/../../secret.txt",
        "http://evil.test/",
    ],
)
def test_invalid_paths_are_refused(served: Served, target: str) -> None:
    answer = served.ask(target)
    assert answer.status in (400, 404)
    assert b"secret" not in answer.body.replace(b"secret.txt", b"")
    assert "location" not in answer.headers


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/passwd", "..%2fsecret.txt", "secret.txt", "%00"])
def test_source_pages_do_not_read_files_of_this_machine(served: Served, name: str) -> None:
    assert served.ask(f"/source.json?file={name}").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_methods_other_than_get_are_refused(served: Served, method: str) -> None:
    assert served.ask("/", method=method).status == 405


@pytest.mark.parametrize("target", [*ROUTES, "/tensors?limit=x", "/sql.csv?query=DROP+TABLE+x"])
@pytest.mark.parametrize("cookie", [None, ""])
def test_the_security_headers_of_every_response(served: Served, target: str, cookie: str | None) -> None:
    headers = served.ask(target, cookie=cookie).headers
    assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_a_slow_query_is_stopped(tmp_path: Path) -> None:
    endless = "SELECT count(*) FROM range(1000000000000) AS a JOIN range(1000000000000) AS b ON a.range <> b.range"
    with contextlib.closing(Reader(logdirs.log_of_zero(tmp_path), timeout_s=0.3)) as reader:
        with pytest.raises(TookTooLongError, match=r"took longer than 0\.3 seconds and was stopped"):
            reader.read("endless", lambda logdir: logdir.rows(endless))
        assert reader.read("rows", lambda logdir: logdir.rows("SELECT count(*) FROM tensor_health")) == [(6,)]


def test_a_query_that_needs_too_much_memory_is_stopped(tmp_path: Path) -> None:
    huge = "SELECT list(range) FROM range(1000000000)"
    with contextlib.closing(Reader(logdirs.log_of_zero(tmp_path), memory_limit="64MB")) as reader:
        with pytest.raises(QueryError, match="Out of Memory"):
            reader.read("huge", lambda logdir: logdir.rows(huge))
        assert reader.read("rows", lambda logdir: logdir.rows("SELECT count(*) FROM tensor_health")) == [(6,)]


def test_other_pages_are_answered_while_a_slow_one_is_read(tmp_path: Path) -> None:
    is_reading, may_end = threading.Event(), threading.Event()

    def read_slowly(logdir: Logdir) -> str:
        is_reading.set()
        assert may_end.wait(60)
        return str(logdir.rows("SELECT run_id FROM run")[0][0])

    with contextlib.closing(Reader(logdirs.log_of_zero(tmp_path))) as reader, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(reader.read, "slow", read_slowly)
        try:
            assert is_reading.wait(60)
            assert [run.run_id for run in reader.read("runs", Logdir.runs)] == ["run-a"]
            assert not slow.done()
        finally:
            may_end.set()
        assert slow.result() == "run-a"
