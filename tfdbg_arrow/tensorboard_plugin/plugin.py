"""The module that TensorBoard loads at its start. It must load quickly, and import neither TensorFlow nor DuckDB."""

from __future__ import annotations

import argparse
import atexit
import os
import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.plugins import base_plugin
from werkzeug.wrappers import Request, Response

from tfdbg_arrow.errors import install_command
from tfdbg_arrow.viewer.logdir_search import LogdirSearch

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    from tfdbg_arrow.tensorboard_plugin.application import Application

NAME = "tfdbg_arrow"
_TAB = "Tensor Health"
_MODULE = "/index.js"
_PATIENCE_S = 0.5
"""Seconds that TensorBoard waits for the search. It shows no tab before every plugin has answered."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9.+-]*://")


class Loader(base_plugin.TBLoader):  # type: ignore[misc]
    """Defines the plugin's flag, and creates the plugin. The entry point `tensorboard_plugins` names this class."""

    def define_flags(self, parser: argparse.ArgumentParser) -> None:
        """Adds the flag of the plugin to TensorBoard's flags."""
        parser.add_argument_group(NAME).add_argument(
            "--tfdbg_arrow_hosts",
            metavar="NAME[,NAME...]",
            default="",
            help="Further host names under which the browser reaches TensorBoard, for example through a proxy. The "
            f"tab {_TAB!r} refuses requests under other names than these and those of this machine, so that pages of "
            "other sites cannot read it.",
        )

    def load(self, context: base_plugin.TBContext) -> Plugin:
        """Returns the plugin."""
        return Plugin(context)


class Plugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The tab in TensorBoard.

    Args:
        context: TensorBoard's flags and logdir.
    """

    plugin_name = NAME

    def __init__(self, context: base_plugin.TBContext) -> None:
        flags = context.flags
        self._flags = flags
        places = _places(context.logdir or "", getattr(flags, "logdir_spec", "") or "")
        self._urls = tuple(place for place in places if _URL.match(place))
        self._search = LogdirSearch(
            [Path(os.path.abspath(os.path.expanduser(place))) for place in places if place not in self._urls]
        )
        self._search.result(patience_s=0)

    def is_active(self) -> bool:
        """Returns whether there is a logdir; waits at most half a second for the search."""
        return bool(self._search.result(patience_s=_PATIENCE_S).paths)

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Returns how TensorBoard shows the tab. The pages reload themselves, so TensorBoard's reload is off."""
        return base_plugin.FrontendMetadata(es_module_path=_MODULE, tab_name=_TAB, disable_reload=True)

    def get_plugin_apps(self) -> dict[str, Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]]:
        """Returns the WSGI applications, by the path below `/data/plugin/tfdbg_arrow`."""
        return {_MODULE: _module, "/*": self._serve}

    @cached_property
    def _application(self) -> Application:
        from tfdbg_arrow.tensorboard_plugin.application import Application
        from tfdbg_arrow.viewer.security import Hosts
        from tfdbg_arrow.viewer.sites import Sites

        address = "0.0.0.0" if _flag(self._flags, "bind_all") else _flag(self._flags, "host") or "localhost"
        more = [name.strip() for name in str(_flag(self._flags, "tfdbg_arrow_hosts") or "").split(",")]
        notes = tuple(
            f"{url} is not searched, because it is a URL; use `tfdbg-arrow view` for a logdir at a URL."
            for url in self._urls
        )
        sites = Sites(self._search, notes=notes)
        atexit.register(sites.close)  # otherwise DuckDB reports its open connections when TensorBoard ends
        return Application(
            sites,
            prefix=f"/data/plugin/{NAME}",
            hosts=Hosts.of(address, *filter(None, more)),
        )

    def _serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            application = self._application
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "tfdbg_arrow"):
                raise
            text = f"This tab needs the package {package}; run: {install_command('viewer')}\n"
            return _plain(text, status=500)(environ, start_response)
        return application(environ, start_response)


def _module(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answers with the tab's JavaScript module. The module contains no data, so it loads even if pages are refused."""
    if Request(environ).method not in ("GET", "HEAD"):
        return _plain("Only GET and HEAD are answered.\n", status=405)(environ, start_response)
    text = (resources.files("tfdbg_arrow.tensorboard_plugin") / "index.js").read_text("utf-8")
    return _plain(text, mimetype="text/javascript")(environ, start_response)


_plain = partial(
    Response,
    mimetype="text/plain",
    headers={
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    },
)


def _flag(flags: argparse.Namespace | None, name: str) -> Any:
    """Returns one of TensorBoard's flags; None if it is not set, or if this TensorBoard does not have it."""
    return getattr(flags, name, None)


def _places(logdir: str, logdir_spec: str) -> list[str]:
    """Returns the paths and URLs in `--logdir` or `--logdir_spec`.

    `--logdir_spec` is a list separated by commas. In this list, a name and a colon may stand before a path.
    """
    if logdir:
        return [logdir]
    return [_without_name(place) for place in logdir_spec.split(",") if place]


def _without_name(place: str) -> str:
    name, colon, path = place.partition(":")
    has_name = colon and "/" not in name and not _URL.match(place)
    return path if has_name else place
