"""`tfdbg-arrow view` and `tfdbg-arrow report`: show the pages of a logdir, served on this machine or in one file."""

from __future__ import annotations

import contextlib
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import click

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import Opening, print_json, print_result, progress, reading, reading_options, run_option
from tfdbg_arrow.errors import MissingDependencyError, NoLogdirError, QueryError, install_command
from tfdbg_arrow.query.present.blocks import Line
from tfdbg_arrow.safe_text import printable

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command("view", cls=Command)
@click.argument("logdir", help="The directory or URL that a recording wrote.")
@click.argument("other", required=False, help="The directory of another recording, to compare the runs of both.")
@click.option(
    "--port", metavar="N", type=click.IntRange(min=0, max=65535), default=0, help="The port; 0 means any free port."
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="The address to listen on; 0.0.0.0 means all addresses of this machine.",
)
@run_option
@click.option("--open/--no-open", "is_opened", default=True, help="Open the page in a browser.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=20,
    help="Stop the queries of a page after this time.",
)
@click.option("--sql", "has_sql", is_flag=True, help="Add a page that runs SQL, each query in a separate process.")
@click.option(
    "--queries",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the SQL page keeps the queries that you save, one .sql file each. Default: "
    "~/.local/share/tfdbg_arrow/queries.",
)
@reading_options
def view(
    logdir: str,
    other: str | None,
    port: int,
    host: str,
    run_id: str | None,
    is_opened: bool,
    timeout: float,
    has_sql: bool,
    queries: Path | None,
    opening: Opening,
    json: bool,
) -> None:
    """Serves pages that show the first bad tensor, its cause and its line of code, until you press Ctrl-C.

    If LOGDIR is another directory, the first page lists the logdirs below it, and each has its own pages. With OTHER,
    the first page compares a run of LOGDIR with one of OTHER.

    The printed address contains a secret; nobody can open the pages without it. The browser gets it through a private
    file. If your browser cannot read files of other programs, open the printed address. The pages follow the logdir:
    while a program is still recording, they show new data as it arrives.

    Exit codes: 0 it was interrupted, 2 an error.
    """
    with _viewer_extra("view"):
        from tfdbg_arrow.query.sql_sandbox import Sandbox
        from tfdbg_arrow.storage.search import below_text
        from tfdbg_arrow.viewer.logdir_search import LogdirSearch
        from tfdbg_arrow.viewer.pages.sql import SqlBox
        from tfdbg_arrow.viewer.reading import Reader
        from tfdbg_arrow.viewer.saved_queries import SavedQueries, default_directory
        from tfdbg_arrow.viewer.security import RedirectFile, new_token
        from tfdbg_arrow.viewer.server import listen
        from tfdbg_arrow.viewer.sites import Sites, pair_of

    def open_reader(path: str | Path) -> Reader:
        return Reader(path, timeout_s=timeout, **vars(opening))

    saved = SavedQueries(queries or default_directory())

    def sql_box_of(path: str | Path) -> SqlBox:
        return SqlBox(sandbox=Sandbox(path, timeout_s=timeout, skip_broken=opening.skip_broken), saved=saved)

    reader: Reader | Sites
    try:
        if other is not None:
            if run_id is not None:
                raise QueryError(f"--run needs one logdir; leave out {other}.")
            reader = pair_of(logdir, other, open_reader=open_reader, sql_box_of=sql_box_of if has_sql else None)
        else:
            with progress("Opening …"):
                reader = open_reader(logdir)
    except NoLogdirError as error:
        if other is not None or not error.below.logdirs:
            raise
        if run_id is not None:
            raise QueryError(f"--run needs one logdir, and {logdir} is not one; {below_text(error.below)}") from None
        search = LogdirSearch([Path(logdir)])
        reader = Sites(search, open_reader=open_reader, sql_box_of=sql_box_of if has_sql else None)
    with contextlib.closing(reader), RedirectFile() as redirect:
        if run_id is not None and isinstance(reader, Reader):
            run_id = reader.find_run(run_id)
        server = listen(
            reader,
            token=new_token(),
            host=host,
            port=port,
            run_id=run_id,
            sql_box=sql_box_of(logdir) if has_sql and isinstance(reader, Reader) else None,
            on_admission=redirect.remove,
        )
        with contextlib.suppress(KeyboardInterrupt):
            if json:
                print_json(
                    {"logdir": logdir, "other": other, "url": server.url, "host": server.host, "port": server.port}
                )
            else:
                what = f"{logdir} is" if other is None else f"{logdir} and {other} are"
                click.echo(f"{printable(what)} served at\n\n    {server.url}\n\nPress Ctrl-C to stop.")
            if host not in _LOOPBACK:
                danger = "other machines can reach it, and the connection is not encrypted."
                click.echo(printable(f"tfdbg-arrow: warning: listening on {host}: {danger}"), err=True)
            sys.stdout.flush()
            if is_opened:
                try:
                    webbrowser.open(redirect.write(server.url))
                except OSError as error:
                    click.echo(printable(f"tfdbg-arrow: warning: no browser was opened: {error}"), err=True)
            server.run()


@click.command("report", cls=Command)
@click.argument("logdir", help="The directory or URL that a recording wrote.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    help="The file to write.",
)
@run_option
@click.option(
    "--max-bytes",
    metavar="N",
    type=click.IntRange(min=200_000),
    default=10_000_000,
    help="Maximum size of the file; omitted content is listed.",
)
@reading_options
def report(
    logdir: str,
    output: Path,
    run_id: str | None,
    max_bytes: int,
    opening: Opening,
    json: bool,
) -> None:
    """Writes one HTML file to attach to a bug report: the first bad tensor, the alerts and their source code.

    The pages are those of `view`. The file opens from disk, loads nothing and sends nothing. It contains source code
    of the recorded program.

    Exit codes: 0 the file was written, 2 an error.
    """
    with _viewer_extra("report"):
        from tfdbg_arrow.viewer.report import write_report

    with reading(logdir, opening) as opened:
        written = write_report(opened, output, run_id=run_id, max_bytes=max_bytes)
        about = opened.about_runs(run_id=run_id)
    facts = {"report": str(output), "bytes": written.size, "left_out": written.left_out, "about": about}
    texts = (f"{output}: {written.size:,} bytes", *(f"left out: {text}" for text in written.left_out))
    print_result({"logdir": logdir, **facts}, map(Line, texts), json=json, about=about)


@contextlib.contextmanager
def _viewer_extra(command: str) -> Iterator[None]:
    """Turns a failed import in the `with` block into an error that says what to install.

    Args:
        command: The subcommand that needs the packages.

    Raises:
        MissingDependencyError: A package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "tfdbg_arrow"):
            raise
        raise MissingDependencyError(
            f"tfdbg-arrow {command} needs the package {package}; run: {install_command('viewer')}"
        ) from error
