"""`tfdbg-arrow view`: serves the pages of a logdir on this machine."""

from __future__ import annotations

import contextlib
import sys
import webbrowser
from typing import Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, print_json, printable, progress
from tfdbg_arrow.cli.reading import MemoryLimitOption, SkipBrokenOption
from tfdbg_arrow.cli.viewer_extra import viewer_extra

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def view(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory or URL that a recording wrote.")],
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 means any free port.")] = 0,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="The address to listen on; 0.0.0.0 means all addresses of this machine."),
    ] = "127.0.0.1",
    run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Open this run.")] = None,
    is_opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Stop the queries of a page after this time.")
    ] = 20,
    has_sql: Annotated[
        bool, typer.Option("--sql", help="Add a page that runs SQL, each query in a separate process.")
    ] = False,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Serves pages that show the first bad tensor, its cause and its line of code, until you press Ctrl-C.

    The printed address contains a secret; nobody can open the pages without it. The pages follow the logdir: while a
    program is still recording, they show new data as it arrives.

    Exit codes: 0 it was interrupted, 2 an error.
    """
    with viewer_extra("view"):
        from tfdbg_arrow.query.sandbox import Sandbox
        from tfdbg_arrow.viewer.reading import Reader
        from tfdbg_arrow.viewer.security import new_token
        from tfdbg_arrow.viewer.server import listen

    with progress("Opening …"):
        reader = Reader(logdir, timeout_s=timeout, skip_broken=skip_broken, memory_limit=memory_limit)
    with contextlib.closing(reader):
        if run is not None:
            reader.check_run(run)
        sandbox = Sandbox(logdir, timeout_s=timeout, skip_broken=skip_broken) if has_sql else None
        server = listen(reader, token=new_token(), host=host, port=port, run_id=run, sandbox=sandbox)
        with contextlib.suppress(KeyboardInterrupt):
            if json:
                print_json({"logdir": logdir, "url": server.url, "host": server.host, "port": server.port})
            else:
                typer.echo(f"{printable(logdir)} is served at\n\n    {server.url}\n\nPress Ctrl-C to stop.")
            if host not in _LOOPBACK:
                danger = "other machines can reach it, and the connection is not encrypted."
                typer.echo(printable(f"tfdbg-arrow: warning: listening on {host}: {danger}"), err=True)
            sys.stdout.flush()
            if is_opened:
                webbrowser.open(server.url)
            server.run()
