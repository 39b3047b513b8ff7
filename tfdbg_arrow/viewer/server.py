"""The server: serves the pages behind the guard."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tfdbg_arrow.errors import SettingError, TfdbgArrowError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.logdir.statements import Question
from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer.links import ServerLinks
from tfdbg_arrow.viewer.page import NoSuchPageError, PageKind, Parameters, read_shell, status_of
from tfdbg_arrow.viewer.pages import PAGES
from tfdbg_arrow.viewer.pages.sql import read_csv, sql_page
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.rendering import json_text, render, render_page, static_files
from tfdbg_arrow.viewer.security import TOKEN_PARAMETER, Guard

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ANY = ("0.0.0.0", "::")


def create_app(
    reader: Reader,
    *,
    token: str,
    hosts: Iterable[str] = _LOOPBACK,
    cookie_name: str = "view",
    sandbox: Sandbox | None = None,
) -> ASGIApp:
    """Returns the application, which serves every page as HTML and as JSON behind the guard.

    Args:
        reader: Reads the logdir.
        token: The secret that requests need.
        hosts: The host names that requests may use.
        cookie_name: Name of the cookie that stores the token.
        sandbox: Runs SQL; None means that there is no SQL page.
    """
    kinds = PAGES if sandbox is None else (*PAGES, sql_page(sandbox))
    routes = [Route("/static/{name:path}", _static), Route("/state.json", _state(reader))]
    if sandbox is not None:
        routes.append(Route("/sql.csv", _csv(sandbox)))
    for kind in kinds:
        answer = _answer(reader, kind, kinds)
        paths = [f"/{kind.name}", f"/{kind.name}.json"]
        routes += [Route(path, answer) for path in (["/", *paths] if kind.name == "overview" else paths)]
    handlers = {HTTPException: _http_failure, TfdbgArrowError: _failure, Exception: _defect}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, token=token, hosts=hosts, cookie_name=cookie_name)


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
    reader: Reader,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 0,
    run_id: str | None = None,
    sandbox: Sandbox | None = None,
) -> Server:
    """Binds a server's socket.

    Args:
        reader: Reads the logdir.
        token: The secret that requests need.
        host: The address to listen on; `0.0.0.0` or `::` means all addresses of this machine.
        port: The port; 0 means any free port.
        run_id: The run that the address opens; None means all.
        sandbox: Runs SQL for the SQL page; None means that there is no SQL page.

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
    name = _shown_host(host)
    hosts = {name, *_hosts(host)}
    app = create_app(reader, token=token, hosts=hosts, cookie_name=f"tfdbg_arrow_{port}", sandbox=sandbox)
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


def _hosts(host: str) -> set[str]:
    if host in _LOOPBACK or host == "::1":
        return set(_LOOPBACK)
    if host in _ANY:
        return {*_LOOPBACK, socket.gethostname().lower(), socket.getfqdn().lower()}
    return {host.lower()}


def _shown_host(host: str) -> str:
    """Returns the host name for the printed address."""
    if host in _ANY:
        return socket.gethostname().lower()
    return f"[{host}]" if ":" in host else host


def _answer(reader: Reader, kind: PageKind, kinds: Sequence[PageKind]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        given = dict(request.query_params)
        is_json = _is_json(request)
        given.pop("format", None)
        parameters = Parameters(given)

        def read(logdir: Logdir) -> tuple[Any, list[Question]]:
            with logdir.questions.noted() as questions:
                return kind.read(logdir, parameters), questions

        def make() -> Response:
            state = reader.state()  # before the page is read, so the page shows this state or a newer one
            page, questions = reader.read((kind.name, parameters.key), read)
            if is_json:
                return Response(json_text(page), media_type="application/json")
            shell = reader.read(("shell", parameters.key), lambda logdir: read_shell(logdir, parameters))
            text = render_page(
                kind, page, shell=shell, links=ServerLinks(), kinds=kinds, questions=questions, state=state
            )
            return HTMLResponse(text)

        # In a thread, so that other pages are answered while this one is read.
        return await run_in_threadpool(make)

    return answer


def _state(reader: Reader) -> Callable[[Request], Awaitable[Response]]:
    async def state(request: Request) -> Response:
        return Response(json_text({"state": await run_in_threadpool(reader.state)}), media_type="application/json")

    return state


def _csv(sandbox: Sandbox) -> Callable[[Request], Awaitable[Response]]:
    async def csv(request: Request) -> Response:
        parameters = Parameters(dict(request.query_params))
        text = await run_in_threadpool(lambda: read_csv(sandbox, parameters))
        return Response(text, media_type="text/csv", headers={"content-disposition": "attachment"})

    return csv


async def _static(request: Request) -> Response:
    found = static_files().get(request.path_params["name"])
    if found is None:
        raise NoSuchPageError(f"there is no file {request.path_params['name']!r}.")
    content, content_type = found
    return Response(content, media_type=content_type)


async def _failure(request: Request, error: Exception) -> Response:
    return _failed(request, status_of(error), str(error))


async def _defect(request: Request, error: Exception) -> Response:
    return _failed(request, 500, f"This is a bug in the viewer ({type(error).__name__}); see its log.")


async def _http_failure(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _failed(request, status, f"there is no page {request.url.path}" if status == 404 else str(error))


def _failed(request: Request, status: int, message: str) -> Response:
    """Returns an error as an HTML page, or as JSON if the request asked for JSON."""
    if _is_json(request):
        text = json_text({"error": {"status": status, "message": message}})
        return Response(text, status_code=status, media_type="application/json")
    return HTMLResponse(render("failure.html", status=status, message=message), status_code=status)


def _is_json(request: Request) -> bool:
    return request.url.path.endswith(".json") or request.query_params.get("format") == "json"
