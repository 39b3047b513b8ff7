"""Decides which requests are answered, and what the browser may do with the answers.

The user's browser also shows untrusted pages, and the content of a logdir is untrusted. Therefore a request must use a
host name of this machine (this prevents DNS rebinding), and must not come from another site. The guard of the server
also requires the token of the current start of the server. The headers of every answer forbid the browser to load or
run content from other sites, and to send data to other sites.
"""

from __future__ import annotations

import contextlib
import hmac
import html
import ipaddress
import secrets
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tfdbg_arrow.viewer.answer import Answer

TOKEN_PARAMETER = "token"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors "
)
CONTENT_SECURITY_POLICY = f"{_POLICY}'none'"
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Send the referrer to no other site. With `no-referrer`, a form of a page would come from the origin `null`.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The headers of every answer."""
FRAMED_HEADERS = {
    **HEADERS,
    "content-security-policy": f"{_POLICY}'self'",
    "x-frame-options": "SAMEORIGIN",
}
"""The headers of every answer of a server whose own pages show the viewer in a frame."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ANY = ("0.0.0.0", "::")
_OWN_SITES = (None, "same-origin", "none")
_MAX_TARGET = 32_768
"""Maximum length of an address. It has room for MAX_TEXT characters that are escaped as three characters each."""
_METHODS = ("GET", "HEAD")
_METHODS_OF_CHANGES = ("POST",)


def new_token() -> str:
    """Returns a secret for one start of the server."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts that a request may name in its header Host, with any port.

    Attributes:
        names: Names and addresses in lower case.
        has_addresses: Whether every numeric address is allowed. This is safe, because DNS rebinding requires a host
            name.
    """

    names: frozenset[str]
    has_addresses: bool = False

    @classmethod
    def of(cls, address: str, *other_names: str) -> Hosts:
        """Returns the hosts of a server.

        Args:
            address: The name or address that the server listens on; `0.0.0.0` or `::` means all addresses of this
                machine.
            *other_names: Further names of the server.
        """
        if address in _LOOPBACK or address == "::1":
            names = {*_LOOPBACK}
        elif address in _ANY:
            names = {*_LOOPBACK, socket.gethostname().lower(), socket.getfqdn().lower()}
        else:
            names = {f"[{address}]" if ":" in address else address}
        return cls(names=frozenset(name.lower() for name in (*names, *other_names)), has_addresses=address in _ANY)

    def allow(self, host: str) -> bool:
        """Returns whether a request may name a host, given the value of its header Host."""
        name = _host_name(host)
        return name in self.names or (self.has_addresses and _is_address(name))


