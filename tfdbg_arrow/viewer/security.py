"""Guard: decides which requests are answered, and what the browser may do with the answers.

The user's browser also shows untrusted pages, and the content of a logdir is untrusted. Therefore a request needs the
token of this start of the server, must use a host name of this machine (this prevents DNS rebinding), and must not come
from another site. The headers of every answer forbid the browser to load, run or send anything elsewhere.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_PARAMETER = "token"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_OWN_SITES = frozenset({"same-origin", "none"})
_MAX_TARGET = 32_768
_METHODS = ("GET", "HEAD")


def new_token() -> str:
    """Returns a secret for one start of the server."""
    return secrets.token_urlsafe(24)


class Guard:
    """Middleware that refuses requests that do not come from the server's user.

    Args:
        app: The application.
        token: The secret that the printed address contains.
        hosts: The host names that requests may use, without ports.
        cookie_name: Name of the cookie that stores the token. Cookies are shared between the ports of a host, so each
            server needs a different name.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str], cookie_name: str = "tfdbg_arrow") -> None:
        self._app = app
        self._token = token
        self._hosts = frozenset(host.lower() for host in hosts)
        self._cookie_name = cookie_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one ASGI request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
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
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _host_name(hosts[0]) not in self._hosts:
            return _refused(400, "This server does not answer to that host name; open the address that it printed.")
        if scope["method"] not in _METHODS:
            return _refused(405, "Only GET and HEAD are answered.", allow=", ".join(_METHODS))
        if not _is_plain(scope):
            return _refused(400, "The path is not valid on this server.")
        if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return _refused(
                403, "The request came from another site; paste the address that the server printed instead."
            )
        if headers.get("origin", f"http://{hosts[0]}") != f"http://{hosts[0]}":
            return _refused(403, "The request came from a page of another site.")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == TOKEN_PARAMETER]
        if given:
            if len(given) != 1 or not self._is_token(given[0]):
                return _refused(403, "The token is wrong: open the address that the server printed when it started.")
            return self._admitted(scope, [pair for pair in query if pair[0] != TOKEN_PARAMETER])
        if not any(map(self._is_token, self._cookies(headers))):
            return _refused(403, "The token is missing: open the address that the server printed when it started.")
        return None

    def _admitted(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """Returns the redirect that turns the token into a cookie, so that it stays in no history and no link."""
        # The path begins with exactly one slash (_is_plain), so the redirect cannot lead to another host.
        url = scope["path"] + (f"?{urlencode(query)}" if query else "")
        response = RedirectResponse(url, status_code=303)
        response.set_cookie(self._cookie_name, self._token, path="/", httponly=True, samesite="strict")
        return response

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), self._token.encode())

    def _cookies(self, headers: Headers) -> list[str]:
        found = []
        for text in headers.getlist("cookie"):
            try:
                cookie = SimpleCookie(text).get(self._cookie_name)
            except CookieError:
                continue
            if cookie is not None:
                found.append(cookie.value)
        return found


def _host_name(host: str) -> str:
    """Returns the name in a Host header in lower case, without the port; an empty text if it is not valid."""
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not name:
        name, port = host, ""
    return name.lower() if not port or port.isdecimal() else ""


def _is_plain(scope: Scope) -> bool:
    """Returns whether the path is plain: only letters, digits, `.`, `_`, `-` and `/`, no `..`, nothing encoded."""
    raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    path = raw.partition(b"?")[0]
    if len(path) + len(scope["query_string"]) > _MAX_TARGET or not path.startswith(b"/") or path.startswith(b"//"):
        return False
    is_plain = all(byte in _PATH_BYTES for byte in path)
    return is_plain and b".." not in path and b"//" not in path and unquote_to_bytes(path) == path


_PATH_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")


def _refused(status: int, text: str, **headers: str) -> Response:
    return PlainTextResponse(text + "\n", status_code=status, headers=headers)
