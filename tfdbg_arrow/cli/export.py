"""`tfdbg-arrow export`: writes a logdir in the formats of other tools."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import Opening, print_result, progress_bar, reading, reading_options
from tfdbg_arrow.cli.watch import wait_for
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.query.export_formats import WRITTEN
from tfdbg_arrow.query.present.blocks import Line
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from tfdbg_arrow.debugger_v2.export import ExportedRun
    from tfdbg_arrow.query import Exported, TensorBoardExport

_FORMATS = {
    **{format_.value: written.help for format_, written in WRITTEN.items()},
    "debugger-v2": "Write a dump that TensorFlow's Debugger V2 and TensorBoard can read.",
    "tensorboard": "Write curves, layers and distributions as event files, which TensorBoard and other trackers read.",
}
"""The formats, each with the help of its option."""
_NOW = "{task.fields[now]}"
"""The text behind a progress bar: what is being exported."""


def _format_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, text in reversed(_FORMATS.items()):
        command = click.option(f"--{name}", is_flag=True, help=text)(command)
    return command


@click.command("export", cls=Command)
@click.argument("logdir", help="The directory or URL that a recording wrote.")
@click.argument(
    "target",
    help="The directory to write to; for a database, the file.",
)
@_format_options
@click.option(
    "--table",
    metavar="NAME",
    multiple=True,
    help="Export only this table or public view, or with NAME.COLUMN this column; `all` for every one. Can be "
    "given several times.",
)
@click.option(
    "--run",
    "run_id",
    metavar="RUN",
    help="Export only this run. Default: all runs. With several runs, each dump goes to TARGET/<run id>.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="With --tensorboard: append the steps of a recording until it ends. Press Ctrl-C to stop.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing export. A dump is never replaced.")
@click.option(
    "--tensor-debug-mode",
    metavar="MODE",
    help="How much of each tensor a dump holds, limited to what was recorded. Default: the recording's mode.",
)
@reading_options
def export(
    logdir: str,
    target: str,
    table: tuple[str, ...],
    run_id: str | None,
    follow: bool,
    overwrite: bool,
    tensor_debug_mode: str | None,
    opening: Opening,
    json: bool,
    **is_asked: bool,
) -> None:
    """Writes a logdir in the format of another tool. Give exactly one of the format options.

    Exit codes: 0 the export was written, 2 an error.
    """
    formats = [name for name in _FORMATS if is_asked[name.replace("-", "_")]]
    if len(formats) != 1:
        options = ", ".join(f"--{name}" for name in _FORMATS)
        what = "several formats were given" if formats else "no format was given"
        raise SettingError(f"{what}; give one of {options}.")
    (format_,) = formats
    if follow and format_ != "tensorboard":
        raise SettingError(f"--follow was given with --{format_}; it works only with --tensorboard.")
    if format_ == "debugger-v2":
        unusable = {"--table": table, "--overwrite": overwrite, "--skip-broken": opening.skip_broken}
        for option, is_given in unusable.items():
            if is_given:
                raise SettingError(
                    f"{option} was given with --debugger-v2; its dumps are always complete and are never replaced."
                )
        _export_dumps(logdir, target, run_id=run_id, tensor_debug_mode=tensor_debug_mode, json=json)
        return
    if tensor_debug_mode is not None:
        raise SettingError(f"--tensor-debug-mode was given with --{format_}; it works only with --debugger-v2.")
    if format_ == "tensorboard":
        if table:
            raise SettingError("--table was given with --tensorboard; event files hold curves, and no tables.")
        _export_events(logdir, target, opening=opening, run_id=run_id, overwrite=overwrite, follow=follow, json=json)
        return
    from tfdbg_arrow.query import export as export_to

    with (
        reading(logdir, opening, what=None) as opened,
        progress_bar("Exporting", lambda rich: (rich.MofNCompleteColumn(), rich.TextColumn(_NOW)), now="") as show,
    ):
        exported = export_to(
            opened,
            target,
            format=format_,
            tables=table or None,
            run_id=run_id,
            overwrite=overwrite,
            progress=lambda name, num_done, num_all: show(num_done, num_all, now=name),
        )
    print_result({"logdir": logdir, **vars(exported)}, _exported(exported), json=json)


def _export_events(
    logdir: str, target: str, *, opening: Opening, run_id: str | None, overwrite: bool, follow: bool, json: bool
) -> None:
    from tfdbg_arrow.query import export_tensorboard

    if follow:
        wait_for(logdir)
    with (
        reading(logdir, opening, what=None) as opened,
        progress_bar("Following" if follow else "Exporting", lambda rich: (rich.TextColumn(_NOW),), now="") as show,
    ):
        written = export_tensorboard(
            opened,
            target,
            run_id=run_id,
            overwrite=overwrite,
            follow=follow,
            progress=lambda run, axis, position: show(None, None, now=f"{run}, {axis} {position:,}"),
        )
    print_result({"logdir": logdir, "format": "tensorboard", **vars(written)}, _events(written), json=json)


def _export_dumps(logdir: str, target: str, *, run_id: str | None, tensor_debug_mode: str | None, json: bool) -> None:
    from tfdbg_arrow.debugger_v2.export import export_logdir
    from tfdbg_arrow.query import open_logdir
    from tfdbg_arrow.query.asked_runs import find_run

    if run_id is not None:
        with open_logdir(logdir) as opened:
            run_id = find_run(opened, run_id)
    with progress_bar("Exporting", lambda rich: (rich.MofNCompleteColumn(), rich.TimeRemainingColumn())) as progress:
        runs = export_logdir(
            Path(logdir), Path(target), run_id=run_id, tensor_debug_mode=tensor_debug_mode, progress=progress
        )
    lines = itertools.chain.from_iterable(map(_dump, runs))
    print_result({"format": "debugger_v2", "runs": runs}, lines, json=json)


def _dump(run: ExportedRun) -> Iterator[Line]:

    yield Line(("run ", "quiet"), (run.run_id, "bold"), f", {run.tensor_debug_mode}")
    yield Line(f"{run.dump}: {run.size_bytes:,} bytes", indent=2)
    files = {name: name.replace("_", " ") for name in run.num_records}
    counts = ", ".join(
        number_of(count, files[name].removesuffix("s"), files[name]) for name, count in run.num_records.items()
    )
    yield Line(f"records: {counts}", indent=2)
    for note in run.notes:
        yield Line(note, indent=2)
    for skipped in run.left_out:
        text = f"left out: {number_of(skipped.num_rows, 'row')} of {skipped.table}. {skipped.reason}"
        yield Line(text, indent=2)


def _events(written: TensorBoardExport) -> Iterator[Line]:

    yield Line((str(written.path), "bold"), f": event files of TensorBoard, {written.size_bytes:,} bytes")
    for run in written.runs:
        named = "" if run.run_name is None else f", {run.run_name}"
        steps = number_of(run.num_positions, run.axis or "step")
        scalars, histograms = number_of(run.num_scalars, "scalar"), number_of(run.num_histograms, "histogram")
        yield Line("run ", (run.run_id, "bold"), f"{named}: {steps}, {scalars}, {histograms}", indent=2)
        for note in run.notes:
            yield Line(note, indent=4)


def _exported(exported: Exported) -> Iterator[Line]:

    yield Line((str(exported.path), "bold"), f": {exported.format}, {exported.size_bytes:,} bytes")
    for table in exported.tables:
        of_a_view = " of a view" if table.kind == "rows of a view" else ""
        what = "a view" if table.num_rows is None else f"{number_of(table.num_rows, 'row')}{of_a_view}"
        yield Line(f"{table.name}: {what}", indent=2)
    if exported.left_out:
        yield Line(f"left out: the large views {', '.join(exported.left_out)}; --table all includes them", indent=2)
