"""The server: serves the pages behind the guard."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.viewer.answer import Answer
from tfdbg_arrow.viewer.links import ServerLinks
from tfdbg_arrow.viewer.pages.sql import DELETE, SAVE, SqlBox
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.security import TOKEN_PARAMETER, Guard, Hosts, response_of, shown_host
from tfdbg_arrow.viewer.site import Site
from tfdbg_arrow.viewer.sites import Sites

_MAX_FORM = 1 << 16
"""Maximum number of bytes of a form. A saved query has up to 10,000 bytes, and each byte can take three characters."""
_TOO_LARGE = Answer.of_text("The form is too large.\n", status=413)


def _behind_guard(
    site: Site | Sites, *, token: str, hosts: Hosts, cookie_name: str, on_admission: Callable[[], None]
) -> ASGIApp:
    """Returns the application, which serves a site behind the guard."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        # Read the page in a thread, so that the server can answer other requests at the same time.
        if request.method == "POST":
            form = await _form(request)
            answer = _TOO_LARGE if form is None else await run_in_threadpool(site.change, scope["path"], form)
        else:
            answer = await run_in_threadpool(site.answer, scope["path"], dict(request.query_params))
        await response_of(answer)(scope, receive, send)

    return Guard(
        app,
        token=token,
        hosts=hosts,
        changes=(SAVE, DELETE),
        cookie_name=cookie_name,
        on_admission=on_admission,
    )


async def _form(request: Request) -> dict[str, str] | None:
    """Returns the fields of a form; None if they are too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM:
            return None
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that listens but does not answer requests until run() is called.

    Attributes:
        url: The address to open, with the token.
        host: The name or address that the server listens on.
        port: The port.
        run: Answers requests until the process is interrupted or stop() is called.
        stop: Ends run() from another thread.
    """

    url: str
    host: str
    port: int
    run: Callable[[], None]
    stop: Callable[[], None]


def listen(
    reader: Reader | Sites,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 0,
    run_id: str | None = None,
    sql_box: SqlBox | None = None,
    on_admission: Callable[[], None] = lambda: None,
) -> Server:
    """Binds a server's socket.

    Args:
        reader: The reader of one logdir, or the sites of several logdirs.
        token: The secret that requests need.
        host: The address to listen on; `0.0.0.0` or `::` means all addresses of this machine.
        port: The port; 0 means any free port.
        run_id: The run that the address opens, or "all"; None means the newest.
        sql_box: Runs SQL for the SQL page of one logdir; None means that there is no SQL page.
        on_admission: Called when a browser opens the address.

    Raises:
        SettingError: The server cannot listen on the address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise SettingError(
            f"cannot listen on {host} port {port}: {error}; choose a free port with --port, or 0 for any free port."
        ) from error
    port = listener.getsockname()[1]
    name = shown_host(host)
    site = reader if isinstance(reader, Sites) else Site(reader, sql_box=sql_box)
    app = _behind_guard(
        site,
        token=token,
        hosts=Hosts.of(host, name),
        cookie_name=f"tfdbg_arrow_{port}",
        on_admission=on_admission,
    )
    # No access log, because the line of the first request would contain the token.
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",
        proxy_headers=False,
    )
    parameters = {TOKEN_PARAMETER: token} | ({} if run_id is None else {"run": run_id})
    url = f"http://{name}:{port}{ServerLinks().page('overview', **parameters)}"

    server = uvicorn.Server(config)

    def run() -> None:
        with listener:
            server.run(sockets=[listener])

    def stop() -> None:
        server.should_exit = True

    return Server(url=url, host=host, port=port, run=run, stop=stop)