def shown_host(address: str) -> str:
    """Returns the host in the URL of a server that listens on an address."""
    if address in _ANY:
        return socket.gethostname().lower()
    return f"[{address}]" if ":" in address else address


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The parts of a request that the checks use.

    Attributes:
        method: The HTTP method.
        path: The path.
        query: The query, without `?`.
        hosts: The values of all headers Host.
        fetch_site: The header Sec-Fetch-Site; None if it is missing.
        origin: The header Origin; None if it is missing.
    """

    method: str
    path: bytes
    query: bytes
    hosts: Sequence[str]
    fetch_site: str | None
    origin: str | None


def refusal_of(asked: Asked, hosts: Hosts, *, way_in: str, is_change: bool = False) -> Answer | None:
    """Returns the answer to a refused request; None if the request comes from a page of this server or from its user.

    Args:
        asked: The request.
        hosts: The hosts that the request may name.
        way_in: What the user should do instead. The message contains this text.
        is_change: Whether the path changes something, so that only POST is answered.
    """
    methods = _METHODS_OF_CHANGES if is_change else _METHODS
    if len(asked.hosts) != 1 or not hosts.allow(asked.hosts[0]):
        return _refused(400, f"This server does not answer to that host name; {way_in}.")
    if asked.method not in methods:
        return _refused(405, f"Only {' and '.join(methods)} are answered.", allow=", ".join(methods))
    if not _is_plain(asked.path) or len(asked.path) + len(asked.query) > _MAX_TARGET:
        return _refused(400, "The path is not valid on this server.")
    if asked.fetch_site not in _OWN_SITES:
        return _refused(403, f"The request came from another site; {way_in}.")
    if asked.origin not in (None, *(f"{scheme}://{asked.hosts[0]}" for scheme in ("http", "https"))):
        return _refused(403, "The request came from a page of another site.")
    return None


class Guard:
    """Middleware that refuses requests that do not come from the server's user.

    Args:
        app: The application.
        token: The secret that the printed address contains.
        hosts: The hosts that requests may name.
        changes: The names of the pages that change something. The name of a page is the last part of its path.
        cookie_name: Name of the session cookie. Cookies are shared between the ports of a host, so each server needs a
            different name.
        on_admission: Called for each request that gets the cookie in exchange for the token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: Hosts,
        changes: Sequence[str] = (),
        cookie_name: str = "tfdbg_arrow",
        on_admission: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._token = token
        # The cookie differs from the token, because browsers send the cookie to the servers on all ports of the host.
        self._session = new_token()
        self._hosts = hosts
        self._changes = frozenset(name.encode() for name in changes)
        self._cookie_name = cookie_name
        self._on_admission = on_admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one ASGI request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Returns the response to a refused request; None if the request is allowed."""
        headers = Headers(scope=scope)
        asked = Asked(
            method=scope["method"],
            path=(scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")).partition(b"?")[0],
            query=scope["query_string"],
            hosts=headers.getlist("host"),
            fetch_site=headers.get("sec-fetch-site"),
            origin=headers.get("origin"),
        )
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == TOKEN_PARAMETER]
        has_token = len(given) == 1 and _is_same(given[0], self._token)
        # The browser treats a file that opens the printed address as another site. The token shows that this file is
        # allowed, because other sites do not know the token.
        is_outside = asked.fetch_site not in _OWN_SITES
        if has_token and is_outside and headers.get("sec-fetch-mode") == "navigate":
            asked = replace(asked, fetch_site=None)
        refusal = refusal_of(
            asked,
            self._hosts,
            way_in="open the address that it printed when it started",
            is_change=asked.path.rpartition(b"/")[2] in self._changes,
        )
        if refusal is not None:
            return response_of(refusal)
        if given:
            if not has_token:
                return _forbidden("The token is wrong: open the address that the server printed when it started.")
            self._on_admission()
            rest = [pair for pair in query if pair[0] != TOKEN_PARAMETER]
            return self._admitted(scope, rest, is_outside=is_outside)
        if not any(_is_same(cookie, self._session) for cookie in self._cookies(headers)):
            return _forbidden("The token is missing: open the address that the server printed when it started.")
        return None

    def _admitted(self, scope: Scope, query: list[tuple[str, str]], *, is_outside: bool) -> Response:
        """Returns the response that sets the cookie and leads to the address without the token.

        Args:
            scope: The request.
            query: The query of the request without the token.
            is_outside: Whether the request came from outside of this server's pages. After such a request, a browser
                does not send the cookie (SameSite=Strict) when it follows a redirect. The browser sends the cookie when
                a page leads to the address.
        """
        # The path begins with exactly one slash (_is_plain), so it cannot lead to another host.
        url = scope["path"] + (f"?{urlencode(query)}" if query else "")
        if is_outside:
            text = _leading_to(url, head='<title>tfdbg-arrow</title><link rel="icon" href="/static/icon.svg">')
            response = response_of(Answer.of_text(text, subtype="html"))
        else:
            response = RedirectResponse(url, status_code=303)
        response.set_cookie(self._cookie_name, self._session, path="/", httponly=True, samesite="strict")
        return response

    def _cookies(self, headers: Headers) -> list[str]:
        values = []
        for text in headers.getlist("cookie"):
            try:
                cookie = SimpleCookie(text).get(self._cookie_name)
            except CookieError:
                continue
            if cookie is not None:
                values.append(cookie.value)
        return values


def _is_same(text: str, secret: str) -> bool:
    """Compares a text with a secret in a time that does not depend on the text."""
    return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), secret.encode())


def _host_name(host: str) -> str:
    """Returns the name in a Host header in lower case, without the port; an empty text if it is not valid."""
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not name:
        name, port = host, ""
    return name.lower() if not port or port.isdecimal() else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_plain(path: bytes) -> bool:
    """Returns whether a path is plain: only letters, digits, `.`, `_`, `-` and `/`, no `..`, nothing encoded."""
    is_plain = all(byte in _PATH_BYTES for byte in path)
    return is_plain and path.startswith(b"/") and b".." not in path and b"//" not in path


_PATH_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")


def response_of(answer: Answer) -> Response:
    """Returns an answer as a response of the web framework."""
    headers = {"content-type": answer.content_type, **answer.headers}
    return Response(answer.content, status_code=answer.status, headers=headers)


def _forbidden(text: str) -> Response:
    return response_of(_refused(403, text))


def _refused(status: int, text: str, **headers: str) -> Answer:
    return Answer.of_text(text + "\n", status=status, headers=headers)


class RedirectFile(contextlib.AbstractContextManager["RedirectFile"]):
    """An HTML file that opens the viewer in a browser, so that no command line contains the token.

    Every user of a machine can see the command lines of all processes. Therefore the browser gets the path of a file
    that opens the address. The file is in its own directory, which only the user can read. The directory is removed at
    the end of a `with` block.
    """

    def __init__(self) -> None:
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def write(self, url: str) -> str:
        """Writes the file.

        Args:
            url: The address that the file opens.

        Returns:
            The `file:` URL to open.

        Raises:
            OSError: The file cannot be written.
        """
        # Only the owner can enter the directory.
        self._directory = tempfile.TemporaryDirectory(prefix="tfdbg-arrow-view-", ignore_cleanup_errors=True)
        path = Path(self._directory.name) / "open.html"
        path.touch(0o600, exist_ok=False)
        path.write_text(_leading_to(url, head="<title>tfdbg-arrow view</title>"), encoding="utf-8")
        return path.as_uri()

    def remove(self) -> None:
        """Removes the file and its directory. May be called at any time and from any thread."""
        if self._directory is not None:
            self._directory.cleanup()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _leading_to(url: str, *, head: str) -> str:
    """Returns an HTML page that opens an address."""
    quoted = html.escape(url)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{head}'
        f'<meta http-equiv="refresh" content="0; url={quoted}"></head>'
        f'<body><p><a href="{quoted}">Open the viewer</a></p></body></html>\n'
    )
