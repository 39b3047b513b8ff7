"""The marker, a file that marks a directory as a logdir, and the check that a path is a logdir."""

from __future__ import annotations

import json
from pathlib import Path, PurePath

from tfdbg_arrow.errors import LogdirError, NoLogdirError
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema.version import FORMAT_VERSION, check_format_version
from tfdbg_arrow.storage.disk import written_whole
from tfdbg_arrow.storage.layout import MARKER_NAME, OwnFiles, shown
from tfdbg_arrow.storage.manifest import CHECKSUM_KEY, is_intact, with_checksum
from tfdbg_arrow.storage.search import below_text, find_logdirs

FORMAT_NAME = "tfdbg_arrow"


def marker_text() -> str:
    """Returns the content of the marker file of a new logdir."""
    return with_checksum(json.dumps({"format": FORMAT_NAME, "format_version": FORMAT_VERSION}) + "\n")


def parse_marker(text: str, *, path: str | PurePath) -> str:
    """Returns the format version of a marker file after checking that this package can read it.

    Args:
        text: The content of the marker file.
        path: The marker file, for the error message.

    Raises:
        LogdirError: The text is not a marker.
        FormatVersionError: The logdir has a MAJOR version that this package cannot read.
    """
    try:
        marker = parse_json(text)
    except ValueError as error:
        raise LogdirError(
            f"{path} is not JSON ({error}), expected {marker_text().strip()}; the logdir is damaged."
        ) from None
    if not isinstance(marker, dict) or marker.get("format") != FORMAT_NAME:
        raise LogdirError(
            f"{path} holds {shown(marker)}, expected {marker_text().strip()}; this is not the marker of a logdir."
        )
    version = marker.get("format_version")
    if not isinstance(version, str):
        raise LogdirError(
            f"{path} has the format_version {shown(version)}, expected a string such as {FORMAT_VERSION!r}."
        )
    check_format_version(version, path=path)
    if not is_intact(text.removesuffix("\n")):
        raise LogdirError(
            f"{path} does not match its {CHECKSUM_KEY}, expected a line such as {marker_text().strip()}; the file was "
            "changed after it was written: restore it."
        )
    return version


def mark_logdir(logdir: Path) -> None:
    """Makes a directory a logdir, unless the directory already is a logdir.

    Args:
        logdir: The directory. A missing directory is created.

    Raises:
        LogdirError: The directory has a marker that is damaged.
        FormatVersionError: The directory is a logdir with another MAJOR version.
        OSError: The marker cannot be written.
    """
    logdir.mkdir(parents=True, exist_ok=True)
    marker = logdir / MARKER_NAME
    try:
        parse_marker(marker.read_text(encoding="utf-8", errors="replace"), path=marker)
    except FileNotFoundError:
        with written_whole(marker) as temporary:
            temporary.write_text(marker_text(), encoding="utf-8")


def check_logdir(path: Path) -> str:
    """Returns the format version of a logdir after checking that the path is a logdir that this package can read.

    Raises:
        LogdirError: The path does not exist, is a file, is an empty directory, or has a marker that is a symbolic link
            to a file outside the directory.
        NoLogdirError: The path is a directory, but not a logdir. The message names the logdirs below it.
        FormatVersionError: The logdir has a MAJOR format version that this package cannot read.
    """
    try:
        if not path.exists():
            raise LogdirError(f"{path} does not exist; give the directory that a recording wrote.")
        if not path.is_dir():
            raise LogdirError(f"{path} is a file; give the directory that a recording wrote.")
        marker = path / MARKER_NAME
        if marker.is_file():
            OwnFiles(path).check([marker])
            return parse_marker(marker.read_text(encoding="utf-8", errors="replace"), path=marker)
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise LogdirError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    if not names:
        raise LogdirError(f"{path} is an empty directory; give the directory that a recording wrote.")
    if any(name.startswith("tfdbg_events.") and name.endswith(".metadata") for name in names):
        raise LogdirError(
            f"{path} holds dumps of TensorFlow's Debugger V2 (tfdbg_events.* files), which are not a logdir of "
            f"tfdbg_arrow; convert them with `tfdbg-arrow import {path} LOGDIR`."
        )
    reason = f"{path} is not a logdir of tfdbg_arrow: it has no {MARKER_NAME}"
    below = find_logdirs(path)
    raise NoLogdirError(f"{reason}; {below_text(below)}", reason=reason, below=below)
