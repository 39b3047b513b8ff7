"""The WSGI application that serves the pages to TensorBoard's tab.

TensorBoard has no token, so every program and every user that reaches its port can read the pages. Requests that come
from a page of another site are refused, as in the viewer's own server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from werkzeug.wrappers import Request, Response

from tfdbg_arrow.viewer.answer import Answer
from tfdbg_arrow.viewer.security import FRAMED_HEADERS, Asked, Hosts, refusal_of
from tfdbg_arrow.viewer.sites import Sites

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_WAY_IN = "open the address that TensorBoard printed, or name the host in --tfdbg_arrow_hosts"


class Application:
    """Serves the pages of several logdirs.

    Args:
        sites: The pages.
        prefix: The path of the pages below TensorBoard's root.
        hosts: The hosts that requests may name.
    """

    def __init__(self, sites: Sites, *, prefix: str, hosts: Hosts) -> None:
        self._sites = sites
        self._prefix = prefix
        self._hosts = hosts

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers one WSGI request."""
        request = Request(environ)
        asked = Asked(
            method=request.method,
            path=request.path.encode("utf-8", "surrogatepass"),
            query=request.query_string,
            hosts=request.headers.getlist("host"),
            fetch_site=request.headers.get("sec-fetch-site"),
            origin=request.headers.get("origin"),
        )
        answer = refusal_of(asked, self._hosts, way_in=_WAY_IN) or self._sites.answer(
            request.path.removeprefix(self._prefix), request.args.to_dict()
        )
        return _response(answer)(environ, start_response)


def _response(answer: Answer) -> Response:
    headers = {**FRAMED_HEADERS, "content-type": answer.content_type, **answer.headers}
    response = Response(answer.content, status=answer.status, headers=headers)
    response.autocorrect_location_header = False  # a proxy may serve the pages under another address
    return response
