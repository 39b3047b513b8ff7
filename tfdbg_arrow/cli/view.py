"""`tfdbg-arrow view`: the pages of a logdir, served on this machine."""

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
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0: any free one.")] = 0,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen at; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Open this run.")] = None,
    is_opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="End a page's queries after so long.")
    ] = 20,
    has_sql: Annotated[
        bool, typer.Option("--sql", help="Add a page that answers SQL, each query in a process of its own.")
    ] = False,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Serves pages that show the first bad tensor, its cause and its line, until it is interrupted.

    Only who has the printed address can open them: it holds a secret. They are read anew from the logdir when it
    changed: of a program that still runs, they show what it records as it comes.

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
                typer.echo(f"{printable(logdir)} is shown at\n\n    {server.url}\n\nCtrl-C ends it.")
            if host not in _LOOPBACK:
                danger = "others can reach it, and what it sends is not encrypted."
                typer.echo(printable(f"tfdbg-arrow: warning: listening at {host}: {danger}"), err=True)
            sys.stdout.flush()
            if is_opened:
                webbrowser.open(server.url)
            server.run()
