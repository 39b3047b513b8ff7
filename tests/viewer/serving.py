"""A viewer that serves in a thread, and raw requests, which can differ from the requests of a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer.pages.sql import SqlBox
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.saved_queries import SavedQueries
from tfdbg_arrow.viewer.server import Server, listen
from tfdbg_arrow.viewer.sites import Sites

TOKEN = "the-token"


@dataclass(frozen=True)
class Answer:
    """A response: its status, its headers with lower-case names, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    """A running server, with its port, and the cookie that it sets in exchange for the token."""

    port: int
    cookie: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, target: str, *, method: str = "GET", cookie: str | None = None, body: bytes = b"", **headers: str
    ) -> Answer:
        """Sends a request with an unchanged target.

        Args:
            target: The target of the request.
            method: The HTTP method.
            cookie: The cookie to send. None sends the user's cookie, and '' sends no cookie.
            body: The body of a form.
            headers: Further headers, with underscores in their names, for example sec_fetch_site.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            connection.putrequest(method, target, skip_host="host" in headers, skip_accept_encoding=True)
            sent = self.cookie if cookie is None else cookie
            if sent:
                connection.putheader("Cookie", sent)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            if body:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()


@contextlib.contextmanager
def serving(logdir: Path, *, sandbox: Sandbox | None = None, **settings: Any) -> Iterator[Served]:
    """Yields a server of a logdir. With a sandbox, it has the SQL page. The page saves queries beside the logdir."""
    saved = SavedQueries(logdir.with_name("queries"))
    sql_box = None if sandbox is None else SqlBox(sandbox=sandbox, saved=saved)
    with (
        contextlib.closing(Reader(logdir, **{"timeout_s": 60.0, **settings})) as reader,
        _running(listen(reader, token=TOKEN, sql_box=sql_box)) as served,
    ):
        yield served


@contextlib.contextmanager
def serving_sites(sites: Sites) -> Iterator[Served]:
    """Yields a server of several logdirs."""
    with contextlib.closing(sites), _running(listen(sites, token=TOKEN)) as served:
        yield served


@contextlib.contextmanager
def _running(server: Server) -> Iterator[Served]:
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        admitted = Served(server.port, "").ask(f"/?token={TOKEN}")
        yield Served(server.port, admitted.headers["set-cookie"].partition(";")[0])
    finally:
        server.stop()
        thread.join()
