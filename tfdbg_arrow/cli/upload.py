"""`tfdbg-arrow upload`: uploads a logdir to a URL."""

from __future__ import annotations

from pathlib import Path

import click

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import json_option, print_result, progress
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.present.blocks import Line
from tfdbg_arrow.safe_text import number_of


@click.command("upload", cls=Command)
@click.argument("local", help="The local directory that a recording wrote.")
@click.argument("url", help="Where to upload it, e.g. s3://bucket/path.")
@click.option("--remove", is_flag=True, help="Remove the local runs after the upload.")
@json_option
def upload(local: str, url: str, remove: bool, json: bool) -> None:
    """Uploads the runs of a logdir to a URL. Files that are already there are not sent again.

    A recording to a URL that could not send everything in time leaves a local directory and prints its path.
    """
    from tfdbg_arrow.storage.location import RemoteLocation, parse_location
    from tfdbg_arrow.writer.remote.upload_logdir import upload_logdir

    source, target = parse_location(local), parse_location(url)
    if not isinstance(source, Path):
        raise LogdirError(f"LOCAL is the URL {source}; expected a local directory.")
    if not isinstance(target, RemoteLocation):
        raise LogdirError(f"URL is the path {target}; expected a URL such as s3://bucket/path.")
    with progress(f"Uploading to {target} …"):
        runs = upload_logdir(source, target.open(), remove=remove)
    lines = (
        Line(f"{run.run_id}: sent {number_of(run.num_parts, 'part')} ({run.size_bytes:,} bytes); complete at {target}")
        for run in runs
    )
    print_result({"local": str(source), "url": str(target), "runs": runs}, lines, json=json)
